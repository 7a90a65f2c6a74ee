package policies

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"

	"warder/internal/identity"
)

// Random policies over random inputs: the engine, with its cache and without, and
// plain rego.Eval over the whole document, by the rule index and without, agree.

// dice makes policies and inputs; the same seed makes the same.
type dice struct{ *rand.Rand }

func rolled(seed uint64) dice { return dice{rand.New(rand.NewPCG(seed, 27))} }

func (d dice) of(list ...string) string { return list[d.IntN(len(list))] }

// texts of the input, by where they stand; few values, so that they often meet.
var inputTexts = map[string][]string{
	"input.request.method": {"GET", "POST"}, "input.request.scheme": {"http", "https"},
	"input.request.host": {"a.test", "b.test"}, "input.request.path": {"/x", "/y/z"},
	"input.request.protocol": {"http/1.1", "h2"}, "input.request.content_type": {"", "application/json"},
	"input.run.id": {"r-1", "r-2"}, "input.run.task": {"t", "u"}, "input.run.agent": {"/x", "coder"},
	"input.run.user": {"ci", "root"}, "input.run.image_digest": {"", "sha256:1"}, "input.destination.sni": {"a.test", ""},
	"input.run.labels.env": {"ci", "prod"}, "input.request.headers.accept[0]": {"*/*", "/x"},
	"input.request.query.page[0]": {"1", "2"}, "input.request.segments[0]": {"x", "y"}, "input.request.body.model": {"small", "huge"},
}

var textPaths = sortedKeys(inputTexts)

// condition is one line of a rule's body.
func (d dice) condition(i int) string {
	field := d.of(textPaths...)
	value := fmt.Sprintf("%q", d.of(inputTexts[field]...))
	leaf := strings.TrimPrefix(field, "input.request.")
	switch d.IntN(28) {
	case 0:
		return fmt.Sprintf("some k%d in [\"method\", %q]\n\tinput.request[k%d] == %s", i, d.of("host", "path", "scheme"), i, value)
	case 1:
		return fmt.Sprintf("walk(%s, [_, %s])", d.of("input", "input.request", "input.run", "input.destination"), value)
	case 2:
		return fmt.Sprintf("object.get(input.request, [%q, %q, 0], \"none\") != %s", d.of("headers", "query"), d.of("accept", "page"), value)
	case 3:
		return fmt.Sprintf("count([v | some v in input.request.%s; v != %s]) == %d", d.of("segments", "query.page", "headers.accept"), value, d.IntN(3))
	case 4:
		return fmt.Sprintf("helper with input.request.%s as %s", d.of("path", "host", "method"), value)
	case 5:
		return fmt.Sprintf("%s %% 2 == %d", d.of("time.now_ns()", "input.time"), d.IntN(2))
	case 6:
		return fmt.Sprintf("input.request.port %s 443", d.of("==", "!=", ">="))
	case 7:
		return d.of("input.request.content_length < 5", "input.request.content_type == \"\"", "input.request.content_length > 5")
	case 8:
		return fmt.Sprintf("%q in input.%s", d.of("one", "two", "a"), d.of("credentials", "approvals"))
	case 9:
		return d.of("", "not ") + d.of("input.destination.transparent", "input.destination.literal")
	case 10:
		return fmt.Sprintf("input.usage.%s.requests < %d", d.of("run", "host"), d.IntN(4))
	case 11:
		return fmt.Sprintf("every key, values in input.request.headers {\n\t\tcount(values) > 0\n\t\tkey != %q\n\t}", d.of("accept", "x"))
	case 12:
		return fmt.Sprintf("%s in {%s, \"other\"}", field, value)
	case 13:
		return fmt.Sprintf("startswith(%s, %q)", field, d.of("", "/", "a", "r-"))
	case 14:
		return fmt.Sprintf("not %s == %s", field, value)
	case 15:
		return fmt.Sprintf("some name%d, label%d in input.run.labels\n\tlabel%d == %s\n\tname%d != \"x\"", i, i, i, value, i)
	case 16:
		return fmt.Sprintf("{v | some v in input.request.query[_]}[_] == [%s]", value)
	case 17:
		return fmt.Sprintf("json.marshal(input.%s) != %s", d.of("run", "request.query", "destination", "request.segments"), value)
	}
	return fmt.Sprintf("%s == %s # %s", field, value, leaf)
}

// policy has rules of every kind, some of which read the same parts.
func (d dice) policy() string {
	var b strings.Builder
	b.WriteString("package warder.egress\n\nallow contains {\"rule\": \"always\"} if true\n")
	for i := range 2 + d.IntN(4) {
		kind := d.of("allow", "allow", "deny", "ask", "passthrough", "tunnel")
		entry := fmt.Sprintf("\"rule\": \"%s-%d\"", kind, d.IntN(4))
		switch kind {
		case "allow":
			entry += d.of("", `, "credential": "one"`, `, "credential": "two"`, `, "limits": [{"requests": 3, "per": input.request.host}]`, `, "hint": input.request.method`)
		case "deny":
			entry += d.of("", `, "message": input.request.path`, `, "message": sprintf("%v", [input.run.labels])`)
		}
		fmt.Fprintf(&b, "\n%s contains {%s} if {\n", kind, entry)
		for j := range 1 + d.IntN(2) {
			fmt.Fprintf(&b, "\t%s\n", d.condition(10*i+j))
		}
		b.WriteString("}\n")
	}
	if text := b.String(); !strings.Contains(text, "helper") {
		return text
	}
	return b.String() + "\nhelper if input.request.path == \"/x\"\n\nhelper if input.request.host == \"a.test\"\n"
}

// input has one of the texts everywhere. Those of the body come with it.
func (d dice) input() *Input {
	text := func(path string) string { return d.of(inputTexts["input."+path]...) }
	in := &Input{
		Stage: d.of(StageRequest, StageRequest, StageRequest, StageRequest, StageConnection),
		Run: identity.Run{
			ID: text("run.id"), Task: text("run.task"), Agent: text("run.agent"), User: text("run.user"),
			ImageDigest: text("run.image_digest"), Labels: map[string]string{"env": text("run.labels.env")},
		},
		Request: Request{
			ID: "q-1", Method: text("request.method"), Scheme: text("request.scheme"), Host: text("request.host"), Port: 443 + d.IntN(2),
			Path: text("request.path"), Segments: []string{text("request.segments[0]")},
			Query:   map[string][]string{"page": {text("request.query.page[0]")}},
			Headers: map[string][]string{"accept": {text("request.headers.accept[0]")}}, Protocol: text("request.protocol"),
			ContentType: text("request.content_type"),
		},
		Destination: Destination{Transparent: d.IntN(2) == 0, Literal: d.IntN(2) == 0, SNI: text("destination.sni")},
		Credentials: [][]string{{"one", "two"}, {"one"}, nil}[d.IntN(3)],
		Approvals:   [][]string{nil, {"a"}, {"ask-0", "ask-1"}}[d.IntN(3)],
		TimeNS:      1_795_971_600_000_000_000 + int64(d.IntN(2)),
		Usage:       &Usage{Run: Amounts{Requests: int64(d.IntN(3))}},
	}
	if d.IntN(4) == 0 {
		jsonBody(fmt.Sprintf(`{"model": %q}`, text("request.body.model")))(in)
	} else {
		in.Request.ContentLength, in.Request.BodyRead = int64(d.IntN(10)), true
	}
	return in
}

// around are inputs that differ from the first in one part alone, each part in turn.
func (d dice) around() []*Input {
	list := []*Input{d.input()}
	vary := func(part func(*Input) reflect.Value, i int) {
		for range 6 { // until it is another value
			changed := *list[0]
			part(&changed).Field(i).Set(part(d.input()).Field(i))
			if !reflect.DeepEqual(&changed, list[0]) {
				list = append(list, &changed)
				return
			}
		}
	}
	for _, part := range []func(*Input) reflect.Value{
		func(in *Input) reflect.Value { return reflect.ValueOf(in).Elem() },
		func(in *Input) reflect.Value { return reflect.ValueOf(&in.Run).Elem() },
		func(in *Input) reflect.Value { return reflect.ValueOf(&in.Request).Elem() },
		func(in *Input) reflect.Value { return reflect.ValueOf(&in.Destination).Elem() },
	} {
		for i := range part(list[0]).NumField() {
			vary(part, i)
		}
	}
	return list
}

// example is one policy with inputs, and what is right for each of them.
type example struct {
	text   string
	engine *Engine
	inputs []*Input
	right  []Decision
}

// plainRego evaluates the whole document by the public interface alone.
func plainRego(t *testing.T, q *query, in *Input, indexed bool) Decision {
	t.Helper()
	whole := newInputPlan(&reference{whole: true}, true)
	body := &parsedBody{}
	if in.Stage == StageRequest {
		body = parseParts(&in.Request, whole.parts)
	}
	document, err := ast.JSON(whole.build(in, body))
	if err != nil {
		t.Fatal(err)
	}
	rs, err := q.prepared.Eval(context.Background(), rego.EvalInput(document), rego.EvalTime(time.Unix(0, in.TimeNS).UTC()), rego.EvalRuleIndexing(indexed))
	if err != nil || len(rs) != 1 {
		return refusal(ReasonPolicyError, "", "")
	}
	value, err := ast.InterfaceToValue(rs[0].Expressions[0].Value)
	if err != nil {
		t.Fatal(err)
	}
	d, err := decode(ast.NewTerm(value), in.Stage)
	if err != nil {
		return refusal(ReasonPolicyError, "", "")
	}
	return d
}

func newExample(t *testing.T, seed uint64, composed func() (*composer, error)) *example {
	t.Helper()
	d := rolled(seed)
	x := &example{text: d.policy()}
	x.engine = load(t, x.text)
	x.engine.composer = composed // it depends on no policy
	x.inputs = d.around()
	return x
}

// byPlainRego takes for right what plain Rego says, and by its index alike.
func (x *example) byPlainRego(t *testing.T, seed uint64) {
	t.Helper()
	q := wholeQuery(t, x.engine)
	for _, in := range x.inputs {
		plain := stripped(plainRego(t, q, in, true))
		if other := stripped(plainRego(t, q, in, false)); !reflect.DeepEqual(plain, other) {
			t.Fatalf("seed %d: the rule index changes\n%+v\nto\n%+v\n%s", seed, other, plain, x.text)
		}
		x.right = append(x.right, plain)
	}
}

// byTheEngine takes for right what the engine says that remembers nothing.
func (x *example) byTheEngine() {
	cache := x.engine.cache
	x.engine.cache = nil
	for _, in := range x.inputs {
		x.right = append(x.right, stripped(x.engine.Decide(context.Background(), in)))
	}
	x.engine.cache = cache
}

// differs is the first input that the engine judges otherwise than is right.
func (x *example) differs() (in *Input, got, right Decision) {
	for range 2 { // what is remembered shows the second time
		for i, in := range x.inputs {
			got := x.engine.Decide(context.Background(), in)
			if got.Reason == ReasonDenied && x.right[i].Verdict != Deny && !parseParts(&in.Request, allParts&^ofPath).judged() {
				continue // the guard of bodies, which plain Rego does not have
			}
			if got = stripped(got); !reflect.DeepEqual(got, x.right[i]) {
				return in, got, x.right[i]
			}
		}
	}
	return nil, Decision{}, Decision{}
}

func TestRandomPoliciesAgreeWithPlainRego(t *testing.T) {
	fresh := rand.Uint64()
	composed := sync.OnceValues(newComposer)
	verdicts, cached := map[Verdict]int{}, 0
	for i := range uint64(36) {
		seed := i
		if i >= 24 {
			seed = fresh + i // and some that nobody has seen
		}
		x := newExample(t, seed, composed)
		x.byPlainRego(t, seed)
		for _, d := range x.right {
			verdicts[d.Verdict]++
		}
		cache := x.engine.cache
		for _, x.engine.cache = range []*decisionCache{cache, nil} {
			if in, got, plain := x.differs(); in != nil {
				t.Fatalf("seed %d, cache %v: %+v\nis judged\n%+v\nplain Rego:\n%+v\n%s", seed, x.engine.cache != nil, in, got, plain, x.text)
			}
		}
		if cache != nil && cache.len() > 0 {
			cached++
		}
		x.indexAgrees(t, seed)
	}
	if len(verdicts) < 5 || cached < 10 {
		t.Errorf("the policies show only %v, and %d were cached", verdicts, cached)
	}
}

// With the cache and without, the decisions of random policies are the same; with
// any part left out of its keys they are not.
func TestRandomPoliciesAreRememberedRight(t *testing.T) {
	composed := sync.OnceValues(newComposer)
	var examples []*example
	for seed := range uint64(110) {
		x := newExample(t, seed, composed)
		if x.engine.cache == nil {
			continue
		}
		x.byTheEngine()
		if in, got, right := x.differs(); in != nil {
			t.Fatalf("seed %d: %+v\nis judged\n%+v\nwithout the cache:\n%+v\n%s", seed, in, got, right, x.text)
		}
		examples = append(examples, x)
	}
	noticed(t, examples)
}

// indexAgrees compares the entries that the engine finds with and without the index.
func (x *example) indexAgrees(t *testing.T, seed uint64) {
	t.Helper()
	for _, in := range x.inputs {
		q, body := &x.engine.request, &noBody
		if in.Stage == StageConnection {
			q = &x.engine.connection
		} else {
			body = parseParts(&in.Request, x.engine.parts)
		}
		if q.query == nil {
			continue
		}
		document := x.engine.plan.build(in, body)
		a, err1 := q.query.eval(context.Background(), document, topdown.NewCancel(), in.TimeNS)
		b, err2 := q.query.eval(context.Background(), document, topdown.NewCancel(), in.TimeNS, rego.EvalRuleIndexing(false))
		if (err1 == nil) != (err2 == nil) || err1 == nil && !a.Equal(b) {
			t.Fatalf("seed %d: %v %v\n%v %v\n%s", seed, a, err1, b, err2, x.text)
		}
	}
}

// noticed drops one part after another from the keys of the cache; each time some
// example must be judged wrongly.
func noticed(t *testing.T, examples []*example) {
	dropped := 0
	for _, name := range []string{"method", "scheme", "host", "port", "path", "segments", "query", "headers", "protocol", "content_type", "content_length", "id", "task", "agent", "user", "image_digest", "labels", "transparent", "literal", "sni"} {
		found := false
		for _, x := range examples {
			if found {
				continue
			}
			x.engine.cache = newDecisionCache()
			x.engine.plan.runs.terms = nil
			restore := []func(){}
			for _, group := range [][]field{x.engine.plan.request, x.engine.plan.connection, x.engine.plan.run, x.engine.plan.dest} {
				for i := range group {
					if group[i].name == name && group[i].mix != nil {
						mix := group[i].mix
						group[i].mix = nil
						restore = append(restore, func() { group[i].mix = mix })
					}
				}
			}
			in, _, _ := x.differs()
			found = in != nil
			for _, f := range restore {
				f()
			}
		}
		if found {
			dropped++
		} else {
			t.Errorf("without %s in the key nothing was judged wrongly", name)
		}
	}
	t.Logf("%d parts, each of them needed", dropped)
}
