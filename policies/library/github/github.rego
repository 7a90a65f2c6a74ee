# METADATA
# title: Requests to GitHub, by what they do
package library.github

settings := data.github

profiled if settings.profile in {"read-only", "read-write"}

writing if settings.profile == "read-write"

segments := input.request.segments

api if {
	input.request.scheme == "https"
	input.request.host == "api.github.com"
}

own_repository if {
	segments[0] == "repos"
	lower(segments[1]) in settings.owners
	count(segments) > 2
}

rest_read if {
	profiled
	api
	input.request.method in {"GET", "HEAD"}
	own_repository
}

rest_write if {
	writing
	api
	input.request.method in {"POST", "PATCH", "PUT"}
	own_repository
	segments[3] in settings.write
}

# A workflow runs with the repository's secrets.
workflow if {
	api
	some segment in segments
	lower(segment) == ".github"
	not input.request.method in {"GET", "HEAD"}
}

graphql if {
	api
	input.request.method == "POST"
	input.request.path == "/graphql"
}

graphql_read if {
	profiled
	graphql
	every operation in input.request.graphql.operations {
		operation.kind == "query"
		every field in operation.fields {
			field in settings.queries
		}
	}
}

graphql_write if {
	writing
	graphql
	every operation in input.request.graphql.operations {
		known_operation(operation)
	}
}

known_operation(operation) if {
	operation.kind == "query"
	every field in operation.fields {
		field in settings.queries
	}
}

known_operation(operation) if {
	operation.kind == "mutation"
	every field in operation.fields {
		field in settings.mutations
	}
}

git := input.request.git if {
	input.request.scheme == "https"
	input.request.host == "github.com"
	parts := split(input.request.git.repository, "/")
	count(parts) == 2
	lower(parts[0]) in settings.owners
}

clone if {
	profiled
	git.operation == "clone"
}

push if {
	writing
	git.operation == "push"
	push_allowed
}

push_allowed if git.phase == "advertise"

push_allowed if {
	every ref in git.refs {
		ref.action != "delete"
		some prefix in settings.push
		startswith(ref.name, prefix)
	}
}
