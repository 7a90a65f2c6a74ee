package policies

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// maxShownValue bounds one value in an explanation, in bytes.
const maxShownValue = 200

// Explanation says how a decision came about.
type Explanation struct {
	Decision Decision
	// Rules are those that the stage judges, in the order of files and lines.
	Rules []RuleTrace
}

// RuleTrace says whether a rule matched and, if not, where it stopped.
type RuleTrace struct {
	RuleDoc
	Matched    bool        `json:"matched"`
	Held       int         `json:"held"`       // conditions that held before the first that did not
	Conditions int         `json:"conditions"` // as written
	Failed     *FailedStep `json:"failed,omitempty"`
}

// FailedStep is the condition that a rule could not get past. With several
// ways through the conditions before it, it is the one of the farthest way.
type FailedStep struct {
	File   string      `json:"file"`
	Line   int         `json:"line"`
	Text   string      `json:"text"`
	Values []ShownPart `json:"values,omitempty"`
}

// ShownPart is a part of the input that a condition reads. Value is JSON, cut
// to 200 bytes, or "undefined".
type ShownPart struct {
	Path  string `json:"path"`
	Value string `json:"value"`
}

// Explain judges an input document as DecideDocument does, and says of every
// rule whether it matched or which condition did not hold.
func (e *Engine) Explain(ctx context.Context, b []byte) (Explanation, error) {
	doc, err := e.readDocument(b)
	if err != nil {
		return Explanation{}, err
	}
	x := Explanation{Decision: e.decideDocument(ctx, doc)}
	x.Decision.Revision, x.Decision.Digest, x.Decision.Mode = e.Revision(), e.digest, e.mode
	x.Rules = e.trace(ctx, doc)
	return x, nil
}

// trace evaluates the entries once more, slowly, and reads the events.
func (e *Engine) trace(ctx context.Context, doc *document) []RuleTrace {
	ways := e.ways(ctx, doc)
	if e.floor != nil {
		maps.Copy(ways, e.floor.ways(ctx, doc))
	}
	var traces []RuleTrace
	for _, r := range e.allRules() {
		if slices.Contains(stageKinds[doc.in.Stage], r.kind) {
			traces = append(traces, r.traced(ways[r.compiled], doc.value))
		}
	}
	return traces
}

// ways says how far each rule of this policy alone got.
func (e *Engine) ways(ctx context.Context, doc *document) map[*ast.Rule]way {
	q := &e.request
	if doc.in.Stage == StageConnection {
		q = &e.connection
	}
	if q.query == nil {
		return map[*ast.Rule]way{}
	}
	watch := e.watchdogs.start(testTimeout)
	defer watch.stop()
	tracer := topdown.NewBufferTracer()
	// The outcome is in the decision; here the way counts, also of a failure.
	_, _ = q.query.eval(ctx, doc.value, watch.cancel, doc.in.TimeNS, rego.EvalQueryTracer(tracer), rego.EvalRuleIndexing(false))
	return readWays(*tracer)
}

// way is how far the evaluation of one rule got.
type way struct {
	matched bool
	failed  *ast.Expr
}

// readWays finds, for every rule, whether it was left with a result, and the
// last of its conditions that failed.
func readWays(events []*topdown.Event) map[*ast.Rule]way {
	ways := map[*ast.Rule]way{}
	rules := map[uint64]*ast.Rule{} // by the query that evaluates their bodies
	for _, event := range events {
		switch node := event.Node.(type) {
		case *ast.Rule:
			rules[event.QueryID] = node
			w := ways[node]
			w.matched = w.matched || event.Op == topdown.ExitOp
			ways[node] = w
		case *ast.Expr:
			rule, known := rules[event.QueryID]
			if !known || event.Op != topdown.FailOp {
				continue
			}
			if w := ways[rule]; w.failed == nil || node.Index >= w.failed.Index {
				w.failed = node
				ways[rule] = w
			}
		}
	}
	return ways
}

func (r entryRule) traced(w way, input ast.Value) RuleTrace {
	t := RuleTrace{RuleDoc: r.doc(), Matched: w.matched, Conditions: len(r.written.Body)}
	if w.matched {
		t.Held = t.Conditions
		return t
	}
	if w.failed == nil || w.failed.Location == nil {
		return t
	}
	// What the compiler made of a condition has the place of the condition.
	failed, place := w.failed, w.failed.Location
	for i, expr := range r.written.Body {
		if expr.Location != nil && !after(expr.Location, w.failed.Location) {
			failed, place, t.Held = expr, expr.Location, i
		}
	}
	t.Failed = &FailedStep{File: place.File, Line: place.Row, Text: capped(oneLine(string(place.Text)), maxDetail)}
	seen := map[string]bool{}
	walkRefs(failed, func(ref ast.Ref) {
		path := constantPath(ref)
		if len(path) < 2 || path[0] != "input" || seen[strings.Join(path, ".")] {
			return
		}
		seen[strings.Join(path, ".")] = true
		t.Failed.Values = append(t.Failed.Values, ShownPart{Path: strings.Join(path, "."), Value: shown(input, path[1:])})
	})
	return t
}

// after reports whether a stands behind b.
func after(a, b *ast.Location) bool { return a.Row > b.Row || a.Row == b.Row && a.Col > b.Col }

func shown(input ast.Value, path []string) string {
	object, _ := input.(ast.Object)
	if value := valueAt(object, path...); value != nil {
		return capped(value.String(), maxShownValue)
	}
	return "undefined"
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
