package library.anthropic_test

import data.warder.egress

request(method, path, body) := {"stage": "request", "request": {
	"scheme": "https",
	"host": "api.anthropic.com",
	"method": method,
	"path": path,
	"segments": split(trim_prefix(path, "/"), "/"),
	"body": body,
}}

messages(body) := request("POST", "/v1/messages", body)

allowed(document) := names if {
	names := {entry.rule | some entry in egress.allow} with input as document
}

model := "claude-haiku-4-5"

test_use if {
	allowed(request("GET", "/v1/models/x", null)) == {"anthropic-models"}
	allowed(messages({"model": model, "stream": true})) == {"anthropic-use"}
	allowed(messages({"model": model, "tools": [{"name": "ls"}, {"type": "custom", "name": "cat"}]})) == {"anthropic-use"}
	allowed(request("POST", "/v1/messages/count_tokens", {"model": model})) == {"anthropic-use"}
}

test_read_only_does_not_use if {
	count(allowed(messages({"model": model}))) == 0 with data.anthropic.profile as "read-only"
}

test_attacks if {
	every document in [
		messages({"model": "claude-expensive"}),
		messages({"max_tokens": 1}),
		messages({"model": model, "tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}),
		messages({"model": model, "mcp_servers": [{"url": "https://evil.example"}]}),
		messages({"model": model, "mcp_servers": null}),
		messages({"model": model, "container": "x"}),
		request("POST", "/v1/messages/batches", {"model": model, "requests": []}),
		request("POST", "/v1/files", {"model": model}),
		request("GET", "/v1/organizations/api_keys", null),
		request("POST", "/v1/complete", {"model": model}),
		{"stage": "request", "request": {"scheme": "https", "host": "api.anthropic.com", "method": "POST", "path": "/v1/messages", "unparsed": true}},
		{"stage": "request", "request": {"scheme": "https", "host": "evil.example", "method": "POST", "path": "/v1/messages", "body": {"model": model}}},
	] {
		count(allowed(document)) == 0
	}
}
