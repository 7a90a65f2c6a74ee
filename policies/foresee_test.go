package policies

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// needsRules are over bodies in every way that a rule can be.
const needsRules = `package warder.egress

allow contains {"rule": "small"} if {
	input.request.host == "orders.example"
	input.request.body.total < 100
}

allow contains {"rule": "any"} if input.request.host == "open.example"

allow contains {"rule": "strangers"} if {
	input.request.host == "strange.example"
	not input.request.body.bad
}

deny contains {"rule": "closed"} if startswith(input.request.path, "/closed")

deny contains {"rule": "no-secrets", "message": sprintf("%v", [input.request.body.secret])} if {
	input.request.method == "POST"
	input.request.body.secret
}

ask contains {"rule": "models"} if {
	input.request.host == "models.example"
	expensive
}

expensive if input.request.body.model == "large"
`

func needsInput(host, method, path, body string) *Input {
	in := &Input{Stage: StageRequest}
	in.Request = Request{
		ID: "1", Method: method, Scheme: "https", Host: host, Port: 443, Path: path, Protocol: "http/1.1",
		Headers: map[string][]string{"content-type": {"application/json"}}, ContentType: "application/json", ContentLength: int64(len(body)),
	}
	return in
}

func TestTheBodyIsNeededWhereItMatters(t *testing.T) {
	e, monitor := load(t, needsRules), load(t, needsRules)
	monitor.mode = ModeMonitor
	for _, c := range []struct {
		host, method, path string
		need, monitored    bool
	}{
		{"orders.example", "POST", "/", true, true},
		{"orders.example", "PUT", "/", true, true}, // the allow needs it
		{"open.example", "PUT", "/", false, false}, // no rule over bodies is for it
		{"open.example", "POST", "/", true, true},
		{"open.example", "POST", "/closed", false, true}, // denied whatever it says
		{"evil.example", "POST", "/", false, true},       // allowed by nothing, whatever it says
		{"evil.example", "PUT", "/", false, false},
		{"strange.example", "PUT", "/", true, true},
		{"models.example", "PUT", "/", true, true}, // it may be held
	} {
		in := needsInput(c.host, c.method, c.path, `{}`)
		if got := e.NeedsBody(t.Context(), in); got != c.need {
			t.Errorf("%+v: %v", c, got)
		}
		if got := monitor.NeedsBody(t.Context(), in); got != c.monitored {
			t.Errorf("%+v, monitored: %v", c, got)
		}
	}
	if load(t, anyAllow).NeedsBody(t.Context(), needsInput("a.example", "POST", "/", `{}`)) {
		t.Error("a policy that reads no body needs one")
	}
}

// Where the body is not needed, nothing that it says changes the verdict; what
// would be refused for its body is never let through unread.
func TestAnUnneededBodyChangesNothing_F154(t *testing.T) {
	e := load(t, needsRules)
	pick := func(list ...string) string { return list[rand.IntN(len(list))] }
	unneeded := 0
	for range 3000 {
		body := pick(`{}`, `{"total": 5}`, `{"total": 500}`, `{"secret": 1}`, `{"bad": true}`, `{"model": "large"}`, `{"total": 1, "secret": "x"}`, `[`, ``, `{"bad": 1, "bad": 2}`)
		in := needsInput(pick("orders.example", "open.example", "strange.example", "models.example", "evil.example"), pick("POST", "PUT"), pick("/", "/closed/x"), body)
		if e.NeedsBody(t.Context(), in) {
			continue
		}
		unneeded++
		without := e.Decide(t.Context(), in)
		in.Request.Body, in.Request.BodyRead = []byte(body), true
		with := e.Decide(t.Context(), in)
		if without.Verdict != with.Verdict || without.Verdict == Allow && (without.Credential != with.Credential || !reflect.DeepEqual(without.Rules, with.Rules)) {
			t.Errorf("%s %s%s %s: %+v without its body, %+v with it", in.Request.Method, in.Request.Host, in.Request.Path, body, without, with)
		}
	}
	if unneeded < 100 {
		t.Errorf("control: %d requests did not need their bodies", unneeded)
	}
}

// Whatever way a rule reaches the body, the body is read for it.
func TestEveryWayToTheBodyIsForeseen_F154(t *testing.T) {
	for name, condition := range map[string]string{
		"whole input":        `walk(input, [_, "bad"])`,
		"input as argument":  `object.get(input, ["request", "body", "x"], "") == "bad"`,
		"whole request":      `object.get(input.request, ["body", "x"], "") == "bad"`,
		"assigned request":   "r := input.request\n\tr.body.x == \"bad\"",
		"computed key":       `some k in ["body", "path"]; input.request[k] == "bad"`,
		"comprehension":      `count([1 | input.request.body.x == "bad"]) > 0`,
		"negation":           `not input.request.body.x == "good"`,
		"every":              `every x in input.request.body { x == "bad" }`,
		"function":           `check(input.request)`,
		"truncation":         `input.request.body_truncated`,
		"unparsed":           `input.request.unparsed`,
		"GraphQL":            `input.request.graphql.operations[_].kind == "mutation"`,
		"JSON-RPC":           `input.request.jsonrpc.messages[_].method == "x"`,
		"MCP":                `input.request.mcp.messages[_].tool == "x"`,
		"references of Git":  `input.request.git.refs[_].name == "refs/heads/main"`,
		"computed data path": `some k; data.lib[k] == "bad"`,
		"a set that decides": `count(data.warder.egress.deny) > 7`,
	} {
		t.Run(name, func(t *testing.T) {
			e := loadAll(t, map[string]string{
				"p.rego": fmt.Sprintf("package warder.egress\n\nallow contains {\"rule\": \"any\"} if true\n\ncheck(r) if r.body.x == \"bad\"\n\nask contains {\"rule\": \"d\"} if {\n\tinput.request.host == \"api.example\"\n\t%s\n}\n\ndeny contains {\"rule\": \"other\"} if {\n\tinput.request.host == \"else.example\"\n\tinput.request.body.x\n}\n", condition),
				"l.rego": "package lib\n\nbody := input.request.body.x\n",
			})
			if e.foresight == nil || e.foresight.query == nil {
				t.Fatal("nothing is foreseen")
			}
			if !e.NeedsBody(t.Context(), needsInput("api.example", "POST", "/", `{}`)) {
				t.Error("not where the rule is")
			}
			if e.NeedsBody(t.Context(), needsInput("other.example", "POST", "/", `{}`)) {
				t.Error("also elsewhere")
			}
		})
	}
}

// A floor over bodies is asked too.
func TestAFloorOverBodiesIsForeseen_F154(t *testing.T) {
	floor := `package warder.egress

allow contains {"rule": "any"} if true

deny contains {"rule": "f"} if {
	input.request.host == "open.example"
	input.request.body.secret
}
`
	for name, team := range map[string]string{"over bodies": needsRules, "without": "package warder.egress\n\nallow contains {\"rule\": \"a\"} if true\n"} {
		e := loadFloored(t, map[string]string{"p.rego": team}, map[string]string{"f.rego": floor})
		if !e.NeedsBody(t.Context(), needsInput("open.example", "PUT", "/", `{}`)) {
			t.Errorf("%s: not needed where the floor reads it", name)
		}
		if e.NeedsBody(t.Context(), needsInput("evil.example", "PUT", "/", `{}`)) {
			t.Errorf("%s: needed where nobody reads it", name)
		}
	}
}
