# METADATA
# title: Requests to Debian's archive
# description: Clear text is accepted, because apt verifies signatures itself.
package library.debian

settings := data.debian

read if {
	settings.profile == "read-only"
	input.request.host in settings.hosts
	input.request.port in {80, 443}
	input.request.method in {"GET", "HEAD"}
	input.request.query == {}
	input.request.segments[0] in {"debian", "debian-security"}
	input.request.segments[1] in {"dists", "pool"}
}
