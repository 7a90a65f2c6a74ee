package policies

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"warder/internal/identity"
)

// maxDetail bounds Decision.Detail, in bytes.
const maxDetail = 1024

const (
	messageError   = "the policy could not be evaluated"
	messageTimeout = "the policy took too long"
)

// Decide judges one request (or, at stage connection, one connection). It
// never fails: whatever goes wrong is a denying Decision whose Detail says,
// for operators, what and where. Rules and Limits of the Decision are shared
// with later ones and must not be changed.
func (e *Engine) Decide(ctx context.Context, in *Input) Decision {
	d := e.decide(ctx, in)
	d.ID = identity.NewID()
	d.Revision, d.Digest, d.Mode = e.Revision(), e.digest, e.mode
	return d
}

func (e *Engine) decide(ctx context.Context, in *Input) (d Decision) {
	defer func() {
		if r := recover(); r != nil {
			d = refusal(ReasonPolicyError, messageError, fmt.Sprintf("panic: %v", r))
		}
	}()
	if e.denyAll != "" {
		return refusal(ReasonNoRule, e.denyAll, "")
	}
	if in == nil {
		return refusal(ReasonPolicyError, messageError, "no input")
	}
	if err := ctx.Err(); err != nil {
		return refusal(ReasonPolicyTimeout, messageTimeout, "before evaluation: "+err.Error())
	}
	body := &noBody
	if e.parts != 0 && in.Stage == StageRequest {
		body = parseParts(&in.Request, e.parts)
	}
	if e.cache == nil || !body.plain() {
		return e.evaluate(ctx, in, body)
	}
	space := e.cache.keys.Get().(*[]byte)
	defer e.cache.keys.Put(space)
	key := e.plan.cacheKey((*space)[:0], in)
	if e.floor != nil {
		key = e.floor.plan.cacheKey(key, in)
	}
	if len(key) > maxCacheKey {
		return e.evaluate(ctx, in, body)
	}
	if known := e.cache.get(key); known != nil {
		return *known
	}
	d = e.evaluate(ctx, in, body)
	e.cache.put(key, d)
	return d
}

// noBody is the body of a request without one. It is never changed.
var noBody parsedBody

func (e *Engine) evaluate(ctx context.Context, in *Input, body *parsedBody) Decision {
	d := e.evaluateEntries(ctx, in, body)
	if e.keep {
		e.keepInput(&d, in, body)
	}
	return d
}

func (e *Engine) evaluateEntries(ctx context.Context, in *Input, body *parsedBody) Decision {
	e.Prepare() // not within the budget
	// The whole decision has one budget. The watchdog stops the evaluator, which
	// looks at the flag at every step and inside its long-running built-ins.
	budget := e.timeout
	if deadline, ok := ctx.Deadline(); ok {
		budget = min(budget, time.Until(deadline))
	}
	watch := e.watchdogs.start(budget)
	defer watch.stop()

	d, err := e.judge(ctx, in, nil, body, watch.cancel)
	return e.outcome(d, err, watch, budget)
}

// outcome turns a fault of an evaluation into a denial.
func (e *Engine) outcome(d Decision, err error, watch *watchdog, budget time.Duration) Decision {
	switch {
	case watch.cancel.Cancelled() || topdown.IsCancel(err):
		return refusal(ReasonPolicyTimeout, messageTimeout, fmt.Sprintf("stopped after %v", budget))
	case err != nil:
		return refusal(ReasonPolicyError, messageError, describe(err))
	}
	return e.locate(d)
}

// judge evaluates the entries, and those of the floor, and composes them. A nil
// document is made of in and body.
func (e *Engine) judge(ctx context.Context, in *Input, document ast.Value, body *parsedBody, cancel topdown.Cancel) (Decision, error) {
	input, sets, err := e.entries(ctx, in, document, body, cancel)
	if err != nil {
		return Decision{}, err
	}
	var floorInput ast.Value
	if e.floor != nil {
		var floorSets entrySets
		if floorInput, floorSets, err = e.floor.entries(ctx, in, document, body, cancel); err != nil {
			return Decision{}, err
		}
		sets = append(sets, floorSets...)
	}
	c, err := e.composer()
	if err != nil {
		return Decision{}, err
	}
	d, err := c.compose(ctx, in, sets, cancel)
	if err != nil || d.Verdict == Deny || body.judged() {
		return d, err
	}
	rule, err := e.guard.unjudged(ctx, input, body.unseen, cancel, in.TimeNS)
	if err == nil && rule == nil && e.floor != nil {
		rule, err = e.floor.guard.unjudged(ctx, floorInput, body.unseen, cancel, in.TimeNS)
	}
	if err != nil || rule == nil {
		return d, err
	}
	return refuseUnjudged(rule, body), nil
}

// entries evaluates the entries of this policy alone, and returns its input.
func (e *Engine) entries(ctx context.Context, in *Input, document ast.Value, body *parsedBody, cancel topdown.Cancel) (ast.Value, entrySets, error) {
	q := &e.request
	switch in.Stage {
	case StageRequest:
	case StageConnection:
		q = &e.connection
	default:
		return nil, nil, fmt.Errorf("input.stage %q is neither %s nor %s", in.Stage, StageRequest, StageConnection)
	}
	input := document
	if input == nil {
		input = e.plan.build(in, body)
	}
	sets, err := q.sets(ctx, input, cancel, in.TimeNS)
	return input, sets, err
}

// locate adds to the detail of a policy error where its rule is written.
func (e *Engine) locate(d Decision) Decision {
	if d.Reason != ReasonPolicyError {
		return d
	}
	for _, name := range d.Rules {
		for _, r := range e.allRules() {
			if r.name == name {
				d.Detail = r.location() + ": " + d.Detail
			}
		}
	}
	d.Detail = capped(d.Detail, maxDetail)
	return d
}

func refusal(reason, message, detail string) Decision {
	return Decision{Verdict: Deny, Reason: reason, Message: message, Detail: capped(detail, maxDetail)}
}

// describe names place and cause of an evaluation error.
func describe(err error) string {
	var te *topdown.Error
	if !errors.As(err, &te) {
		return err.Error()
	}
	text := te.Code + ": " + te.Message
	if te.Location != nil {
		text = fmt.Sprintf("%s:%d:%d: %s", te.Location.File, te.Location.Row, te.Location.Col, text)
	}
	return text
}

// capped bounds a text that may quote input, and keeps it on one line.
func capped(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
	if len(s) <= limit {
		return s
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
