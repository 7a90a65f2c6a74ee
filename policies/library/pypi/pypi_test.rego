package library.pypi_test

import data.warder.egress

request(host, method, path) := {"stage": "request", "request": {
	"scheme": "https",
	"host": host,
	"method": method,
	"path": path,
	"segments": split(trim_prefix(path, "/"), "/"),
	"query": {},
}}

allowed(document) := names if {
	names := {[entry.rule, object.get(entry, "credential", "")] | some entry in egress.allow} with input as document
}

upload := request("upload.pypi.org", "POST", "/legacy/")

test_read if {
	allowed(request("pypi.org", "GET", "/simple/requests/")) == {["pypi-read", ""]}
	allowed(request("pypi.org", "HEAD", "/pypi/requests/json")) == {["pypi-read", ""]}
	allowed(request("files.pythonhosted.org", "GET", "/packages/aa/bb/x.whl")) == {["pypi-read", ""]}
}

test_upload if {
	count(allowed(upload)) == 0
	allowed(upload) == {["pypi-upload", "pypi-upload"]} with data.pypi.profile as "read-write"
}

test_attacks if {
	every document in [
		request("pypi.org", "POST", "/simple/requests/"),
		request("pypi.org", "GET", "/manage/account/token/"),
		request("pypi.org", "GET", "/search/"),
		request("upload.pypi.org", "GET", "/legacy/"),
		request("upload.pypi.org", "POST", "/legacy/x"),
		request("test.pypi.org", "POST", "/legacy/"),
		request("files.pythonhosted.org", "PUT", "/packages/x"),
		request("evil.pypi.org", "GET", "/simple/x/"),
		object.union(request("pypi.org", "GET", "/simple/x/"), {"request": {"query": {"q": ["stolen"]}}}),
		object.union(request("pypi.org", "GET", "/simple/x/"), {"request": {"scheme": "http"}}),
	] {
		count(allowed(document)) == 0 with data.pypi.profile as "read-write"
	}
}
