package policies

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// documentOf is the input document of an Input, whole.
func documentOf(t *testing.T, change ...func(*Input)) []byte {
	t.Helper()
	in := request(change...)
	whole := newInputPlan(&reference{whole: true}, true)
	body := &parsedBody{}
	if in.Stage == StageRequest {
		body = parseParts(&in.Request, allParts)
	}
	return []byte(whole.build(in, body).String())
}

// A recorded input gives the decision that the request got.
func TestDocumentsAreJudgedAsRequestsAre(t *testing.T) {
	for name, source := range variety {
		e := load(t, source)
		for i, change := range changes {
			live := stripped(decide(t, e, change))
			d, err := e.DecideDocument(context.Background(), documentOf(t, change))
			if err != nil {
				t.Fatal(err)
			}
			if a, b := jsonOf(t, live), jsonOf(t, stripped(d)); a != b {
				t.Errorf("%s, change %d:\n%s\nrecorded:\n%s\n(%s)", name, i, a, b, d.Detail)
			}
		}
	}
	e := load(t, partRules)
	hidden := []func(*Input){jsonBody(`{"id": "x"}`), atPath("/graphql"), func(in *Input) { in.Request.Query = nil }}
	d, err := e.DecideDocument(context.Background(), documentOf(t, hidden...))
	if err != nil || d.Rule != "graphql" || d.Reason != ReasonDenied {
		t.Errorf("%+v %v", d, err)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDocumentsThatAreNoneAreRefused(t *testing.T) {
	e := load(t, entries)
	for doc, says := range map[string]string{
		``:                                    "line 1, column 1",
		"{\n \"stage\": \"request\",}":        "line 2",
		`[]`:                                  "not an object",
		`{}`:                                  "stage",
		`{"stage": "other"}`:                  "stage",
		`{"stage": "request", "stage": "x"}`:  "duplicate",
		`{"stage": "request", "requset": {}}`: "requset is not known",
		`{"stage": "request", "request": {"hots": "x"}}`: "request.hots is not known",
		`{"stage": "request", "request": 1}`:             "not an object",
		`{"stage": "request", "credentials": "x"}`:       "not a list",
		`{"stage": "request", "approvals": [1]}`:         "not a list",
	} {
		if d, err := e.DecideDocument(context.Background(), []byte(doc)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v, %v", doc, d, err)
		}
		if _, err := e.Explain(context.Background(), []byte(doc)); err == nil {
			t.Errorf("%s is explained", doc)
		}
	}
}

func TestExplainSaysWhereARuleStopped(t *testing.T) {
	e := load(t, entries)
	x, err := e.Explain(context.Background(), documentOf(t, func(in *Input) { in.Request.Method = "DELETE" }))
	if err != nil {
		t.Fatal(err)
	}
	want(t, x.Decision, Deny, ReasonNoRule)
	if len(x.Rules) != 3 {
		t.Fatalf("%+v", x.Rules)
	}
	r := x.Rules[0]
	if r.Rule != "github-read" || r.Matched || r.Held != 1 || r.Conditions != 3 || r.Failed == nil {
		t.Fatalf("%+v", r)
	}
	if f := r.Failed; f.Line != 8 || f.Text != `input.request.method in {"GET", "HEAD"}` || len(f.Values) != 1 || f.Values[0] != (ShownPart{"input.request.method", `"DELETE"`}) {
		t.Errorf("%+v", f)
	}
	x, err = e.Explain(context.Background(), documentOf(t, atPath("/repos/acme/x/keys"), func(in *Input) { in.Request.Host = "" }))
	if err != nil {
		t.Fatal(err)
	}
	if x.Rules[0].Held != 0 || x.Rules[0].Failed.Line != 7 || !x.Rules[1].Matched || x.Rules[1].Held != 1 || x.Rules[1].Failed != nil || x.Rules[2].Matched {
		t.Errorf("%+v", x.Rules)
	}
}

// Several ways through a rule: the farthest one is told. A rule whose function
// fails is told too.
func TestExplainTellsTheFarthestWay(t *testing.T) {
	e := load(t, `package warder.egress

allow contains {"rule": "far"} if {
	some name in ["a", "accept"]
	value := input.request.headers[name][_]
	startswith(value, "application/")
	endswith(value, "xml")
}

deny contains {"rule": "broken"} if {
	input.request.host == "api.github.com"
	to_number(input.request.path) == 1
}
`)
	x, err := e.Explain(context.Background(), documentOf(t))
	if err != nil {
		t.Fatal(err)
	}
	want(t, x.Decision, Deny, ReasonPolicyError)
	if r := x.Rules[0]; r.Matched || r.Held != 3 || r.Failed == nil || r.Failed.Line != 7 {
		t.Errorf("%+v", r)
	}
	x, err = e.Explain(context.Background(), []byte(`{"stage": "connection", "request": {"host": "a"}}`))
	if err != nil || len(x.Rules) != 1 || x.Rules[0].Kind != "deny" {
		t.Errorf("%+v %v", x, err)
	}
}

func TestFormatIsThatOfOPA(t *testing.T) {
	dir := write(t, map[string]string{
		"good.rego":     "package warder.egress\n\n# kept\nallow contains {\"rule\": \"a\"} if input.stage == \"request\"\n",
		"bad_test.rego": "package   x\nallow   if   {  true  }",
		"data.json":     "{ }",
	})
	files, err := Format(dir)
	if err != nil || len(files) != 2 {
		t.Fatalf("%+v %v", files, err)
	}
	if !files[0].Changed || files[1].Changed || !strings.HasPrefix(string(files[0].Content), "package x\n\nallow") {
		t.Errorf("%s", files[0].Content)
	}
	if err := files[0].Write(); err != nil {
		t.Fatal(err)
	}
	if again, err := Format(dir); err != nil || again[0].Changed {
		t.Errorf("%+v %v", again, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "broken.rego"), []byte("package x\n\nallow if {"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Format(dir); err == nil || !strings.Contains(err.Error(), "broken.rego:3") {
		t.Errorf("%v", err)
	}
	if _, err := Format(t.TempDir()); err == nil {
		t.Error("an empty folder is formatted")
	}
}

// What the product ships is laid out as opa fmt would.
func TestShippedRegoIsFormatted(t *testing.T) {
	files, err := Format(".")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, f := range files {
		if f.Changed {
			t.Errorf("%s is laid out otherwise", f.Path)
		}
	}
}
