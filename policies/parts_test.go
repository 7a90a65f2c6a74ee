package policies

import (
	"fmt"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

// wantPart compares one part with the JSON it should be; "" is absent, "?"
// anything that is unparsed.
func wantPart(t *testing.T, got *ast.Term, want string) {
	t.Helper()
	switch {
	case want == "":
		if got != nil {
			t.Errorf("%v, want nothing", got)
		}
	case want == "?":
		if got == nil || !got.Equal(unparsedPart()) {
			t.Errorf("%v, want unparsed", got)
		}
	case got == nil || !got.Equal(ast.MustParseTerm(want)):
		t.Errorf("%v, want %s", got, want)
	}
}

// operations is the part of one GraphQL request with one operation.
func operations(kind, name string, fields ...string) string {
	return fmt.Sprintf(`{"batched": false, "operations": [{"kind": %q, "name": %q, "fields": ["%s"]}]}`, kind, name, strings.Join(fields, `", "`))
}

func TestGraphQLOperationsAreReadOrUnparsed(t *testing.T) {
	long := strings.Repeat("a ", maxTopFields+1)
	tests := []struct{ name, document, want string }{
		{"shorthand", `{ viewer { login } }`, operations("query", "", "viewer")},
		{"named", `query Q($n: Int! = 3, $l: [String!]!) @d(a: 1) { b a(first: $n) { c } }`, operations("query", "Q", "a", "b")},
		{"alias", `mutation { harmless: deleteRepository(input: {id: "x", n: [1, -2.5e3, null, true, RED]}) { id } }`, operations("mutation", "", "deleteRepository")},
		{"the same field twice", `{ a: x b: x }`, operations("query", "", "x")},
		{"inline fragments", `{ ... on Query @include(if: true) { a } ... { b } ... @skip(if: false) { c } }`, operations("query", "", "a", "b", "c")},
		{"fragment after use", `mutation M { ...F } fragment F on Mutation { x: deleteIssue(a: 1) { id } ...G } fragment G on Mutation { createIssue { id } }`, operations("mutation", "M", "createIssue", "deleteIssue")},
		{"fragment deeper down is of no interest", `{ a { ...Unknown } }`, operations("query", "", "a")},
		{"cycle", `{ ...F } fragment F on Query { a ...F }`, operations("query", "", "a")},
		{"subscription", `subscription { s }`, operations("subscription", "", "s")},
		{"comment hides", "{ a # mutation { b }\n c }", operations("query", "", "a", "c")},
		{"comment ends with CR", "{ a # x\rb }", operations("query", "", "a", "b")},
		{"strings hide", `{ a(s: "} mutation { \" b", t: """ } "mutation" \""" { """) c }`, operations("query", "", "a", "c")},
		{"commas", `{,a,,b,}`, operations("query", "", "a", "b")},
		{"typename", `{ __typename }`, operations("query", "", "__typename")},
		{"field names that are words", `{ query mutation fragment on type }`, operations("query", "", "fragment", "mutation", "on", "query", "type")},
		{"deep", `{ a ` + strings.Repeat("{ a ", maxDocumentDepth-1) + strings.Repeat("}", maxDocumentDepth), operations("query", "", "a")},

		{"too deep", `{ a ` + strings.Repeat("{ a ", maxDocumentDepth) + strings.Repeat("}", maxDocumentDepth+1), "?"},
		{"a flood of braces", strings.Repeat("{", 1<<20), "?"},
		{"a flood of lists", `{ a(x: ` + strings.Repeat("[", 1<<20), "?"},
		{"a flood of list types", `query Q($a: ` + strings.Repeat("[", 1<<20), "?"},
		{"too many fields", "{ " + long + "}", "?"},
		{"too many tokens", "{ a { " + strings.Repeat("a ", maxDocumentTokens) + "} }", "?"},
		{"empty", ``, "?"},
		{"no selection", `query Q`, "?"},
		{"empty selection", `{ }`, "?"},
		{"empty arguments", `{ a() }`, "?"},
		{"not closed", `{ a`, "?"},
		{"more after it", `{ a } }`, "?"},
		{"types", `type Query { a: Int }`, "?"},
		{"unknown fragment", `{ ...F }`, "?"},
		{"fragment of nothing", `fragment F on Query { a }`, "?"},
		{"fragment twice", `{ ...F } fragment F on Query { a } fragment F on Query { b }`, "?"},
		{"only a cycle", `{ ...F } fragment F on Query { ...F }`, "?"},
		{"two without a name", `{ a } { b }`, "?"},
		{"two, and none is named", `query A { a } mutation B { b }`, "?"},
		{"string not closed", `{ a(s: "x) }`, "?"},
		{"line break in a string", "{ a(s: \"x\n\") }", "?"},
		{"unknown escape", `{ a(s: "\x") }`, "?"},
		{"number and name", `{ a(n: 1a) }`, "?"},
		{"leading zero", `{ a(n: 01) }`, "?"},
		{"other white space", "{\u00a0a }", "?"},
		{"a line separator in a comment", "{ a # \u2028 b }\n }", "?"},
		{"zero byte", "{ a \x00}", "?"},
		{"byte order mark", "\ufeff{ a }", "?"},
		{"a long name", "{ " + strings.Repeat("a", maxName+1) + " }", "?"},
		{"braces in a name", `{ a{b }`, "?"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := ast.ObjectTerm([2]*ast.Term{keyQuery, ast.StringTerm(tt.document)}).String()
			if strings.ContainsAny(tt.document, "\x00\u00a0\u2028\ufeff") {
				in := request(jsonBody(tt.document))
				in.Request.Query, in.Request.ContentType = nil, "application/graphql"
				wantPart(t, parseParts(&in.Request, partGraphQL).graphql, tt.want)
				return
			}
			in := request(jsonBody(body))
			in.Request.Query = nil
			got := parseParts(&in.Request, partGraphQL)
			wantPart(t, got.graphql, tt.want)
			if got.judged() != (tt.want != "?") {
				t.Errorf("judged is %v", got.judged())
			}
		})
	}
}

func TestGraphQLRequestsAreReadInEveryForm(t *testing.T) {
	const q = `{"query": "{ a }"}`
	form := func(s string) func(*Request) {
		return func(r *Request) {
			r.ContentType, r.Body = "application/x-www-form-urlencoded", []byte(s)
		}
	}
	inURL := func(q map[string][]string) func(*Request) {
		return func(r *Request) { r.Method, r.Body, r.ContentLength, r.Query = "GET", nil, 0, q }
	}
	two := `"query A { a } mutation B { b }"`
	bothOperations := `{"batched": false, "operations": [{"kind": "query", "name": "A", "fields": ["a"]}, {"kind": "mutation", "name": "B", "fields": ["b"]}]}`
	tests := []struct {
		name, body, want string
		change           func(*Request)
	}{
		{"all members", `{"query": "query Q { a }", "operationName": "Q", "variables": {"x": 1}, "extensions": {}}`, operations("query", "Q", "a"), nil},
		{"null members", `{"query": "{ a }", "operationName": null, "variables": null, "extensions": null}`, operations("query", "", "a"), nil},
		{"one of two", `{"query": ` + two + `, "operationName": "A"}`, bothOperations, nil},
		{"none of two", `{"query": ` + two + `, "operationName": "C"}`, "?", nil},
		{"name that is not there", `{"query": "{ a }", "operationName": "C"}`, "?", nil},
		{"batch", `[` + q + `, {"query": "mutation M { b }"}]`, `{"batched": true, "operations": [{"kind": "query", "name": "", "fields": ["a"]}, {"kind": "mutation", "name": "M", "fields": ["b"]}]}`, nil},
		{"batch with a stored document", `[` + q + `, {"id": "x"}]`, "?", nil},
		{"batch with something else", `[` + q + `, 1]`, "?", nil},
		{"empty batch", `[]`, "?", nil},
		{"long batch", `[` + strings.Repeat(q+",", maxOperations) + q + `]`, "?", nil},
		{"stored document", `{"extensions": {"persistedQuery": {"version": 1, "sha256Hash": "x"}}}`, "?", nil},
		{"document and a stored one", `{"query": "{ a }", "extensions": {"persistedQuery": {}}}`, "?", nil},
		{"document and an id", `{"query": "{ a }", "id": "x"}`, "?", nil},
		{"query of another type", `{"query": ["{ a }"]}`, "?", nil},
		{"variables of another type", `{"query": "{ a }", "variables": "x"}`, "?", nil},
		{"other case", `{"query": "{ a }", "Query": "mutation { b }"}`, "?", nil},
		{"twice", `{"query": "{ a }", "query": "mutation { b }"}`, "?", nil},
		{"no GraphQL", `{"a": 1}`, "?", nil},
		{"text", `"{ a }"`, "?", nil},
		{"no JSON", `{ a }`, "?", nil},
		{"application/graphql", `{ a }`, operations("query", "", "a"), func(r *Request) { r.ContentType = "application/graphql" }},
		{"truncated", q, "?", func(r *Request) { r.BodyTruncated = true }},
		{"compressed", q, "?", func(r *Request) { r.Headers["content-encoding"] = []string{"gzip"} }},
		{"multipart", q, "?", func(r *Request) { r.ContentType = "multipart/form-data; boundary=x" }},
		{"form", "", operations("mutation", "", "b"), form("query=mutation%7Bx:b%7D&variables=%7B%7D")},
		{"form with two", "", "?", form("query=%7Ba%7D&query=mutation%7Bb%7D")},
		{"form with more", "", "?", form("query=%7Ba%7D&id=1")},
		{"body and URL", q, "?", func(r *Request) { r.Query = map[string][]string{"query": {"mutation { b }"}} }},
		{"body and another parameter", q, operations("query", "", "a"), func(r *Request) { r.Query = map[string][]string{"v": {"1"}} }},
		{"URL", "", operations("query", "Q", "a"), inURL(map[string][]string{"query": {"query Q { a }"}, "operationName": {"Q"}, "variables": {"{}"}})},
		{"URL twice", "", "?", inURL(map[string][]string{"query": {"{ a }", "mutation { b }"}})},
		{"URL with a stored document", "", "?", inURL(map[string][]string{"extensions": {`{"persistedQuery": {}}`}})},
		{"URL with broken variables", "", "?", inURL(map[string][]string{"query": {"{ a }"}, "variables": {"{"}})},
		{"nothing", "", "", inURL(nil)},
		{"nobody read the body", q, "?", func(r *Request) { r.BodyRead = false }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := request(jsonBody(tt.body))
			in.Request.Query = nil
			if tt.change != nil {
				tt.change(&in.Request)
			}
			wantPart(t, parseParts(&in.Request, partGraphQL).graphql, tt.want)
		})
	}
}

func FuzzGraphQLDocument(f *testing.F) {
	for _, s := range []string{`{ a }`, `mutation M($a: [Int!]! = [1]) @d { x: b(s: """t""", n: -1.5e3) { c } ...F } fragment F on M { d }`, `{ a(s: "\"") # c` + "\n}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, o := range parseDocument(s) {
			if o.kind != "query" && o.kind != "mutation" && o.kind != "subscription" || len(o.fields) == 0 {
				t.Fatalf("%q: %+v", s, o)
			}
			for _, field := range append(o.fields, o.name+"_") {
				if !isIdentifier(field) || field != o.name+"_" && !strings.Contains(s, field) {
					t.Fatalf("%q: %+v", s, o)
				}
			}
		}
		// What is read does not depend on white space and comments around it.
		if a, b := parseDocument(s), parseDocument("#x\n "+s+"\n,#"); fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatalf("%q: %v and %v", s, a, b)
		}
	})
}

func TestJSONRPCAndMCPMessages(t *testing.T) {
	one := func(message string) string { return `{"batched": false, "messages": [` + message + `]}` }
	tests := []struct{ name, body, jsonrpc, mcp string }{
		{"request", `{"jsonrpc": "2.0", "id": 1, "method": "m", "params": [1]}`, one(`{"kind": "request", "method": "m", "params": [1]}`), one(`{"kind": "request", "method": "m"}`)},
		{"notification", `{"jsonrpc": "2.0", "method": "m"}`, one(`{"kind": "notification", "method": "m"}`), one(`{"kind": "notification", "method": "m"}`)},
		{"response", `{"jsonrpc": "2.0", "id": "x", "result": {}}`, one(`{"kind": "response"}`), one(`{"kind": "response"}`)},
		{"error", `{"jsonrpc": "2.0", "id": null, "error": {"code": 1}}`, one(`{"kind": "response"}`), one(`{"kind": "response"}`)},
		{
			"tool", `{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rm", "arguments": {"p": "/"}, "_meta": {}}}`,
			one(`{"kind": "request", "method": "tools/call", "params": {"name": "rm", "arguments": {"p": "/"}, "_meta": {}}}`),
			one(`{"kind": "request", "method": "tools/call", "tool": "rm", "arguments": {"p": "/"}}`),
		},
		{
			"batch", `[{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ls"}}, {"jsonrpc": "2.0", "id": 2, "method": "resources/read", "params": {"uri": "file:///x"}}, {"jsonrpc": "2.0", "id": 3, "method": "prompts/get", "params": {"name": "p"}}]`,
			`{"batched": true, "messages": [{"kind": "request", "method": "tools/call", "params": {"name": "ls"}}, {"kind": "request", "method": "resources/read", "params": {"uri": "file:///x"}}, {"kind": "request", "method": "prompts/get", "params": {"name": "p"}}]}`,
			`{"batched": true, "messages": [{"kind": "request", "method": "tools/call", "tool": "ls", "arguments": {}}, {"kind": "request", "method": "resources/read", "resource": "file:///x"}, {"kind": "request", "method": "prompts/get", "prompt": "p", "arguments": {}}]}`,
		},
		{"tool without a name", `{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}`, one(`{"kind": "request", "method": "tools/call", "params": {}}`), "?"},
		{"tool without params", `{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}`, one(`{"kind": "request", "method": "tools/call"}`), "?"},
		{"tool by position", `{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": ["rm"]}`, one(`{"kind": "request", "method": "tools/call", "params": ["rm"]}`), "?"},
		{"tool in another case", `{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ls", "Name": "rm"}}`, one(`{"kind": "request", "method": "tools/call", "params": {"name": "ls", "Name": "rm"}}`), "?"},
		{"arguments that are text", `{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ls", "arguments": "x"}}`, one(`{"kind": "request", "method": "tools/call", "params": {"name": "ls", "arguments": "x"}}`), "?"},
		{"resource without URI", `{"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {}}`, one(`{"kind": "request", "method": "resources/read", "params": {}}`), "?"},
		{"method in another case", `{"jsonrpc": "2.0", "id": 1, "method": "m", "Method": "n"}`, "?", "?"},
		{"no version", `{"id": 1, "method": "m"}`, "?", "?"},
		{"version 1", `{"jsonrpc": "1.0", "id": 1, "method": "m"}`, "?", "?"},
		{"version as a number", `{"jsonrpc": 2.0, "id": 1, "method": "m"}`, "?", "?"},
		{"method that is no text", `{"jsonrpc": "2.0", "id": 1, "method": 1}`, "?", "?"},
		{"method that is empty", `{"jsonrpc": "2.0", "id": 1, "method": ""}`, "?", "?"},
		{"id that is an object", `{"jsonrpc": "2.0", "id": {}, "method": "m"}`, "?", "?"},
		{"params that are text", `{"jsonrpc": "2.0", "id": 1, "method": "m", "params": "x"}`, "?", "?"},
		{"method and result", `{"jsonrpc": "2.0", "id": 1, "method": "m", "result": 1}`, "?", "?"},
		{"result and error", `{"jsonrpc": "2.0", "id": 1, "result": 1, "error": {}}`, "?", "?"},
		{"one of a batch is not", `[{"jsonrpc": "2.0", "method": "m"}, 1]`, "?", "?"},
		{"empty batch", `[]`, "?", "?"},
		{"long batch", `[` + strings.Repeat(`{"jsonrpc": "2.0", "method": "m"},`, maxMessages) + `{"jsonrpc": "2.0", "method": "m"}]`, "?", "?"},
		{"text", `"x"`, "?", "?"},
		{"broken", `{"jsonrpc"`, "?", "?"},
		{"nothing", ``, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := request(jsonBody(tt.body))
			got := parseParts(&in.Request, partJSONRPC|partMCP)
			wantPart(t, got.jsonrpc, tt.jsonrpc)
			wantPart(t, got.mcp, tt.mcp)
			if got.judged() != (tt.mcp != "?" && tt.jsonrpc != "?") {
				t.Errorf("unseen is %b", got.unseen)
			}
		})
	}
}

func FuzzJSONRPC(f *testing.F) {
	f.Add([]byte(`[{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {}}}]`))
	f.Add([]byte(`{"jsonrpc": "2.0", "id": 1, "result": {}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := request(jsonBody(string(b)))
		got := parseParts(&in.Request, allParts)
		if (got.jsonrpc == nil) != (len(b) == 0) || (got.mcp == nil) != (len(b) == 0) {
			t.Fatalf("%q: %v %v", b, got.jsonrpc, got.mcp)
		}
	})
}

func TestGRPCCalls(t *testing.T) {
	call := `{"service": "acme.v1.Notes", "method": "Delete"}`
	tests := []struct{ name, method, contentType, path, want string }{
		{"call", "POST", "application/grpc", "/acme.v1.Notes/Delete", call},
		{"with format", "POST", "application/grpc+proto", "/acme.v1.Notes/Delete", call},
		{"with parameter", "POST", "Application/gRPC; charset=utf-8", "/acme.v1.Notes/Delete", call},
		{"web", "POST", "application/grpc-web-text+proto", "/acme.v1.Notes/Delete", call},
		{"another type", "POST", "application/json", "/acme.v1.Notes/Delete", ""},
		{"no type", "POST", "", "/acme.v1.Notes/Delete", ""},
		{"another that begins like it", "POST", "application/grpcx", "/acme.v1.Notes/Delete", "?"},
		{"no format", "POST", "application/grpc+", "/acme.v1.Notes/Delete", "?"},
		{"GET", "GET", "application/grpc", "/acme.v1.Notes/Delete", "?"},
		{"encoded", "POST", "application/grpc", "/acme.v1.Notes/%44elete", "?"},
		{"prefix", "POST", "application/grpc", "/api/acme.v1.Notes/Delete", "?"},
		{"no method", "POST", "application/grpc", "/acme.v1.Notes", "?"},
		{"empty part", "POST", "application/grpc", "/acme..Notes/Delete", "?"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &Request{Method: tt.method, Path: tt.path, ContentType: tt.contentType, Headers: map[string][]string{}}
			if tt.contentType != "" {
				r.Headers["content-type"] = []string{tt.contentType}
			}
			wantPart(t, parseParts(r, partGRPC).grpc, tt.want)
		})
	}
	r := &Request{Method: "POST", Path: "/a.B/C", ContentType: "application/json", Headers: map[string][]string{"content-type": {"application/json", "application/grpc"}}}
	wantPart(t, parseParts(r, partGRPC).grpc, "?")
}

const (
	oidA, oidB = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"
	oidNone    = "0000000000000000000000000000000000000000"
)

// pkt is one pkt-line.
func pkt(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }

// push is a body of git-receive-pack.
func push(commands ...string) string {
	body := ""
	for i, c := range commands {
		if i == 0 {
			c += "\x00 report-status side-band-64k agent=git/2.45"
		}
		body += pkt(c)
	}
	return body + "0000"
}

func pushTo(body string) func(*Input) {
	return func(in *Input) {
		r := &in.Request
		r.Method, r.Host, r.Path, r.Query = "POST", "github.com", "/acme/site.git/git-receive-pack", nil
		r.ContentType, r.Body, r.BodyRead, r.ContentLength = "application/x-git-receive-pack-request", []byte(body), true, -1
	}
}

func TestGitClonesAndPushes(t *testing.T) {
	at := func(method, path string, query map[string][]string) *Request {
		return &Request{Method: method, Path: path, Segments: strings.Split(strings.ReplaceAll(strings.TrimPrefix(path, "/"), "%2F", "/"), "/"), Query: query, BodyRead: true}
	}
	service := func(names ...string) map[string][]string { return map[string][]string{"service": names} }
	known := `"repository": "acme/site", "phase": "advertise"`
	tests := []struct {
		name string
		r    *Request
		want string
	}{
		{"clone begins", at("GET", "/acme/site.git/info/refs", service("git-upload-pack")), `{"operation": "clone", ` + known + `}`},
		{"clone of the old protocol", at("GET", "/acme/site/info/refs", nil), `{"operation": "clone", ` + known + `}`},
		{"push begins", at("GET", "/acme/site.git/info/refs", service("git-receive-pack")), `{"operation": "push", ` + known + `}`},
		{"clone", at("POST", "/acme/site.git/git-upload-pack", nil), `{"operation": "clone", "repository": "acme/site", "phase": "exchange"}`},
		{"two services", at("GET", "/acme/site.git/info/refs", service("git-upload-pack", "git-receive-pack")), "?"},
		{"another service", at("GET", "/acme/site.git/info/refs", service("git-other")), `{` + known + `, "unparsed": true}`},
		{"encoded", at("POST", "/acme/site.git%2Fgit-receive-pack", nil), "?"},
		{"push that nobody can read", at("POST", "/acme/site.git/git-receive-pack", nil), `{"operation": "push", "repository": "acme/site", "phase": "exchange", "unparsed": true}`},
		{"another path", at("GET", "/acme/site", nil), ""},
		{"another encoded path", at("GET", "/acme%2Fsite", nil), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { wantPart(t, parseParts(tt.r, partGit).git, tt.want) })
	}
}

func TestGitPushedRefsAreReadOrUnparsed(t *testing.T) {
	const known = `"operation": "push", "repository": "acme/site", "phase": "exchange"`
	unparsed := `{` + known + `, "unparsed": true}`
	refs := func(list string) string { return `{` + known + `, "refs": [` + list + `]}` }
	update := fmt.Sprintf(`{"name": "refs/heads/x", "action": "update", "old": %q, "new": %q}`, oidA, oidB)
	many := make([]string, maxPushedRefs+1)
	for i := range many {
		many[i] = fmt.Sprintf("%s %s refs/heads/x%d", oidA, oidB, i)
	}
	long := strings.Repeat("a", 64)
	tests := []struct{ name, body, want string }{
		{"update", push(oidA+" "+oidB+" refs/heads/x") + "PACK…", refs(update)},
		{"line end", push(oidA+" "+oidB+" refs/heads/x", oidNone+" "+oidB+" refs/tags/v1\n"), refs(update + fmt.Sprintf(`, {"name": "refs/tags/v1", "action": "create", "old": %q, "new": %q}`, oidNone, oidB))},
		{"delete", push(oidA + " " + oidNone + " refs/heads/x"), refs(fmt.Sprintf(`{"name": "refs/heads/x", "action": "delete", "old": %q, "new": %q}`, oidA, oidNone))},
		{"SHA-256", push(long + " " + strings.Repeat("b", 64) + " refs/heads/x"), refs(fmt.Sprintf(`{"name": "refs/heads/x", "action": "update", "old": %q, "new": %q}`, long, strings.Repeat("b", 64)))},
		{"shallow", pkt("shallow "+oidA) + push(oidA+" "+oidB+" refs/heads/x"), refs(update)},
		{"probe", "0000", refs("")},
		{"probe with more", "0000" + push(oidA+" "+oidB+" refs/heads/x"), unparsed},
		{"nothing", "", unparsed},
		{"only shallow", pkt("shallow "+oidA) + "0000", unparsed},
		{"no flush", pkt(oidA + " " + oidB + " refs/heads/x"), unparsed},
		{"cut", push(oidA + " " + oidB + " refs/heads/x")[:60], unparsed},
		{"certificate", pkt("push-cert\x00 x") + pkt(oidA+" "+oidB+" refs/heads/x") + "0000", unparsed},
		{"delimiter", pkt(oidA+" "+oidB+" refs/heads/x") + "0001" + "0000", unparsed},
		{"empty line", "0004" + push(oidA+" "+oidB+" refs/heads/x"), unparsed},
		{"length that is no number", "00zz" + oidA, unparsed},
		{"length in another form", "+03f" + oidA, unparsed},
		{"short id", push(oidA[1:] + " " + oidB + " refs/heads/x"), unparsed},
		{"upper case id", push(strings.Repeat("A", 40) + " " + oidB + " refs/heads/x"), unparsed},
		{"nothing to nothing", push(oidNone + " " + oidNone + " refs/heads/x"), unparsed},
		{"ids of two kinds", push(oidA + " " + long + " refs/heads/x"), unparsed},
		{"twice", push(oidA+" "+oidB+" refs/heads/x", oidB+" "+oidA+" refs/heads/x"), unparsed},
		{"two zero bytes", push(oidA+" "+oidB+" refs/heads/x", oidA+" "+oidB+" refs/heads/y\x00z"), unparsed},
		{"no refs/", push(oidA + " " + oidB + " HEAD"), unparsed},
		{"dots", push(oidA + " " + oidB + " refs/heads/../main"), unparsed},
		{"space", push(oidA + " " + oidB + " refs/heads/x y"), unparsed},
		{"lock", push(oidA + " " + oidB + " refs/heads/x.lock"), unparsed},
		{"empty component", push(oidA + " " + oidB + " refs/heads//x"), unparsed},
		{"too many", push(many...), unparsed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := request(pushTo(tt.body))
			wantPart(t, parseParts(&in.Request, partGit).git, tt.want)
			if tt.want == unparsed || tt.name == "probe" {
				return
			}
			// A large pack behind the commands changes nothing; a coding does.
			in.Request.BodyTruncated = true
			wantPart(t, parseParts(&in.Request, partGit).git, tt.want)
			in.Request.Headers["content-encoding"] = []string{"gzip"}
			wantPart(t, parseParts(&in.Request, partGit).git, unparsed)
		})
	}
}

func FuzzGitPush(f *testing.F) {
	f.Add([]byte(push(oidA+" "+oidB+" refs/heads/x", oidNone+" "+oidA+" refs/tags/v1\n")))
	f.Add([]byte("0000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := request(pushTo(string(b)))
		refs := pushedRefs(&in.Request)
		if refs == nil {
			return
		}
		// What is read, written again, is read as the same.
		var commands []string
		list := refs.Value.(*ast.Array)
		list.Foreach(func(ref *ast.Term) {
			o := ref.Value.(ast.Object)
			get := func(key *ast.Term) string { return string(o.Get(key).Value.(ast.String)) }
			commands = append(commands, get(keyOld)+" "+get(keyNew)+" "+get(keyName))
		})
		again := request(pushTo(push(commands...)))
		if got := pushedRefs(&again.Request); got == nil || !got.Equal(refs) {
			t.Fatalf("%q: %v, then %v", b, refs, got)
		}
	})
}

// partRules deny by each part; none mentions what cannot be read.
const partRules = anyAllow + `deny contains {"rule": "graphql"} if {
	input.request.path == "/graphql"
	some o in input.request.graphql.operations
	o.kind == "mutation"
}

deny contains {"rule": "tool"} if {
	input.request.path == "/mcp"
	some m in input.request.mcp.messages
	m.tool == "rm"
}

deny contains {"rule": "push"} if {
	input.request.host == "github.com"
	some ref in input.request.git.refs
	ref.name == "refs/heads/main"
}

deny contains {"rule": "grpc"} if input.request.grpc.method == "Delete"
`

// A deny over a part is not silent about a part that cannot be read, and does
// not speak where its other conditions do not hold.
func TestF154PartsThatCannotBeJudgedAreDenied(t *testing.T) {
	e := load(t, partRules)
	if !e.Needs().Body {
		t.Fatal("Needs().Body is false")
	}
	grpc := func(path string) func(*Input) {
		return func(in *Input) {
			r := &in.Request
			r.Method, r.Path, r.ContentType, r.Query = "POST", path, "application/grpc", nil
			r.Headers = map[string][]string{"content-type": {"application/grpc"}}
			r.Body, r.BodyRead = []byte{0, 0, 0, 0, 0}, true
		}
	}
	plain := func(in *Input) { in.Request.Query = nil }
	tests := []struct {
		name   string
		rule   string // of the denial, "" for an allow
		change []func(*Input)
	}{
		{"query", "", []func(*Input){jsonBody(`{"query": "{ a }"}`), atPath("/graphql"), plain}},
		{"mutation", "graphql", []func(*Input){jsonBody(`{"query": "mutation { a }"}`), atPath("/graphql"), plain}},
		{"mutation behind a stored document", "graphql", []func(*Input){jsonBody(`{"id": "x"}`), atPath("/graphql"), plain}},
		{"mutation in the URL", "graphql", []func(*Input){atPath("/graphql"), func(in *Input) { in.Request.Query = map[string][]string{"query": {"mutation { a }"}} }}},
		{"nothing to read", "", []func(*Input){atPath("/graphql"), plain}},
		{"JSON elsewhere", "", []func(*Input){jsonBody(`{"id": "x"}`), plain}},
		{"tool", "tool", []func(*Input){jsonBody(`{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rm"}}`), atPath("/mcp"), plain}},
		{"another tool", "", []func(*Input){jsonBody(`{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ls"}}`), atPath("/mcp"), plain}},
		{"tool hidden", "tool", []func(*Input){jsonBody(`{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"Name": "rm"}}`), atPath("/mcp"), plain}},
		{"push to main", "push", []func(*Input){pushTo(push(oidA + " " + oidB + " refs/heads/main"))}},
		{"push elsewhere", "", []func(*Input){pushTo(push(oidA + " " + oidB + " refs/heads/x"))}},
		{"push that cannot be read", "push", []func(*Input){pushTo("0031x")}},
		{"call", "grpc", []func(*Input){grpc("/a.B/Delete")}},
		{"another call", "", []func(*Input){grpc("/a.B/Get")}},
		{"call that cannot be read", "grpc", []func(*Input){grpc("/a.B/%44elete")}},
	}
	for _, round := range []string{"first", "again"} {
		for _, tt := range tests {
			d := decide(t, e, tt.change...)
			if tt.rule == "" && d.Verdict != Allow || tt.rule != "" && (d.Reason != ReasonDenied || d.Rule != tt.rule) {
				t.Errorf("%s, %s: %+v, want %q", tt.name, round, d, tt.rule)
			}
		}
	}
}

func TestRulesThatMentionUnparsedDecideThemselves(t *testing.T) {
	e := load(t, anyAllow+`deny contains {"rule": "graphql"} if {
	not input.request.graphql.unparsed
	some o in input.request.graphql.operations
	o.kind == "mutation"
}

deny contains {"rule": "tool"} if {
	input.request.path == "/mcp"
	not input.request.unparsed
	some m in input.request.mcp.messages
	m.tool == "rm"
}
`)
	want(t, decide(t, e, jsonBody(`{"id": "x"}`)), Allow, "")
	want(t, decide(t, e, jsonBody(`{"query": "mutation { a }"}`), func(in *Input) { in.Request.Query = nil }), Deny, ReasonDenied)
	// Mentioning the body says nothing of MCP.
	want(t, decide(t, e, jsonBody(`{"id": "x"}`), atPath("/mcp")), Deny, ReasonDenied)
}

func TestOnlyBodiesThatAreNeededAreReadAhead(t *testing.T) {
	for part, body := range map[string]bool{
		"graphql.operations": true, "jsonrpc.messages": true, "mcp.messages": true, "git.refs": true, "git.unparsed": true,
		"git.operation": false, "grpc.service": false, "path": false,
	} {
		if got := load(t, showing("request."+part)).Needs().Body; got != body {
			t.Errorf("%s: Needs().Body is %v", part, got)
		}
	}
}
