# METADATA
# title: Requests to OpenAI, by what they do
package library.openai

settings := data.openai

api if {
	input.request.scheme == "https"
	input.request.host == "api.openai.com"
}

read if {
	settings.profile in {"read-only", "read-write"}
	api
	input.request.method in {"GET", "HEAD"}
	input.request.segments[0] == "v1"
	input.request.segments[1] == "models"
}

use if {
	settings.profile == "read-write"
	api
	input.request.method == "POST"
	input.request.path in {"/v1/chat/completions", "/v1/responses", "/v1/embeddings"}
	input.request.body.model in settings.models
	local_tools
}

# Tools that the provider runs (web search, remote MCP servers, containers) can
# reach the network from there: only functions of the caller pass.
local_tools if {
	every tool in object.get(input.request.body, "tools", []) {
		tool.type == "function"
	}
	not input.request.body.web_search_options
	not input.request.body.prompt.id
}
