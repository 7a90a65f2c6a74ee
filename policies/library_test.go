package policies

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"go.yaml.in/yaml/v3"
)

// libraryCredentials are the templates, as a configuration would define them.
func libraryCredentials(t *testing.T) map[string]CredentialInfo {
	t.Helper()
	known := map[string]CredentialInfo{}
	files, err := filepath.Glob("library/credentials/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var c struct {
			Credentials map[string]struct {
				Hosts          []string
				Methods, Paths *[]string
			}
		}
		if err := yaml.Unmarshal(text, &c); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for name, cred := range c.Credentials {
			if len(cred.Hosts) == 0 {
				t.Errorf("%s: %s is bound to no host", file, name)
			}
			known[name] = CredentialInfo{Hosts: cred.Hosts, Methods: cred.Methods, Paths: cred.Paths}
		}
	}
	return known
}

// service makes a policy folder that holds one folder of the library, as its
// README says it is used.
func service(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join("library", name))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Each folder of the library loads by itself, has no finding, names only
// credentials that have a template, and passes its tests.
func TestLibrary(t *testing.T) {
	credentials := libraryCredentials(t)
	folders, err := os.ReadDir("library")
	if err != nil {
		t.Fatal(err)
	}
	services := 0
	for _, folder := range folders {
		if !folder.IsDir() || folder.Name() == "credentials" {
			continue
		}
		services++
		t.Run(folder.Name(), func(t *testing.T) {
			dir := service(t, folder.Name())
			e, err := Load(Options{Dir: dir, Credentials: credentials})
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range e.Check() {
				t.Errorf("%v", f)
			}
			results, err := RunTests(context.Background(), dir, "")
			if err != nil {
				t.Fatal(err)
			}
			if len(results) < 2 {
				t.Errorf("%d tests", len(results))
			}
			for _, r := range results {
				if r.Outcome != "pass" {
					t.Errorf("%s: %s\n%s", r.Name, r.Outcome, r.Detail)
				}
			}
		})
	}
	if services < 8 {
		t.Errorf("%d services", services)
	}
	files, err := Format("library")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Changed {
			t.Errorf("%s is laid out otherwise", f.Path)
		}
	}
}

// What an attacker sends to GitHub, through the parsers.
func TestLibraryGitHubByRealRequests(t *testing.T) {
	dir := service(t, "github")
	settings := map[string]any{}
	original, err := os.ReadFile(filepath.Join("library", "github", "data.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(original, &settings); err != nil {
		t.Fatal(err)
	}
	settings["profile"] = "read-write"
	changed, err := yaml.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "github", "data.yaml"), changed, 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := Load(Options{Dir: dir, EvalTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	graphql := func(body string) func(*Input) {
		return func(in *Input) {
			jsonBody(body)(in)
			in.Request.Path, in.Request.Segments, in.Request.Query = "/graphql", []string{"graphql"}, nil
		}
	}
	document := func(text string) func(*Input) {
		return graphql(ast.ObjectTerm([2]*ast.Term{keyQuery, ast.StringTerm(text)}).String())
	}
	tests := []struct {
		name, rule string // rule "" is a denial
		change     func(*Input)
	}{
		{"query", "github-graphql-read", document(`{ repository(owner: "acme", name: "site") { id } }`)},
		{"listed mutation", "github-graphql-write", document(`mutation { createIssue(input: {}) { clientMutationId } }`)},
		{"mutation under an alias", "", document(`mutation { createIssue: deleteRepository(input: {}) { clientMutationId } }`)},
		{"mutation in a fragment", "", document(`mutation { createIssue(input: {}) { id } ...F } fragment F on Mutation { deleteIssue(input: {}) { id } }`)},
		{"mutation beside a query", "", graphql(`{"query": "query A { repository { id } } mutation B { deleteIssue { id } }", "operationName": "A"}`)},
		{"mutation in a batch", "", graphql(`[{"query": "{ repository { id } }"}, {"query": "mutation { deleteIssue { id } }"}]`)},
		{"stored document", "", graphql(`{"extensions": {"persistedQuery": {"version": 1, "sha256Hash": "00"}}}`)},
		{"push to a branch of agents", "github-push", pushTo(push(oidNone + " " + oidA + " refs/heads/agent/x"))},
		{"push to main", "", pushTo(push(oidA + " " + oidB + " refs/heads/main"))},
		{"push to both", "", pushTo(push(oidNone+" "+oidA+" refs/heads/agent/x", oidA+" "+oidB+" refs/heads/main"))},
		{"push behind a probe", "", pushTo("0000" + push(oidA+" "+oidB+" refs/heads/main"))},
		{"clone", "github-clone", func(in *Input) {
			in.Request.Host, in.Request.Path = "github.com", "/acme/site.git/info/refs"
			in.Request.Query = map[string][]string{"service": {"git-upload-pack"}}
		}},
		{"push that says clone", "", func(in *Input) {
			in.Request.Host, in.Request.Path, in.Request.Method = "github.com", "/acme/site.git/git-receive-pack", "POST"
			in.Request.Query = map[string][]string{"service": {"git-upload-pack"}}
		}},
	}
	for _, tt := range tests {
		d := decide(t, e, tt.change, func(in *Input) { in.Credentials = []string{"github-api", "github-git"} })
		if tt.rule == "" && d.Verdict != Deny || tt.rule != "" && (d.Verdict != Allow || d.Rules[0] != tt.rule && d.Rule != tt.rule) {
			t.Errorf("%s: %+v", tt.name, d)
		}
	}
}
