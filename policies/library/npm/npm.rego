# METADATA
# title: Requests to the npm registry, by what they do
package library.npm

settings := data.npm

registry if {
	input.request.scheme == "https"
	input.request.host == "registry.npmjs.org"
}

# A scoped name is written /@scope%2fname, /@scope/name or, in files, both.
name := concat("/", array.slice(parts, 0, 2)) if startswith(parts[0], "@")

name := parts[0] if not startswith(parts[0], "@")

parts := split(concat("/", input.request.segments), "/")

# /-/ is the registry's own: accounts, tokens, search.
package_path if {
	registry
	not "-" in {parts[0], name}
	regex.match(`^(@[a-z0-9~._-]+/)?[A-Za-z0-9~._-]+$`, name)
}

read if {
	settings.profile in {"read-only", "read-write"}
	package_path
	input.request.method in {"GET", "HEAD"}
	input.request.query == {}
}

publish if {
	settings.profile == "read-write"
	package_path
	input.request.method == "PUT"
	name in settings.publish
	concat("/", parts) == name
	input.request.body.name == name
}
