package library.openai_test

import data.warder.egress

request(method, path, body) := {"stage": "request", "request": {
	"scheme": "https",
	"host": "api.openai.com",
	"method": method,
	"path": path,
	"segments": split(trim_prefix(path, "/"), "/"),
	"body": body,
}}

chat(body) := request("POST", "/v1/chat/completions", body)

allowed(document) := names if {
	names := {entry.rule | some entry in egress.allow} with input as document
}

model := "gpt-5-mini"

test_use if {
	allowed(request("GET", "/v1/models", null)) == {"openai-models"}
	allowed(chat({"model": model, "messages": [], "stream": true})) == {"openai-use"}
	allowed(chat({"model": model, "tools": [{"type": "function"}]})) == {"openai-use"}
	allowed(request("POST", "/v1/embeddings", {"model": "text-embedding-3-small"})) == {"openai-use"}
}

test_read_only_does_not_use if {
	count(allowed(chat({"model": model}))) == 0 with data.openai.profile as "read-only"
	allowed(request("GET", "/v1/models", null)) == {"openai-models"} with data.openai.profile as "read-only"
}

test_attacks if {
	every document in [
		chat({"model": "gpt-expensive"}),
		chat({"messages": []}),
		chat({"model": [model]}),
		chat({"model": model, "tools": [{"type": "function"}, {"type": "web_search"}]}),
		chat({"model": model, "tools": [{"type": "mcp", "server_url": "https://evil.example"}]}),
		chat({"model": model, "tools": {"type": "mcp"}}),
		chat({"model": model, "web_search_options": {}}),
		request("POST", "/v1/responses", {"model": model, "prompt": {"id": "pmpt_1"}}),
		request("POST", "/v1/files", {"model": model}),
		request("POST", "/v1/fine_tuning/jobs", {"model": model}),
		request("GET", "/v1/organization/admin_api_keys", null),
		request("DELETE", "/v1/models/x", null),
		request("POST", "/v1/chat/completions/../files", {"model": model}),
		{"stage": "request", "request": {"scheme": "https", "host": "api.openai.com", "method": "POST", "path": "/v1/responses", "unparsed": true}},
		{"stage": "request", "request": {"scheme": "http", "host": "api.openai.com", "method": "POST", "path": "/v1/responses", "body": {"model": model}}},
		{"stage": "request", "request": {"scheme": "https", "host": "evil.example", "method": "POST", "path": "/v1/responses", "body": {"model": model}}},
	] {
		count(allowed(document)) == 0
	}
}
