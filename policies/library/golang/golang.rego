# METADATA
# title: Requests to the Go module proxy and checksum database
package library.golang

settings := data.golang

reading if {
	settings.profile == "read-only"
	input.request.scheme == "https"
	input.request.method in {"GET", "HEAD"}
	input.request.query == {}
}

listed(module) if {
	some prefix in settings.modules
	startswith(module, prefix)
}

# /golang.org/x/net/@v/list
read if {
	reading
	input.request.host == "proxy.golang.org"
	listed(trim_prefix(input.request.path, "/"))
	regex.match(`^/[a-zA-Z0-9!._~/-]+/@(latest|v/[a-zA-Z0-9!._+-]+)$`, input.request.path)
}

read if {
	reading
	input.request.host in {"sum.golang.org", "proxy.golang.org"}
	checksum(trim_prefix(input.request.path, "/sumdb/sum.golang.org"))
}

checksum(path) if path in {"/supported", "/latest"}

checksum(path) if regex.match(`^/tile/[0-9]+/(data|[0-9]+)/(x[0-9]{3}/)*[0-9]{3}(\.p/[0-9]+)?$`, path)

checksum(path) if {
	listed(trim_prefix(path, "/lookup/"))
	regex.match(`^/lookup/[a-zA-Z0-9!._~/-]+@v[a-zA-Z0-9!._+-]+$`, path)
}
