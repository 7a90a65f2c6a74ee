package policies

import (
	"context"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Before a body is read, the rest of the request often says that it does not
// matter: no rule over the body is for that host, or the request is refused
// whatever its body says. Then nothing of the body is asked for.
//
// As in the guard (guard.go), a rule over the body is taken with every condition
// left out that depends on it. What is left must hold for the rule to match, so a
// rule that does not match so matches no body.

const foreseeFile = "warder:foresee.rego"

// inBody are the parts that only the body can give.
const inBody = allParts &^ (partGRPC | ofPath)

// What a rule says about a body that nobody has read yet.
const (
	mayAllow   = "allow" // an allow can match
	willDeny   = "deny"  // a deny matches, whatever the body is
	readsBody  = "body"  // an allow or deny over the body can match
	asksByBody = "ask"   // an ask over the body can match
)

// foresight answers NeedsBody. Without a query every body may matter.
type foresight struct{ query *query }

// newForesight returns nil when no rule reads a body.
func (e *Engine) newForesight(ctx context.Context, modules map[string]*ast.Module) (*foresight, error) {
	if !e.plan.needs.Body {
		return nil, nil
	}
	deps := bodyDependencies{compiler: e.compiler, known: map[*ast.Rule]part{}}
	module := &ast.Module{Package: &ast.Package{Path: ast.MustParseRef("data.warder.foresee")}}
	for _, r := range e.rules {
		if r.compiled == nil {
			return &foresight{}, nil
		}
		for _, says := range foretold(r.kind, deps.rule(r.compiled)&inBody != 0) {
			module.Rules = append(module.Rules, skeleton(module, "found", ast.StringTerm(says), deps.independent(r.compiled.Body)))
		}
	}
	if len(module.Rules) == 0 { // something else of the policy reads it, in vain
		return &foresight{}, nil
	}
	query, err := e.prepareBeside(ctx, modules, foreseeFile, module, "data.warder.foresee.found")
	return &foresight{query}, err
}

// foretold is what it says that an entry can match without its conditions over the body.
func foretold(kind string, overBody bool) []string {
	switch {
	case kind == "allow" && overBody:
		return []string{mayAllow, readsBody}
	case kind == "allow":
		return []string{mayAllow}
	case kind == "deny" && overBody:
		return []string{readsBody}
	case kind == "deny":
		return []string{willDeny}
	case kind == "ask" && overBody:
		return []string{asksByBody}
	}
	return nil
}

// NeedsBody reports whether Decide has to see the body of a request that has one:
// a rule over the body can match, and without it the request is not refused
// already. in is what Decide will be given, without the body. Where NeedsBody is
// false, Decide gives without the body a verdict that no body would change, and
// what is refused is refused with any; the rules it names are those that were
// judged.
func (e *Engine) NeedsBody(ctx context.Context, in *Input) (need bool) {
	defer func() {
		if recover() != nil {
			need = true
		}
	}()
	if !e.needs.Body || in == nil || in.Stage != StageRequest {
		return false
	}
	watch := e.watchdogs.start(e.timeout)
	defer watch.stop()
	found := map[string]bool{}
	for _, engine := range []*Engine{e, e.floor} {
		if engine == nil || engine.foresight == nil {
			continue
		}
		if !engine.foresee(ctx, in, found, engine == e, watch) {
			return true
		}
	}
	if e.foresight == nil { // only the floor reads bodies: what it narrows is not known here
		found[mayAllow] = true
	}
	if found[asksByBody] {
		return true
	}
	return found[readsBody] && (e.mode == ModeMonitor || found[mayAllow] && !found[willDeny])
}

// foresee adds what is found, and is false when that is not all. The floor's allow
// entries allow nothing by themselves.
func (e *Engine) foresee(ctx context.Context, in *Input, found map[string]bool, allows bool, watch *watchdog) bool {
	if e.foresight.query == nil {
		return false
	}
	term, err := e.foresight.query.eval(ctx, e.plan.build(in, &noBody), watch.cancel, in.TimeNS)
	if err != nil {
		return false
	}
	set, ok := term.Value.(ast.Set)
	if !ok {
		return false
	}
	for _, says := range []string{mayAllow, willDeny, readsBody, asksByBody} {
		if set.Contains(ast.StringTerm(says)) && (allows || says != mayAllow) {
			found[says] = true
		}
	}
	return true
}
