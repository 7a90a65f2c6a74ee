# METADATA
# title: Requests to the Python package index, by what they do
package library.pypi

settings := data.pypi

reading if {
	settings.profile in {"read-only", "read-write"}
	input.request.scheme == "https"
	input.request.method in {"GET", "HEAD"}
	input.request.query == {}
}

read if {
	reading
	input.request.host == "pypi.org"
	input.request.segments[0] in {"simple", "pypi"}
}

read if {
	reading
	input.request.host == "files.pythonhosted.org"
	input.request.segments[0] == "packages"
}

upload if {
	settings.profile == "read-write"
	input.request.scheme == "https"
	input.request.host == "upload.pypi.org"
	input.request.method == "POST"
	input.request.path == "/legacy/"
}
