package library.golang_test

import data.warder.egress

request(host, method, path) := {"stage": "request", "request": {
	"scheme": "https",
	"host": host,
	"method": method,
	"path": path,
	"query": {},
}}

allowed(document) := names if {
	names := {entry.rule | some entry in egress.allow} with input as document
}

test_read if {
	every path in [
		"/golang.org/x/net/@v/list",
		"/golang.org/x/net/@v/v0.1.0.zip",
		"/github.com/!burnt!sushi/toml/@latest",
		"/sumdb/sum.golang.org/supported",
		"/sumdb/sum.golang.org/tile/8/0/x001/234",
		"/sumdb/sum.golang.org/lookup/golang.org/x/net@v0.1.0",
	] {
		allowed(request("proxy.golang.org", "GET", path)) == {"golang-read"}
	}
	allowed(request("sum.golang.org", "GET", "/lookup/golang.org/x/net@v0.1.0")) == {"golang-read"}
	allowed(request("sum.golang.org", "HEAD", "/tile/8/data/000.p/7")) == {"golang-read"}
}

test_attacks if {
	every document in [
		request("proxy.golang.org", "GET", "/evil.example/stolen/@v/list"),
		request("proxy.golang.org", "GET", "/golang.org.evil.example/x/@v/list"),
		request("proxy.golang.org", "GET", "/golang.org/x/net/@v/%2e%2e/x"),
		request("proxy.golang.org", "GET", "/golang.org/x/net"),
		request("proxy.golang.org", "POST", "/golang.org/x/net/@v/list"),
		request("sum.golang.org", "GET", "/lookup/evil.example/stolen@v1.0.0"),
		request("sum.golang.org", "GET", "/golang.org/x/net/@v/list"),
		request("sum.golang.org", "GET", "/tile/8/0/stolen"),
		request("goproxy.evil.example", "GET", "/golang.org/x/net/@v/list"),
		object.union(request("proxy.golang.org", "GET", "/golang.org/x/net/@v/list"), {"request": {"query": {"q": ["stolen"]}}}),
	] {
		count(allowed(document)) == 0
	}
	count(allowed(request("proxy.golang.org", "GET", "/golang.org/x/net/@v/list"))) == 0 with data.golang.profile as "read-write"
}
