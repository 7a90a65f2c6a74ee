# METADATA
# title: Requests to Anthropic, by what they do
package library.anthropic

settings := data.anthropic

api if {
	input.request.scheme == "https"
	input.request.host == "api.anthropic.com"
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
	input.request.path in {"/v1/messages", "/v1/messages/count_tokens"}
	input.request.body.model in settings.models
	local_tools
}

# Tools that the provider runs have a type with a version, and can reach the
# network from there; those of the caller have none, or "custom".
local_tools if {
	every tool in object.get(input.request.body, "tools", []) {
		object.get(tool, "type", "custom") == "custom"
	}
	not "mcp_servers" in object.keys(input.request.body)
	not "container" in object.keys(input.request.body)
}
