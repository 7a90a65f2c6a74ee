package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// variety is policies that reach the input in every way we know of.
var variety = map[string]string{
	"entries":       entries,
	"body":          bodyRules,
	"everything":    anyAllow,
	"computed key":  anyAllow + "deny contains {\"rule\": \"d\"} if {\n\tsome k in [\"host\", \"path\"]\n\tinput.request[k] == \"/denied\"\n}\n",
	"walk":          anyAllow + "deny contains {\"rule\": \"d\"} if walk(input, [_, \"/denied\"])\n",
	"object.get":    anyAllow + "deny contains {\"rule\": \"d\", \"message\": object.get(input.request, [\"headers\", \"accept\", 0], \"none\")} if input.request.path == \"/denied\"\n",
	"comprehension": anyAllow + "deny contains {\"rule\": \"d\"} if count([v | some v in input.request.query.page; v == \"2\"]) == 1\n",
	"with":          anyAllow + "denied if input.request.path == \"/denied\"\n\ndeny contains {\"rule\": \"d\"} if denied with input.request.path as concat(\"\", [\"/\", input.request.method])\n",
	"time":          anyAllow + "deny contains {\"rule\": \"d\"} if time.now_ns() % 2 == 0\n",
	"asks":          anyAllow + "ask contains {\"rule\": rule} if {\n\tsome rule in {\"a\", \"b\"}\n\tinput.request.method == \"POST\"\n}\n",
	"credentials":   "package warder.egress\n\nallow contains {\"rule\": name, \"credential\": name} if some name in {\"github-read\", \"other\", \"third\"}\n\ndeny contains {\"rule\": \"few\"} if count(input.credentials) == 3\n",
	"limits":        "package warder.egress\n\nallow contains {\"rule\": \"l\", \"limits\": [{\"requests\": input.request.port, \"per\": input.request.host}], \"encoded_slash\": true} if true\n",
	"malformed":     "package warder.egress\n\nallow contains {\"rule\": \"l\", input.request.method: true} if true\n\nallow contains input.request.path if input.request.path == \"/denied\"\n",
	"passthrough":   anyAllow + "passthrough contains {\"rule\": \"p\"} if input.destination.sni == \"api.github.com\"\n\ntunnel contains {\"rule\": \"t\"} if input.request.port != 443\n\ndeny contains {\"rule\": \"d\"} if input.request.host == \"other.example\"\n",
}

// changes are combined freely, so that every field of the input varies alone
// and with others.
var changes = []func(*Input){
	func(in *Input) {},
	func(in *Input) { in.Stage = StageConnection },
	atPath("/denied"), atPath("/orgs/acme/repos"), atPath("/repos/acme/x/keys"),
	func(in *Input) { in.Request.Method = "POST" },
	host("other.example"),
	func(in *Input) { in.Request.Port = 8443 },
	func(in *Input) { in.Request.Query = nil },
	func(in *Input) { in.Request.Headers = map[string][]string{"accept": {"/denied"}} },
	func(in *Input) { in.Credentials = []string{"github-read"} },
	func(in *Input) { in.Credentials = []string{"a", "b", "c"} },
	func(in *Input) { in.Approvals = []string{"a"} },
	func(in *Input) { in.Approvals = []string{"b", "new-repo", "a"} },
	func(in *Input) { in.Destination.SNI = "" },
	func(in *Input) { in.Run.Labels = nil; in.Run.Agent = "/denied" },
	func(in *Input) { in.TimeNS++ },
	jsonBody(`{"items": [{"kind": "secret"}], "model": "expensive"}`),
	jsonBody(`{"items": [{"kind": "plain"}]}`),
	truncated,
}

// plainly is the decision by the shortest way through the public interface of
// OPA: one query of data.warder.decision over the whole input.
func plainly(t *testing.T, q *query, in *Input, options ...rego.EvalOption) Decision {
	t.Helper()
	whole := newInputPlan(&reference{whole: true}, true)
	body := &parsedBody{}
	if in.Stage == StageRequest {
		body = parseParts(&in.Request, whole.parts)
	}
	term, err := q.eval(context.Background(), whole.build(in, body), topdown.NewCancel(), in.TimeNS, options...)
	if err != nil {
		return refusal(ReasonPolicyError, "", "")
	}
	d, err := decode(term, in.Stage)
	if err != nil {
		return refusal(ReasonPolicyError, "", "")
	}
	return d
}

// wholeQuery is data.warder.decision over the entries of e and the composition,
// compiled together by the public interface of OPA.
func wholeQuery(tb testing.TB, e *Engine) *query {
	tb.Helper()
	modules, err := withComposition(e.parsed)
	if err != nil {
		tb.Fatal(err)
	}
	compiler, err := newCompiler(context.Background(), e.store, e.txn, false)
	if err != nil {
		tb.Fatal(err)
	}
	if compiler.Compile(modules); compiler.Failed() {
		tb.Fatal(compiler.Errors)
	}
	q, err := prepare(context.Background(), compiler, e.store, e.txn, "data.warder.decision")
	if err != nil {
		tb.Fatal(err)
	}
	return q
}

// stripped leaves out what names places and identities.
func stripped(d Decision) Decision {
	d.ID, d.Revision, d.Digest, d.Mode, d.Detail = "", "", "", "", ""
	if len(d.Rules) == 0 {
		d.Rules = nil
	}
	if d.Reason == ReasonPolicyError {
		d.Message = ""
	}
	return d
}

func TestEngineAgreesWithPlainRego(t *testing.T) {
	for name, source := range variety {
		t.Run(name, func(t *testing.T) {
			e := load(t, source)
			q := wholeQuery(t, e)
			verdicts := map[Verdict]int{}
			for i, first := range changes {
				for j, second := range changes[:i+1] {
					in := request(first, second)
					plain := stripped(plainly(t, q, in))
					if noIndex := stripped(plainly(t, q, in, rego.EvalRuleIndexing(false))); !reflect.DeepEqual(plain, noIndex) {
						t.Fatalf("changes %d, %d: the rule index changes\n%+v\nto\n%+v", i, j, noIndex, plain)
					}
					for _, round := range []string{"first", "again"} {
						got := e.Decide(context.Background(), in)
						if got.Reason == ReasonDenied && plain.Verdict != Deny && !parseBody(&in.Request).judged() {
							continue // the guard of bodies, which plain Rego does not have
						}
						if c := stripped(got); !reflect.DeepEqual(c, plain) {
							t.Fatalf("changes %d, %d, %s:\n%+v\nplain Rego:\n%+v\n(%s)", i, j, round, c, plain, got.Detail)
						}
					}
					verdicts[plain.Verdict]++
				}
			}
			if len(verdicts) < 2 {
				t.Errorf("the inputs show only %v", verdicts)
			}
		})
	}
}

// The schema and the document that the engine builds must not drift apart.
func TestSchemaDescribesTheWholeInput(t *testing.T) {
	var schema struct {
		Properties map[string]struct {
			Properties map[string]struct{}
		}
	}
	if err := json.Unmarshal(inputSchema, &schema); err != nil {
		t.Fatal(err)
	}
	built := map[string]bool{"run": true, "request": true, "destination": true, "usage.run": true, "usage.host": true, "usage.credentials": true}
	for prefix, fields := range map[string][]field{"": topFields(), "run.": runFields(&reference{}), "request.": requestFields(&reference{}), "destination.": destinationFields()} {
		for _, f := range fields {
			built[prefix+f.name] = true
		}
	}
	described := 0
	for name, part := range schema.Properties {
		described++
		if !built[name] {
			t.Errorf("the schema has %s, the input has not", name)
		}
		for sub := range part.Properties {
			described++
			if full := name + "." + sub; !built[full] {
				t.Errorf("the schema has %s, the input has not", full)
			}
		}
	}
	if len(built) != described {
		t.Errorf("the input has %d parts, the schema describes %d", len(built), described)
	}
}

func TestComposedDecisionsAreBounded(t *testing.T) {
	e := load(t, "package warder.egress\n\nallow contains {\"rule\": concat(\"\", [\"r\", input.request.path]), \"limits\": [{\"requests\": 1}]} if true\n")
	c, err := e.composer()
	if err != nil {
		t.Fatal(err)
	}
	c.limit = 50
	e.cache = nil
	for i := range 170 {
		if want := fmt.Sprintf("r/%d", i); decide(t, e, atPath(want[1:])).Rule != want {
			t.Fatal("wrong rule")
		}
	}
	if c.count > 50 || c.count == 0 {
		t.Errorf("%d composed decisions are kept", c.count)
	}
}
