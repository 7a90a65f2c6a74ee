package library.s3_test

import data.warder.egress

request(method, path, more) := {"stage": "request", "request": object.union(
	{
		"scheme": "https",
		"host": "acme-data.s3.eu-central-1.amazonaws.com",
		"port": 443,
		"method": method,
		"path": path,
		"segments": split(trim_prefix(path, "/"), "/"),
		"query": {},
		"headers": {"host": ["x"]},
	},
	more,
)}

by_path(method, path) := request(method, path, {"host": "s3.eu-central-1.amazonaws.com"})

allowed(document) := names if {
	names := {entry.rule | some entry in egress.allow} with input as document
}

test_read if {
	allowed(request("GET", "/in/a/b.csv", {})) == {"s3-get"}
	allowed(request("HEAD", "/in/a", {"query": {"x-id": ["HeadObject"]}})) == {"s3-get"}
	allowed(by_path("GET", "/acme-data/in/a")) == {"s3-get"}
	allowed(request("GET", "/", {"query": {"list-type": ["2"], "prefix": ["in/x"]}})) == {"s3-list"}
}

test_write if {
	count(allowed(request("PUT", "/in/a", {}))) == 0
	allowed(request("PUT", "/in/a", {})) == {"s3-put"} with data.s3.profile as "read-write"
	allowed(request("POST", "/in/a", {"query": {"uploads": [""]}})) == {"s3-put"} with data.s3.profile as "read-write"
	allowed(request("PUT", "/in/a", {"query": {"partNumber": ["1"], "uploadId": ["u"]}})) == {"s3-put"} with data.s3.profile as "read-write"
}

presigned := {"X-Amz-Algorithm": ["AWS4-HMAC-SHA256"], "X-Amz-Credential": ["evil"], "X-Amz-Signature": ["x"]}

test_attacks if {
	every document in [
		request("GET", "/out/a", {}),
		request("GET", "/in/a", {"query": presigned}),
		request("PUT", "/in/a", {"query": presigned}),
		request("GET", "/in/a", {"query": {"acl": [""]}}),
		request("GET", "/", {"query": {"policy": [""]}}),
		request("GET", "/", {"query": {"list-type": ["2"]}}),
		request("GET", "/", {"query": {"list-type": ["2"], "prefix": [""]}}),
		request("GET", "/", {"query": {"list-type": ["2"], "prefix": ["in/", "out/"]}}),
		request("GET", "/", {"query": {"versions": [""], "prefix": ["in/"]}}),
		request("DELETE", "/in/a", {}),
		request("POST", "/", {"query": {"delete": [""]}}),
		request("POST", "/in/a", {"query": {"select": [""], "select-type": ["2"]}}),
		request("PUT", "/in/a", {"headers": {"x-amz-acl": ["public-read"]}}),
		request("PUT", "/in/a", {"headers": {"x-amz-grant-read": ["uri=all"]}}),
		request("PUT", "/in/a", {"headers": {"x-amz-copy-source": ["/other/secret"]}}),
		request("PUT", "/in/a", {"query": {"tagging": [""]}}),
		request("GET", "/in/a", {"host": "evil-data.s3.eu-central-1.amazonaws.com"}),
		request("GET", "/in/a", {"host": "acme-data.s3.us-east-1.amazonaws.com"}),
		request("GET", "/in/a", {"scheme": "http", "port": 80}),
		by_path("GET", "/evil-data/in/a"),
		by_path("GET", "/"),
	] {
		count(allowed(document)) == 0 with data.s3.profile as "read-write"
	}
}
