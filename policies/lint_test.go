package policies

import (
	"slices"
	"strings"
	"testing"
)

func TestCheckReadsConditions(t *testing.T) {
	methods := []string{"GET"}
	creds := map[string]CredentialInfo{
		"gh":   {Hosts: []string{"api.github.com", "*.example.com", "ports.example:8443"}, Methods: &methods},
		"open": {Hosts: []string{"api.github.com"}},
	}
	allow := func(condition string) string { return `allow contains {"rule": "r"} if ` + condition }
	named := func(credential, condition string) string {
		return `allow contains {"rule": "r", "credential": "` + credential + `"} if ` + condition
	}
	tests := []struct{ name, rule, code string }{ // code "" means nothing
		{"plain", allow(`input.request.host == "a.example"`), ""},
		{"two hosts at once", allow("{\n\tinput.request.host == \"a.example\"\n\tinput.request.host == \"b.example\"\n}"), "never-matches"},
		{"two sets that share one", allow("{\n\tinput.request.method in {\"GET\", \"PUT\"}\n\tinput.request.method in [\"PUT\"]\n}"), ""},
		{"two sets that share none", allow("{\n\tinput.request.method in {\"GET\", \"PUT\"}\n\t\"POST\" == input.request.method\n}"), "never-matches"},
		{"one of nothing", allow("input.request.method in []"), "never-matches"},
		{"not both", allow("{\n\tinput.request.host == \"a.example\"\n\tnot input.request.host == \"b.example\"\n}"), ""},
		{"two ports", allow("{\n\tinput.request.port == 1\n\tinput.request.port == 2\n}"), "never-matches"},
		{"allow at a connection", allow(`input.stage == "connection"`), "never-matches"},
		{"deny at a connection", `deny contains {"rule": "r"} if input.stage == "connection"`, ""},
		{"passthrough at a request", `passthrough contains {"rule": "r"} if input.stage == "request"`, "never-matches"},
		{"passthrough by path", `passthrough contains {"rule": "r"} if input.request.path == "/x"`, "never-matches"},
		{"passthrough by host", `passthrough contains {"rule": "r"} if input.request.host == "a.example"`, ""},

		{"every host", allow(`glob.match("**", ["."], input.request.host)`), "glob-everything"},
		{"every host without delimiters", allow(`glob.match("*", null, input.request.host)`), "glob-everything"},
		{"no host", allow(`glob.match("*", [], input.request.host)`), "glob-nothing"},
		{"subdomains", allow(`glob.match("*.example.com", ["."], input.request.host)`), ""},
		{"pattern with port", allow(`glob.match("*.example.com:443", ["."], input.request.host)`), "impossible-host"},
		{"pattern with scheme", allow(`glob.match("https://*.example.com", ["."], input.request.host)`), "impossible-host"},
		{"pattern in upper case", allow(`glob.match("*.Example.com", ["."], input.request.host)`), "impossible-host"},
		{"pattern with an open end", allow(`glob.match("api.example.*", ["."], input.request.host)`), "host-prefix"},
		{"suffix without a dot", allow(`endswith(input.request.host, "github.com")`), "host-suffix"},
		{"suffix with a dot", allow(`endswith(input.request.host, ".github.com")`), ""},
		{"suffix in upper case", allow(`endswith(input.request.host, ".GitHub.com")`), "impossible-host"},
		{"prefix", allow(`startswith(input.request.host, "api.github.com")`), "host-prefix"},
		{"prefix of a deny", `deny contains {"rule": "r"} if startswith(input.request.host, "api.")`, ""},
		{"contained", allow(`contains(input.request.host, "github")`), "host-prefix"},
		{"path without a slash", allow(`glob.match("repos/*", ["/"], input.request.path)`), "path-form"},
		{"path over slashes", allow(`glob.match("/repos/*", [], input.request.path)`), "glob-delimiter"},
		{"path", allow(`glob.match("/repos/*", ["/"], input.request.path)`), ""},

		{"bound elsewhere", named("gh", `input.request.host == "evil.example"`), "credential-excludes"},
		{"bound to one of them", named("gh", `input.request.host in {"evil.example", "api.github.com"}`), ""},
		{"bound by a wildcard", named("gh", `input.request.host == "a.example.com"`), ""},
		{"bound to one label", named("gh", `input.request.host == "a.b.example.com"`), "credential-excludes"},
		{"bound to another port", named("gh", "{\n\tinput.request.host == \"ports.example\"\n\tinput.request.port == 443\n}"), "credential-excludes"},
		{"bound to the port", named("gh", "{\n\tinput.request.host == \"ports.example\"\n\tinput.request.port == 8443\n}"), ""},
		{"bound to other methods", named("gh", "{\n\tinput.request.host == \"api.github.com\"\n\tinput.request.method == \"POST\"\n}"), "credential-excludes"},
		{"HEAD goes with GET", named("gh", "{\n\tinput.request.host == \"api.github.com\"\n\tinput.request.method == \"HEAD\"\n}"), ""},
		{"bound to any method", named("open", "{\n\tinput.request.host == \"api.github.com\"\n\tinput.request.method == \"POST\"\n}"), ""},
		{"host from data", named("gh", `input.request.host in data.hosts`), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			source := "package warder.egress\n\n# METADATA\n# title: T\n" + tt.rule + "\n"
			e, err := Load(Options{Dir: write(t, map[string]string{"p.rego": source, "data.json": `{"hosts": []}`}), Credentials: creds})
			if err != nil {
				t.Fatal(err)
			}
			var codes []string
			for _, f := range e.Check() {
				codes = append(codes, f.Code)
				if f.Line < 5 || !strings.HasSuffix(f.File, "p.rego") {
					t.Errorf("%v has no place", f)
				}
			}
			if tt.code == "" && len(codes) > 0 || tt.code != "" && !slices.Contains(codes, tt.code) {
				t.Errorf("%v, want %q", e.Check(), tt.code)
			}
		})
	}
}
