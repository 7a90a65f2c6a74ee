package policies

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/types"
)

// anyAllow lets everything through that the rest of a policy does not stop.
const anyAllow = "package warder.egress\n\nallow contains {\"rule\": \"any\"} if true\n\n"

func TestF146ConflictDeniesThatRequestOnly(t *testing.T) {
	e := load(t, anyAllow+`tier := 1 if input.request.host == "api.github.com"

tier := 2 if input.request.method == "GET"

deny contains {"rule": "d"} if tier == 3
`)
	d := decide(t, e)
	want(t, d, Deny, ReasonPolicyError)
	if !strings.Contains(d.Detail, "policy.rego:5") {
		t.Errorf("detail %q does not say where", d.Detail)
	}
	want(t, decide(t, e, host("other.example")), Allow, "")
}

func TestF147ErrorsOfBuiltInsDeny(t *testing.T) {
	for name, rule := range map[string]string{
		"in deny":                `deny contains {"rule": "d"} if to_number(input.request.path) == 1`,
		"in a negated condition": `deny contains {"rule": "d"} if not to_number(input.request.path)`,
		"in ask":                 `ask contains {"rule": "d"} if json.unmarshal(input.request.path)`,
		"in allow":               `allow contains {"rule": "d"} if regex.match(input.request.path, "(")`,
		"in a helper":            "helper := time.parse_rfc3339_ns(input.request.path)\n\ndeny contains {\"rule\": \"d\"} if helper > 1",
		"in an entry":            `deny contains {"rule": "d", "message": hex.decode(input.request.path)} if true`,
		"division by zero":       `deny contains {"rule": "d"} if 1 / (input.request.port - 443) > 1`,
	} {
		t.Run(name, func(t *testing.T) {
			source := anyAllow + rule + "\n"
			if name == "in allow" {
				source = strings.ReplaceAll(source, `regex.match(input.request.path, "(")`, `regex.match(concat("", ["(", input.request.path]), "x")`)
			}
			d := decide(t, load(t, source))
			want(t, d, Deny, ReasonPolicyError)
			line := strings.Count(source, "\n")
			if name == "in a helper" {
				line = 5
			}
			if !strings.Contains(d.Detail, fmt.Sprintf("policy.rego:%d", line)) {
				t.Errorf("detail %q does not say where", d.Detail)
			}
			if strings.Contains(d.Message, "policy.rego") {
				t.Errorf("the message for the sandbox names files: %q", d.Message)
			}
		})
	}
	want(t, decide(t, load(t, anyAllow+"deny contains {\"rule\": \"d\"} if to_number(\"1\") == 2\n")), Allow, "")
}

func TestF147OverBudgetDeniesAndStops(t *testing.T) {
	for name, condition := range map[string]string{
		"range":          `count(numbers.range(1, 1000000000)) == 3`,
		"nested loops":   `some i in numbers.range(1, 100000); some j in numbers.range(1, 100000); i * j == -1`,
		"comprehension":  `count({x | some i in numbers.range(1, 100000); some j in numbers.range(1, 100000); x := i * j}) == 3`,
		"cidr expansion": `count(net.cidr_expand("10.0.0.0/8")) == 3`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, map[string]string{"p.rego": anyAllow + "deny contains {\"rule\": \"slow\"} if {\n\tinput.request.host == \"api.github.com\"\n\t" + condition + "\n}\n"})
			e, err := Load(Options{Dir: dir, EvalTimeout: 30 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			// Decide runs on this goroutine, so its return means that the
			// evaluation has stopped.
			want(t, decide(t, e), Deny, ReasonPolicyTimeout)
		})
	}
}

func TestF147LargeTextStaysInBudget(t *testing.T) {
	e := load(t, anyAllow+`deny contains {"rule": "d"} if regex.match("^(a+)+$", input.request.headers["x-long"][0])`+"\n")
	d := decide(t, e, func(in *Input) {
		in.Request.Headers["x-long"] = []string{strings.Repeat("a", 1<<20) + "b"}
	})
	want(t, d, Allow, "")
}

func TestF147DisconnectIsNotAnAllow(t *testing.T) {
	e := load(t, anyAllow)
	ctx, cancel := context.WithCancel(context.Background())
	want(t, e.Decide(ctx, request()), Allow, "")
	cancel()
	want(t, e.Decide(ctx, request()), Deny, ReasonPolicyTimeout)
	ctx, cancel = context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	want(t, e.Decide(ctx, request()), Deny, ReasonPolicyTimeout)
}

func TestF148AmbientBuiltInsAreRefused(t *testing.T) {
	for name, call := range map[string]string{
		"http.send":          `http.send({"method": "GET", "url": "http://evil.test"})`,
		"net.lookup_ip_addr": `net.lookup_ip_addr("evil.test")`,
		"opa.runtime":        `opa.runtime()`,
		"rand.intn":          `rand.intn("x", 5)`,
		"uuid.rfc4122":       `uuid.rfc4122("x")`,
		"trace":              `trace("x")`,
		"print":              `print("x")`,
		"rego.parse_module":  `rego.parse_module("x", "package x")`,
		"io.jwt.encode_sign": `io.jwt.encode_sign({}, {}, {})`,
		"bits.lsh":           `bits.lsh(1, 1000000000)`,
		"json.match_schema":  `json.match_schema({}, {"$ref": "file:///etc/passwd"})`,
	} {
		t.Run(name, func(t *testing.T) {
			for _, rule := range []string{
				"deny contains {\"rule\": \"d\"} if {\n\t" + call + "\n}\n",
				"unused if {\n\t" + call + "\n}\n",
				"hidden if {\n\tx := [1 | " + call + "]\n\tcount(x) == 1\n}\n",
			} {
				p := loadFails(t, map[string]string{"p.rego": anyAllow + rule}).Problems[0]
				if p.File != "p.rego" || p.Line != 6 || !strings.Contains(p.Message, name) {
					t.Errorf("%+v", p)
				}
			}
			loadFails(t, map[string]string{"p.rego": anyAllow + "x := upper(\"a\") with upper as " + name + "\n"})
		})
	}
}

func TestEveryRefusedBuiltInExists(t *testing.T) {
	known := map[string]bool{}
	for _, b := range ast.CapabilitiesForThisVersion().Builtins {
		known[b.Name] = true
	}
	for name := range refused {
		if !known[name] {
			t.Errorf("%s is refused and does not exist: was it renamed?", name)
		}
	}
	for _, b := range ast.CapabilitiesForThisVersion().Builtins {
		if b.Nondeterministic && !isRefused(b.Name) && !ambientTime[b.Name] {
			t.Errorf("%s is not deterministic and not refused", b.Name)
		}
	}
}

func TestF150WithoutAPolicyEverythingIsDenied(t *testing.T) {
	for _, stage := range []string{StageRequest, StageConnection} {
		want(t, DenyAll("").Decide(context.Background(), request(func(in *Input) { in.Stage = stage })), Deny, ReasonNoRule)
	}
}

func TestF153OneDecisionNamesOneRevision(t *testing.T) {
	before, after := load(t, anyAllow), load(t, anyAllow+"deny contains {\"rule\": \"closed\"} if true\n")
	for range 50 {
		a, b := decide(t, before), decide(t, after)
		if a.Verdict != Allow || a.Digest != before.Digest() || b.Verdict != Deny || b.Digest != after.Digest() || a.Digest == b.Digest {
			t.Fatalf("%+v\n%+v", a, b)
		}
	}
}

func TestF155InputIsAsDocumented(t *testing.T) {
	e := load(t, `package warder.egress

deny contains {"rule": "seen", "message": json.marshal(input)} if true
`)
	d := decide(t, e, func(in *Input) {
		in.Request.Path, in.Request.Segments = "/a%2Fb/c", []string{"a/b", "c"}
		in.Request.Query = map[string][]string{"a": {"1;b=2"}}
		in.Request.Headers = map[string][]string{"x-a": {"1", "2"}}
		in.Request.ContentLength = -1
		in.Request.BodyRead = true
		in.Request.Body = []byte("a=1&a=2&b=%20")
		in.Request.ContentType = "application/x-www-form-urlencoded; charset=UTF-8"
	})
	const wanted = `{"approvals":[],"credentials":["github-read","other"],"destination":{"literal":false,"sni":"api.github.com","transparent":true},` +
		`"request":{"body":{"a":["1","2"],"b":[" "]},"body_truncated":false,"content_length":-1,"content_type":"application/x-www-form-urlencoded; charset=UTF-8",` +
		`"graphql":{"unparsed":true},"headers":{"x-a":["1","2"]},"host":"api.github.com","id":"q-1","jsonrpc":{"unparsed":true},"mcp":{"unparsed":true},"method":"GET","npm":{"unparsed":true},"path":"/a%2Fb/c","port":443,"protocol":"http/1.1","query":{"a":["1;b=2"]},"scheme":"https","segments":["a/b","c"],"unparsed":false},` +
		`"run":{"agent":"coder","id":"r-1","image_digest":"","labels":{"env":"ci"},"task":"t","user":"ci"},"stage":"request","time":1795971600000000001,"usage":{"credentials":{},"host":{"bytes_in":0,"bytes_out":0,"cost":0,"requests":0},"run":{"bytes_in":0,"bytes_out":0,"cost":0,"requests":0}},"version":1}`
	if d.Message != wanted {
		t.Errorf("input is\n%s\nwant\n%s", d.Message, wanted)
	}
	d = decide(t, e, func(in *Input) { in.Stage = StageConnection })
	want(t, d, Intercept, "") // and the message of the deny is not for a connection
}

func TestF155ConnectionInputIsAsDocumented(t *testing.T) {
	e := load(t, `package warder.egress

passthrough contains {"rule": json.marshal(input)} if true
`)
	d := decide(t, e, func(in *Input) { in.Stage = StageConnection })
	const wanted = `{"approvals":[],"credentials":["github-read","other"],"destination":{"literal":false,"sni":"api.github.com","transparent":true},` +
		`"request":{"host":"api.github.com","id":"q-1","port":443},"run":{"agent":"coder","id":"r-1","image_digest":"","labels":{"env":"ci"},"task":"t","user":"ci"},` +
		`"stage":"connection","time":1795971600000000001,"usage":{"credentials":{},"host":{"bytes_in":0,"bytes_out":0,"cost":0,"requests":0},"run":{"bytes_in":0,"bytes_out":0,"cost":0,"requests":0}},"version":1}`
	if d.Verdict != Passthrough || d.Rule != wanted {
		t.Errorf("%s: input is\n%s\nwant\n%s", d.Verdict, d.Rule, wanted)
	}
}

func TestF156FailuresAreReportedAndStallNothing(t *testing.T) {
	good, bad := load(t, entries), load(t, anyAllow+"deny contains {\"rule\": \"d\"} if to_number(input.request.path) == 1\n")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if d := decide(t, good); d.Verdict != Allow {
					t.Errorf("good policy: %+v", d)
				}
				if d := decide(t, bad); d.Reason != ReasonPolicyError || !strings.Contains(d.Detail, "to_number") {
					t.Errorf("bad policy: %+v", d)
				}
			}
		})
	}
	wg.Wait()
}

func TestF157SameInputSameDecision(t *testing.T) {
	e := load(t, `package warder.egress

allow contains {"rule": rule, "hint": concat(" ", ["hint of", rule]), "limits": [{"requests": 5, "per": rule}]} if some rule in {"d", "b", "c", "a"}

deny contains {"rule": rule, "message": message} if {
	input.request.path == "/denied"
	some rule in {"z", "y", "x"}
	some message in {"2", "1", "3"}
}
`)
	for _, p := range []string{"/allowed", "/denied"} {
		first := fmt.Sprintf("%+v", without(decide(t, e, atPath(p))))
		for i := range 100 {
			fresh := e
			if i%40 == 0 {
				fresh = loadAll(t, map[string]string{"policy.rego": string(e.Sources()[0].Content)})
			}
			if d := fmt.Sprintf("%+v", without(decide(t, fresh, atPath(p)))); d != first {
				t.Fatalf("evaluation %d:\n%s\nfirst:\n%s", i, d, first)
			}
		}
	}
	if d := decide(t, e, atPath("/denied")); d.Rule != "x" || d.Message != "1" {
		t.Errorf("%+v", d)
	}
}

// without drops what is fresh in every decision.
func without(d Decision) Decision {
	d.ID = ""
	return d
}

func TestUnknownEntryKeyIsAPolicyErrorWithItsPlace(t *testing.T) {
	e := load(t, anyAllow+"deny contains {\"rule\": \"typo\", \"mesage\": \"m\"} if input.request.host == \"api.github.com\"\n")
	d := decide(t, e)
	want(t, d, Deny, ReasonPolicyError)
	if !strings.Contains(d.Detail, "policy.rego:5") || !strings.Contains(d.Detail, "mesage") {
		t.Errorf("detail %q", d.Detail)
	}
	want(t, decide(t, e, host("other.example")), Allow, "")
}

// A built-in that panics stands for any fault inside the evaluator.
func TestPanicInABuiltInDenies(t *testing.T) {
	const name = "warder_test.panic"
	decl := &ast.Builtin{Name: name, Decl: types.NewFunction(types.Args(types.S), types.B)}
	ast.RegisterBuiltin(decl)
	topdown.RegisterBuiltinFunc(name, func(topdown.BuiltinContext, []*ast.Term, func(*ast.Term) error) error {
		panic("a fault in a built-in")
	})
	e := load(t, anyAllow+"deny contains {\"rule\": \"d\"} if {\n\tinput.request.host == \"api.github.com\"\n\twarder_test.panic(input.request.host)\n}\n")
	d := decide(t, e)
	want(t, d, Deny, ReasonPolicyError)
	if !strings.Contains(d.Detail, "a fault in a built-in") {
		t.Errorf("detail %q", d.Detail)
	}
	want(t, decide(t, e, host("other.example")), Allow, "")
}

func TestTimeIsTheInputs(t *testing.T) {
	e := load(t, anyAllow+`deny contains {"rule": "different"} if time.now_ns() != input.time

deny contains {"rule": "late", "message": sprintf("%d", [input.time])} if time.clock(time.now_ns())[0] >= 18
`)
	if !e.Needs().Time {
		t.Error("Needs().Time is false")
	}
	want(t, decide(t, e), Allow, "")
	d := decide(t, e, func(in *Input) { in.TimeNS = time.Date(2026, 11, 29, 18, 0, 0, 999_999_999, time.UTC).UnixNano() })
	if d.Rule != "late" || d.Message != "1795975200999999999" {
		t.Errorf("%+v", d)
	}
	want(t, decide(t, e, func(in *Input) { in.TimeNS = 0 }), Allow, "")
}

func TestMonitorPassesOnlyNoRuleAndDenied(t *testing.T) {
	passes := map[string]bool{ReasonNoRule: true, ReasonDenied: true}
	for _, reason := range []string{ReasonNoRule, ReasonDenied, ReasonAmbiguousCredential, ReasonCredentialBinding, ReasonPolicyError, ReasonPolicyTimeout, ReasonApprovalPending, ""} {
		if got := (Decision{Verdict: Deny, Reason: reason, Mode: ModeMonitor}).MonitorPasses(); got != passes[reason] {
			t.Errorf("monitor, %q: %v", reason, got)
		}
		if (Decision{Verdict: Deny, Reason: reason, Mode: ModeEnforce}).MonitorPasses() || (Decision{Verdict: Ask, Reason: reason, Mode: ModeMonitor}).MonitorPasses() {
			t.Errorf("%q passes in enforce mode or as an ask", reason)
		}
	}
	e, err := Load(Options{Dir: write(t, map[string]string{"p.rego": entries}), Mode: ModeMonitor, EvalTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if d := decide(t, e, host("other.example")); !d.MonitorPasses() || d.Credential != "" || e.Mode() != ModeMonitor {
		t.Errorf("%+v", d)
	}
}

func TestTextsMadeOfInputAreBoundedAndPlain(t *testing.T) {
	e := load(t, "package warder.egress\n\ndeny contains {\"rule\": \"d\", \"message\": input.request.headers.x[0], \"hint\": input.request.path} if true\n")
	d := decide(t, e, func(in *Input) {
		in.Request.Headers = map[string][]string{"x": {strings.Repeat("é", maxMessage)}}
		in.Request.Path = "a\x00\x1b[31m\r\n\u2028\u0085b\xff"
	})
	if len(d.Message) > maxMessage+len("…") || !strings.HasSuffix(d.Message, "é…") {
		t.Errorf("message of %d bytes", len(d.Message))
	}
	if d.Hint != "a  [31m    b\uFFFD" {
		t.Errorf("hint %q", d.Hint)
	}
}
