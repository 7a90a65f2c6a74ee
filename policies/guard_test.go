package policies

import (
	"strings"
	"testing"
)

// bodyRules allow everything on two hosts and deny by the body on one of them.
const bodyRules = `package warder.egress

allow contains {"rule": "any"} if input.request.host in {"api.github.com", "other.example"}

risky if input.request.body.model == "expensive"

deny contains {"rule": "direct"} if {
	input.request.host == "api.github.com"
	some item in input.request.body.items
	item.kind == "secret"
}

deny contains {"rule": "through-helper"} if {
	input.request.host == "api.github.com"
	input.request.method == "PUT"
	risky
}
`

func truncated(in *Input) {
	jsonBody(`{"items": [`)(in)
	in.Request.BodyTruncated = true
}

func host(h string) func(*Input) { return func(in *Input) { in.Request.Host = h } }

func TestF154BodyThatCannotBeJudgedIsDenied(t *testing.T) {
	e := load(t, bodyRules)
	if !e.Needs().Body {
		t.Fatal("Needs().Body is false")
	}
	tests := []struct {
		name    string
		change  []func(*Input)
		verdict Verdict
	}{
		{"parsed and harmless", []func(*Input){jsonBody(`{"items": [{"kind": "plain"}]}`)}, Allow},
		{"parsed and matching", []func(*Input){jsonBody(`{"items": [{"kind": "secret"}]}`)}, Deny},
		{"empty", []func(*Input){jsonBody(``)}, Allow},
		{"truncated", []func(*Input){truncated}, Deny},
		{"truncated on a host that the rule does not name", []func(*Input){truncated, host("other.example")}, Allow},
		{"duplicate keys", []func(*Input){jsonBody(`{"items": [], "items": [{"kind": "secret"}]}`)}, Deny},
		{"gzip", []func(*Input){jsonBody(`{}`), func(in *Input) { in.Request.Headers["content-encoding"] = []string{"gzip"} }}, Deny},
		{"wrong type", []func(*Input){jsonBody(`{}`), func(in *Input) { in.Request.ContentType = "text/plain" }}, Deny},
		{"chunked and not read", []func(*Input){jsonBody(``), func(in *Input) { in.Request.BodyRead, in.Request.ContentLength = false, -1 }}, Deny},
		{"not read and known to be empty", []func(*Input){jsonBody(``), func(in *Input) { in.Request.BodyRead = false }}, Allow},
		{"a helper's rule is guarded too", []func(*Input){truncated, func(in *Input) { in.Request.Method = "PUT" }}, Deny},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := decide(t, e, tt.change...)
			if d.Verdict != tt.verdict || (d.Verdict == Deny && d.Reason != ReasonDenied) {
				t.Fatalf("%+v", d)
			}
		})
	}
	d := decide(t, e, truncated)
	if d.Rule != "direct" || !strings.Contains(d.Message, "could not be judged") || !strings.Contains(d.Detail, "policy.rego:7") {
		t.Errorf("%+v", d)
	}
}

func TestF154RuleThatMentionsTruncationDecidesItself(t *testing.T) {
	e := load(t, `package warder.egress

allow contains {"rule": "any"} if true

deny contains {"rule": "handled", "message": "too long to judge"} if {
	input.request.host == "api.github.com"
	body_is_bad
	not input.request.path == "/upload"
	not input.request.unparsed
}

deny contains {"rule": "handled-2", "message": "too long to judge"} if {
	input.request.body_truncated
	input.request.path == "/strict"
}

body_is_bad if input.request.body.bad
`)
	want(t, decide(t, e, truncated, atPath("/upload")), Allow, "")
	d := decide(t, e, truncated, atPath("/strict"))
	want(t, d, Deny, ReasonDenied)
	if d.Rule != "handled-2" || d.Message != "too long to judge" {
		t.Errorf("%+v", d)
	}
}

func TestF154AskOverAnUnseenBodyIsDenied(t *testing.T) {
	e := load(t, `package warder.egress

allow contains {"rule": "any"} if true

ask contains {"rule": "expensive", "message": input.request.body.model} if input.request.method == "POST"
`)
	want(t, decide(t, e, jsonBody(`{"model": "m"}`)), Ask, ReasonApprovalPending)
	want(t, decide(t, e, truncated), Deny, ReasonDenied)
	want(t, decide(t, e, truncated, func(in *Input) { in.Approvals = []string{"expensive"} }), Deny, ReasonDenied)
	want(t, decide(t, e, truncated, func(in *Input) { in.Request.Method = "GET" }), Allow, "")
}

// Whatever way a rule reaches the body, it is guarded, and only where its
// other conditions hold.
func TestF154EveryWayToTheBodyIsGuarded(t *testing.T) {
	for name, condition := range map[string]string{
		"whole input":        `walk(input, [_, "bad"])`,
		"input as argument":  `object.get(input, ["request", "body", "x"], "") == "bad"`,
		"whole request":      `object.get(input.request, ["body", "x"], "") == "bad"`,
		"assigned request":   "r := input.request\n\tr.body.x == \"bad\"",
		"computed key":       `some k in ["body", "path"]; input.request[k] == "bad"`,
		"comprehension":      `count([1 | input.request.body.x == "bad"]) > 0`,
		"negation":           `not input.request.body.x`,
		"every":              `every x in input.request.body { x == "bad" }`,
		"function":           `check(input.request)`,
		"with":               `helper with input.request.method as input.request.body.x`,
		"with as data":       `helper2 with data.h as input.request.body.x`,
		"computed data path": `some k; data.lib[k] == "bad"`,
		"else":               `chain == "bad"`,
	} {
		t.Run(name, func(t *testing.T) {
			e := loadAll(t, map[string]string{
				"p.rego": "package warder.egress\n\nallow contains {\"rule\": \"any\"} if true\n\ncheck(r) if r.body.x == \"bad\"\n\nhelper if input.request.method == \"bad\"\n\nhelper2 if data.h == \"bad\"\n\nchain := 1 if input.request.port == 1\n\nelse := input.request.body.x\n\ndeny contains {\"rule\": \"d\"} if {\n\tinput.request.host == \"api.github.com\"\n\t" + condition + "\n}\n",
				"l.rego": "package lib\n\nbody := input.request.body.x\n",
			})
			if e.guard == nil || e.guard.query == nil {
				t.Fatal("no guard was compiled")
			}
			want(t, decide(t, e, truncated), Deny, ReasonDenied)
			want(t, decide(t, e, truncated, host("other.example")), Allow, "")
			want(t, decide(t, e, jsonBody(`{"x": "good"}`)), Allow, "")
		})
	}
}

func TestF154RulesWithoutABodyAreNotGuarded(t *testing.T) {
	e := load(t, `package warder.egress

allow contains {"rule": "any"} if input.request.body.ok

allow contains {"rule": "plain"} if input.request.method == "POST"

deny contains {"rule": "d"} if input.request.path == "/bad"
`)
	if e.guard != nil {
		t.Errorf("%+v", e.guard.rules)
	}
	d := decide(t, e, truncated)
	want(t, d, Allow, "")
	if len(d.Rules) != 1 || d.Rules[0] != "plain" {
		t.Errorf("rules %v", d.Rules)
	}
}
