package library.npm_test

import data.warder.egress

request(method, segments, more) := {"stage": "request", "request": object.union(
	{
		"scheme": "https",
		"host": "registry.npmjs.org",
		"method": method,
		"path": concat("/", array.concat([""], segments)),
		"segments": segments,
		"query": {},
	},
	more,
)}

allowed(document) := names if {
	names := {entry.rule | some entry in egress.allow} with input as document
}

test_read if {
	allowed(request("GET", ["lodash"], {})) == {"npm-read"}
	allowed(request("GET", ["lodash", "-", "lodash-4.17.21.tgz"], {})) == {"npm-read"}
	allowed(request("GET", ["@acme/site"], {})) == {"npm-read"}
	allowed(request("HEAD", ["@acme", "site", "-", "site-1.0.0.tgz"], {})) == {"npm-read"}
}

publish := request("PUT", ["@acme/site"], {"body": {"name": "@acme/site"}})

test_publish if {
	count(allowed(publish)) == 0
	allowed(publish) == {"npm-publish"} with data.npm.profile as "read-write"
}

test_attacks if {
	every document in [
		request("GET", ["-", "npm", "v1", "tokens"], {}),
		request("GET", ["-/npm"], {}),
		request("GET", ["-", "v1", "search"], {"query": {"text": ["x"]}}),
		request("GET", ["lodash"], {"query": {"x": ["stolen"]}}),
		request("PUT", ["-", "user", "org.couchdb.user:evil"], {"body": {"name": "evil"}}),
		request("PUT", ["lodash"], {"body": {"name": "lodash"}}),
		request("PUT", ["@acme/site"], {"body": {"name": "lodash"}}),
		request("PUT", ["@acme/site"], {"unparsed": true}),
		request("PUT", ["@acme/site", "-rev", "1"], {"body": {"name": "@acme/site"}}),
		request("DELETE", ["@acme/site", "-rev", "1"], {}),
		request("POST", ["-", "npm", "v1", "tokens"], {}),
		request("GET", [""], {}),
		request("GET", ["lodash"], {"host": "registry.npmjs.org.evil.example"}),
		request("GET", ["lodash"], {"scheme": "http"}),
	] {
		count(allowed(document)) == 0 with data.npm.profile as "read-write"
	}
}
