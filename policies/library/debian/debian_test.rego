package library.debian_test

import data.warder.egress

request(host, method, path) := {"stage": "request", "request": {
	"scheme": "http",
	"host": host,
	"port": 80,
	"method": method,
	"path": path,
	"segments": split(trim_prefix(path, "/"), "/"),
	"query": {},
}}

allowed(document) := names if {
	names := {entry.rule | some entry in egress.allow} with input as document
}

test_read if {
	allowed(request("deb.debian.org", "GET", "/debian/dists/stable/InRelease")) == {"debian-read"}
	allowed(request("deb.debian.org", "HEAD", "/debian/pool/main/a/apt/apt_2.deb")) == {"debian-read"}
	allowed(request("security.debian.org", "GET", "/debian-security/dists/stable-security/InRelease")) == {"debian-read"}
}

test_attacks if {
	every document in [
		request("deb.debian.org", "POST", "/debian/dists/x"),
		request("deb.debian.org", "GET", "/debian/project/x"),
		request("deb.debian.org", "GET", "/other/dists/x"),
		request("ftp.upload.debian.org", "GET", "/debian/dists/x"),
		object.union(request("deb.debian.org", "GET", "/debian/dists/x"), {"request": {"port": 8080}}),
		object.union(request("deb.debian.org", "GET", "/debian/dists/x"), {"request": {"query": {"q": ["stolen"]}}}),
	] {
		count(allowed(document)) == 0
	}
}
