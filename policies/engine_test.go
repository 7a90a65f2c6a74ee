package policies

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"warder/internal/identity"
)

// entries is the shortest useful policy: one rule of each kind.
const entries = `package warder.egress

# METADATA
# title: Read the issues of the acme organisation
# custom: {owner: team-platform}
allow contains {"rule": "github-read", "credential": "github-read", "limits": [{"requests": 500, "per": "run"}], "hint": "reading is free"} if {
	input.request.host == "api.github.com"
	input.request.method in {"GET", "HEAD"}
	glob.match("/repos/acme/*/issues", ["/"], input.request.path)
}

deny contains {"rule": "no-deploy-keys", "message": "deploy keys are managed by hand", "hint": "ask the platform team"} if endswith(input.request.path, "/keys")

ask contains {"rule": "new-repo", "message": "creates a repository", "scope": "run", "timeout": "5m"} if input.request.path == "/orgs/acme/repos"
`

// write makes a policy folder out of names and contents.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// load compiles one file; the budget is wide, so that a busy machine does not
// turn a decision into a timeout.
func load(t testing.TB, source string) *Engine {
	t.Helper()
	return loadAll(t, map[string]string{"policy.rego": source})
}

func loadAll(t testing.TB, files map[string]string) *Engine {
	t.Helper()
	e, err := Load(Options{Dir: write(t, files), EvalTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// loadFails returns why the files do not load.
func loadFails(t testing.TB, files map[string]string) *LoadError {
	t.Helper()
	dir := write(t, files)
	e, err := Load(Options{Dir: dir})
	var failure *LoadError
	if !errors.As(err, &failure) {
		t.Fatalf("Load = %v, %v; want a *LoadError", e, err)
	}
	for i := range failure.Problems {
		p := &failure.Problems[i]
		if rel, err := filepath.Rel(dir, p.File); err == nil {
			p.File = rel
		}
	}
	return failure
}

// request is an input that policy `entries` allows.
func request(change ...func(*Input)) *Input {
	in := &Input{
		Stage: StageRequest,
		Run:   identity.Run{ID: "r-1", Task: "t", Agent: "coder", User: "ci", Labels: map[string]string{"env": "ci"}},
		Request: Request{
			ID: "q-1", Method: "GET", Scheme: "https", Host: "api.github.com", Port: 443,
			Path: "/repos/acme/x/issues", Segments: []string{"repos", "acme", "x", "issues"},
			Query:   map[string][]string{"page": {"1", "2"}},
			Headers: map[string][]string{"accept": {"application/json"}}, Protocol: "http/1.1",
		},
		Destination: Destination{Transparent: true, SNI: "api.github.com"},
		Credentials: []string{"github-read", "other"},
		TimeNS:      time.Date(2026, 11, 29, 17, 0, 0, 1, time.UTC).UnixNano(),
	}
	for _, f := range change {
		f(in)
	}
	return in
}

func atPath(p string) func(*Input) { return func(in *Input) { in.Request.Path = p } }

func jsonBody(s string) func(*Input) {
	return func(in *Input) {
		in.Request.Method = "POST"
		in.Request.ContentType = "application/json"
		in.Request.Body, in.Request.BodyRead, in.Request.ContentLength = []byte(s), true, int64(len(s))
	}
}

func decide(t testing.TB, e *Engine, change ...func(*Input)) Decision {
	t.Helper()
	return e.Decide(context.Background(), request(change...))
}

func want(t testing.TB, d Decision, verdict Verdict, reason string) {
	t.Helper()
	if d.Verdict != verdict || d.Reason != reason {
		t.Fatalf("%s %q (%s; %s), want %s %q", d.Verdict, d.Reason, d.Message, d.Detail, verdict, reason)
	}
}

func TestDecideFollowsTheContract(t *testing.T) {
	e := load(t, entries)
	d := decide(t, e)
	want(t, d, Allow, "")
	if d.Rule != "github-read" || d.Credential != "github-read" || d.Hint != "reading is free" {
		t.Errorf("rule %q, credential %q, hint %q", d.Rule, d.Credential, d.Hint)
	}
	if len(d.Limits) != 1 || d.Limits[0] != (Limit{Requests: 500, Per: "run", Rule: "github-read"}) {
		t.Errorf("limits %+v", d.Limits)
	}
	if d.ID == "" || d.Revision != e.Revision() || d.Digest != e.Digest() || d.Mode != ModeEnforce {
		t.Errorf("identity of the decision: %+v", d)
	}

	d = decide(t, e, atPath("/repos/acme/x/keys"))
	want(t, d, Deny, ReasonDenied)
	if d.Rule != "no-deploy-keys" || d.Message != "deploy keys are managed by hand" || d.Hint != "ask the platform team" {
		t.Errorf("denial: %+v", d)
	}
	d = decide(t, e, atPath("/orgs/acme/repos"))
	want(t, d, Ask, ReasonApprovalPending)
	if d.Rule != "new-repo" || d.Scope != "run" || d.Timeout != "5m" || d.Message != "creates a repository" {
		t.Errorf("ask: %+v", d)
	}
	want(t, decide(t, e, atPath("/orgs/acme/repos"), func(in *Input) { in.Approvals = []string{"new-repo"} }), Deny, ReasonNoRule)
	want(t, decide(t, e, atPath("/repos/acme/x/y/issues")), Deny, ReasonNoRule)
	want(t, decide(t, e, func(in *Input) { in.Credentials = []string{"other"} }), Deny, ReasonCredentialBinding)
}

func TestZeroValuesDeny(t *testing.T) {
	if d := (Decision{}); d.Verdict == Allow || d.MonitorPasses() {
		t.Errorf("the zero decision lets through: %+v", d)
	}
	e := load(t, entries)
	want(t, e.Decide(context.Background(), &Input{}), Deny, ReasonPolicyError)
	want(t, e.Decide(context.Background(), nil), Deny, ReasonPolicyError)
	want(t, e.Decide(context.Background(), request(func(in *Input) { in.Stage = "Request" })), Deny, ReasonPolicyError)
}

func TestDenyAllSaysWhy(t *testing.T) {
	e := DenyAll("there is no configuration")
	d := decide(t, e)
	want(t, d, Deny, ReasonNoRule)
	if d.Message != "there is no configuration" || d.MonitorPasses() || e.Needs() != (Needs{}) || len(e.Catalogue()) != 0 {
		t.Errorf("%+v", d)
	}
	d = decide(t, e, func(in *Input) { in.Stage = StageConnection })
	want(t, d, Deny, ReasonNoRule)
}

func TestCatalogueReadsMetadata(t *testing.T) {
	docs := load(t, entries).Catalogue()
	if len(docs) != 3 {
		t.Fatalf("%+v", docs)
	}
	d := docs[0]
	if d.Kind != "allow" || d.Rule != "github-read" || d.Title != "Read the issues of the acme organisation" || d.Owner != "team-platform" || d.Hint != "reading is free" || d.Credential != "github-read" || d.Line != 6 || !strings.HasSuffix(d.File, "policy.rego") {
		t.Errorf("%+v", d)
	}
}
