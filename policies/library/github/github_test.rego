package library.github_test

import data.warder.egress

request(host, method, path, more) := {"stage": "request", "request": object.union(
	{
		"scheme": "https",
		"host": host,
		"method": method,
		"path": path,
		"segments": [part | some part in split(trim_prefix(path, "/"), "/")],
	},
	more,
)}

rest(method, path) := request("api.github.com", method, path, {})

graphql(operations) := request("api.github.com", "POST", "/graphql", {"graphql": {"operations": operations}})

git(part) := request("github.com", "POST", "/x", {"git": object.union({"repository": "Acme/site", "phase": "exchange"}, part)})

allowed(document) := names if {
	names := {entry.rule | some entry in egress.allow} with input as document
}

denied(document) := names if {
	names := {entry.rule | some entry in egress.deny} with input as document
}

test_read if {
	allowed(rest("GET", "/repos/acme/site/issues")) == {"github-rest-read"}
	allowed(rest("HEAD", "/repos/Acme/site")) == {"github-rest-read"}
	allowed(git({"operation": "clone"})) == {"github-clone"}
	allowed(graphql([{"kind": "query", "fields": ["repository"]}])) == {"github-graphql-read"}
}

test_read_only_does_not_write if {
	count(allowed(rest("POST", "/repos/acme/site/issues"))) == 0
	count(allowed(graphql([{"kind": "mutation", "fields": ["createIssue"]}]))) == 0
	count(allowed(git({"operation": "push", "refs": [{"name": "refs/heads/agent/x", "action": "create"}]}))) == 0
	count(allowed(git({"operation": "push", "phase": "advertise"}))) == 0
}

test_write if {
	allowed(rest("POST", "/repos/acme/site/issues")) == {"github-rest-write"} with data.github.profile as "read-write"
	allowed(graphql([{"kind": "mutation", "fields": ["createIssue"]}])) == {"github-graphql-write"} with data.github.profile as "read-write"
	push := git({"operation": "push", "refs": [{"name": "refs/heads/agent/x", "action": "update"}]})
	allowed(push) == {"github-push"} with data.github.profile as "read-write"
	allowed(git({"operation": "push", "phase": "advertise"})) == {"github-push"} with data.github.profile as "read-write"
}

test_attacks if {
	every document in [
		rest("GET", "/repos/evil/site/issues"),
		rest("GET", "/repos/acme%2Fsite/../evil"),
		rest("GET", "/user/repos"),
		rest("GET", "/repos/acme"),
		rest("DELETE", "/repos/acme/site"),
		rest("DELETE", "/repos/acme/site/issues"),
		rest("PATCH", "/repos/acme/site"),
		rest("POST", "/repos/acme/site/keys"),
		rest("PUT", "/repos/acme/site/actions/secrets/X"),
		rest("POST", "/repos/acme/site/hooks"),
		rest("POST", "/repos/acme/site/transfer"),
		rest("get", "/repos/acme/site/issues"),
		request("api.github.com", "GET", "/repos/acme/site/issues", {"scheme": "http"}),
		request("api.github.com.evil.example", "GET", "/repos/acme/site/issues", {}),
		graphql([{"kind": "query", "fields": ["repository"]}, {"kind": "mutation", "fields": ["deleteRepository"]}]),
		graphql([{"kind": "mutation", "fields": ["createIssue", "deleteIssue"]}]),
		graphql([{"kind": "query", "fields": ["viewer"]}]),
		graphql([{"kind": "subscription", "fields": ["repository"]}]),
		request("api.github.com", "POST", "/graphql", {"graphql": {"unparsed": true}}),
		request("api.github.com", "POST", "/graphql", {}),
		git({"operation": "clone", "repository": "evil/site"}),
		git({"operation": "clone", "repository": "acme/site/evil"}),
		git({"operation": "push", "refs": [{"name": "refs/heads/main", "action": "update"}]}),
		git({"operation": "push", "refs": [{"name": "refs/heads/agent/x", "action": "create"}, {"name": "refs/tags/v1", "action": "create"}]}),
		git({"operation": "push", "refs": [{"name": "refs/heads/agent/x", "action": "delete"}]}),
		git({"operation": "push", "unparsed": true}),
		git({"unparsed": true}),
	] {
		count(allowed(document)) == 0 with data.github.profile as "read-write"
	}
}

test_workflows_are_denied if {
	document := rest("PUT", "/repos/acme/site/contents/.GitHub/workflows/x.yml")
	denied(document) == {"github-no-workflows"} with data.github.profile as "read-write"
	count(denied(rest("PUT", "/repos/acme/site/contents/README.md"))) == 0
	count(denied(rest("GET", "/repos/acme/site/contents/.github/workflows/x.yml"))) == 0
}

test_unknown_profile_allows_nothing if {
	count(allowed(rest("GET", "/repos/acme/site/issues"))) == 0 with data.github.profile as "readonly"
	count(allowed(git({"operation": "clone"}))) == 0 with data.github.profile as ""
}
