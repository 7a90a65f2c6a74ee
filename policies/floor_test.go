package policies

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

const floorRules = `package warder.egress

allow contains {"rule": "ceiling"} if input.request.host in {"api.github.com", "git.example"}

allow contains {"rule": "models", "credential": "llm"} if input.request.host == "llm.example"

deny contains {"rule": "no-keys", "message": "never"} if endswith(input.request.path, "/keys")

deny contains {"rule": "no-secrets"} if {
	input.request.host == "git.example"
	input.request.body.visibility == "secret"
}

trusted if input.run.agent == "coder"

ask contains {"rule": "strangers"} if not trusted
`

func loadFloored(t testing.TB, team, floor map[string]string) *Engine {
	t.Helper()
	e, err := Load(Options{Dir: write(t, team), Floor: write(t, floor), EvalTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestTeamsOnlyNarrowTheFloor(t *testing.T) {
	team := `package warder.egress

allow contains {"rule": "any", "credential": "other"} if input.request.port == 443

# A team cannot take the place of what the floor uses.
trusted := true

deny contains {"rule": "team-no"} if input.request.path == "/team"
`
	e := loadFloored(t, map[string]string{"p.rego": team}, map[string]string{"f.rego": floorRules})
	if !e.Needs().Body {
		t.Error("what the floor needs is not gathered")
	}
	agent := func(in *Input) { in.Run.Agent = "stranger" }
	plain := func(in *Input) { in.Request.Query = nil }
	for _, round := range []string{"first", "again"} {
		for _, tt := range []struct {
			name, reason, rule string
			verdict            Verdict
			change             []func(*Input)
		}{
			{"both allow", "", "any", Allow, nil},
			{"the floor does not", ReasonNoRule, "", Deny, []func(*Input){host("evil.example")}},
			{"the team does not", ReasonNoRule, "", Deny, []func(*Input){func(in *Input) { in.Request.Port = 80 }}},
			{"the floor denies", ReasonDenied, "no-keys", Deny, []func(*Input){atPath("/x/keys")}},
			{"the team denies", ReasonDenied, "team-no", Deny, []func(*Input){atPath("/team")}},
			{"another credential than the floor's", ReasonCredentialBinding, "any", Deny, []func(*Input){host("llm.example")}},
			{"the floor asks", ReasonApprovalPending, "strangers", Ask, []func(*Input){agent}},
			{"a body that the floor denies", ReasonDenied, "no-secrets", Deny, []func(*Input){host("git.example"), jsonBody(`{"visibility": "secret"}`), plain}},
			{"a body that the floor cannot see", ReasonDenied, "no-secrets", Deny, []func(*Input){host("git.example"), truncated}},
			{"a body that is good", "", "any", Allow, []func(*Input){host("git.example"), jsonBody(`{"visibility": "open"}`)}},
		} {
			d := decide(t, e, tt.change...)
			if d.Verdict != tt.verdict || d.Reason != tt.reason || d.Rule != tt.rule {
				t.Errorf("%s, %s: %+v", tt.name, round, d)
			}
			recorded, err := e.DecideDocument(context.Background(), documentOf(t, tt.change...))
			if err != nil || recorded.Reason != tt.reason || recorded.Verdict != tt.verdict {
				t.Errorf("%s, recorded: %+v %v", tt.name, recorded, err)
			}
		}
	}
	x, err := e.Explain(context.Background(), documentOf(t, host("evil.example")))
	if err != nil || len(x.Rules) != 7 || x.Rules[2].Floor != true || x.Rules[2].Matched || !x.Rules[0].Matched {
		t.Errorf("%+v %v", x, err)
	}
}

// What the floor reads is in the key of the cache.
func TestDecisionsUnderAFloorAreCachedByWhatItReads(t *testing.T) {
	team := map[string]string{"p.rego": anyAllow}
	e := loadFloored(t, team, map[string]string{"f.rego": "package warder.egress\n\nallow contains {\"rule\": \"c\"} if input.request.host == \"api.github.com\"\n"})
	for range 2 {
		want(t, decide(t, e), Allow, "")
		want(t, decide(t, e, host("evil.example")), Deny, ReasonNoRule)
	}
	if n := e.cache.len(); n != 2 {
		t.Errorf("%d decisions kept", n)
	}
	e = loadFloored(t, team, map[string]string{"f.rego": anyAllow + "deny contains {\"rule\": \"d\"} if time.now_ns() % 2 == 0\n"})
	if e.cache != nil || !e.Needs().Time {
		t.Error("decisions that depend on the floor's clock are kept")
	}
}

func TestFaultsOfTheFloorDeny(t *testing.T) {
	team := map[string]string{"p.rego": anyAllow}
	e := loadFloored(t, team, map[string]string{"f.rego": anyAllow + "deny contains {\"rule\": \"d\"} if to_number(input.request.path) == 1\n"})
	want(t, decide(t, e), Deny, ReasonPolicyError)
	e = loadFloored(t, team, map[string]string{"f.rego": "package warder.egress\n\nallow contains {\"rule\": \"f\", \"x\": 1} if true\n"})
	d := decide(t, e)
	want(t, d, Deny, ReasonPolicyError)
	if !strings.Contains(d.Detail, "f.rego:3") {
		t.Errorf("detail %q", d.Detail)
	}
	if _, err := Load(Options{Dir: write(t, team), Floor: write(t, nil)}); err == nil || !IsLoadError(err) || !strings.Contains(err.Error(), "floor") {
		t.Errorf("an empty floor: %v", err)
	}
}

func TestFloorIsPartOfTheDigest(t *testing.T) {
	team, floor := map[string]string{"p.rego": anyAllow}, map[string]string{"p.rego": anyAllow}
	e := loadFloored(t, team, floor)
	if d := loadAll(t, team).Digest(); e.Digest() == d {
		t.Error("the digest is that of the team's files alone")
	}
	if s := e.Sources(); len(s) != 2 || s[0].Path != "floor:/p.rego" || s[1].Path != "p.rego" {
		t.Errorf("%+v", s)
	}
	if len(e.Catalogue()) != 2 || !e.Catalogue()[1].Floor {
		t.Errorf("%+v", e.Catalogue())
	}
}

func TestRootsCountAsOneFolder(t *testing.T) {
	rule := func(name, host string) string {
		return fmt.Sprintf("package warder.egress\n\nallow contains {\"rule\": %q} if input.request.host in data.%s.hosts\n", name, name) + "# " + host
	}
	a := map[string]string{"p.rego": rule("a", ""), "a/data.json": `{"hosts": ["a.example"]}`}
	b := map[string]string{"p.rego": rule("b", ""), "b/data.json": `{"hosts": ["b.example"]}`}
	e, err := Load(Options{Dir: write(t, a), Roots: []string{write(t, b)}, EvalTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if d := decide(t, e, host(name+".example")); d.Rule != name {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if s := e.Sources(); len(s) != 4 || s[3].Path != "root1:/p.rego" || s[0].Path != "a/data.json" {
		t.Errorf("%+v", s)
	}
	b["a/more.json"] = `{"hosts": []}`
	if _, err := Load(Options{Dir: write(t, a), Roots: []string{write(t, b)}}); err == nil || !strings.Contains(err.Error(), "data.a.hosts is also set") {
		t.Errorf("two roots that set one place: %v", err)
	}
	// Tests of each see what both allow.
	delete(b, "a/more.json")
	for name, files := range map[string]map[string]string{"a": a, "b": b} {
		files[name+"_test.rego"] = fmt.Sprintf("package %s_test\n\nimport data.warder.egress\n\ntest_both if {\n\tcount(egress.allow) == 1 with input as {\"request\": {\"host\": \"a.example\"}}\n\tcount(egress.allow) == 1 with input as {\"request\": {\"host\": \"b.example\"}}\n}\n", name)
	}
	results, err := RunTests(t.Context(), write(t, a), "", write(t, b))
	if err != nil || len(results) != 2 || results[0].Outcome != "pass" || results[1].Outcome != "pass" {
		t.Errorf("tests over both roots: %+v %v", results, err)
	}
	dir := write(t, a)
	if results, err := RunTests(t.Context(), dir, ""); err != nil || len(results) != 1 || results[0].Outcome != "fail" {
		t.Errorf("tests over one root: %+v %v", results, err)
	}
	if _, err := Load(Options{Dir: dir, Roots: []string{dir + "/"}}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("one folder twice: %v", err)
	}
	if _, err := Load(Options{Dir: dir, Roots: []string{write(t, nil)}}); err == nil {
		t.Error("an empty root loads")
	}
}

// What is kept of an input is enough to come to the same decision, also about
// what only the floor reads.
func TestKeptInputsGiveTheSameDecision(t *testing.T) {
	team := map[string]string{"p.rego": partRules}
	e, err := Load(Options{Dir: write(t, team), Floor: write(t, map[string]string{"f.rego": floorRules}), EvalTimeout: time.Minute, KeepInput: true})
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]bool{}
	for i, change := range append(changes, host("evil.example"), host("llm.example"), func(in *Input) { in.Run.Agent = "x" },
		func(in *Input) { truncated(in); in.Request.Host = "git.example" }, func(in *Input) { jsonBody(`{"id": 1}`)(in); in.Request.Path = "/graphql" }) {
		live := decide(t, e, change)
		again, err := e.DecideDocument(context.Background(), live.Input)
		live.Input, live.InputRef = nil, ""
		if err != nil || jsonOf(t, stripped(again)) != jsonOf(t, stripped(live)) {
			t.Errorf("change %d: %+v, then %+v, %v", i, live, again, err)
		}
		reasons[live.Reason] = true
	}
	if len(reasons) < 4 {
		t.Errorf("only %v", reasons)
	}
}

// The recorded text of a policy, with its floor and roots, is the policy.
func TestRecordedPolicyIsThePolicy(t *testing.T) {
	e, err := Load(Options{
		Dir:   write(t, map[string]string{"p.rego": anyAllow, "a/data.json": `{"x": 1}`}),
		Roots: []string{write(t, map[string]string{"q.rego": "package warder.egress\n\ndeny contains {\"rule\": \"b\"} if input.request.path == data.b.path\n", "b/data.json": `{"path": "/b"}`})},
		Floor: write(t, map[string]string{"f.rego": floorRules}), EvalTimeout: time.Minute, KeepInput: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	text := map[string]string{}
	for _, s := range e.Sources() {
		text[s.Path] = string(s.Content)
	}
	again, err := LoadRecorded(write(t, text), e.Digest())
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*Input){func(*Input) {}, atPath("/b"), host("evil.example"), atPath("/x/keys")} {
		live := decide(t, e, change)
		d, err := again.DecideDocument(context.Background(), live.Input)
		if err != nil || d.Verdict != live.Verdict || d.Reason != live.Reason || d.Rule != live.Rule || d.Digest != live.Digest {
			t.Errorf("%+v, then %+v, %v", live, d, err)
		}
	}
	text["floor:/f.rego"] += "# changed\n"
	if _, err := LoadRecorded(write(t, text), e.Digest()); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a changed text: %v", err)
	}
}
