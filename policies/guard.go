package policies

import (
	"context"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// A deny or ask over the body says nothing about a body it cannot see, and
// silence would let the request through. The guard closes that: for each such
// rule, unless it mentions body_truncated or unparsed itself, it asks whether
// the rule could match if the body were right: the rule with every condition
// left out that depends on the body. Leaving a condition out of a conjunction
// can only make it match more, so the guard errs on the side of refusing.

const guardFile = "warder:guard.rego"

type bodyGuard struct {
	rules []entryRule
	query *query // nil: all rules are unconditional
}

// newBodyGuard returns nil when no deny or ask needs one.
func (e *Engine) newBodyGuard(ctx context.Context, modules map[string]*ast.Module) (*bodyGuard, error) {
	deps := bodyDependencies{compiler: e.compiler, known: map[*ast.Rule]bool{}}
	guard := &bodyGuard{}
	module := &ast.Module{Package: &ast.Package{Path: ast.MustParseRef("data.warder.guard")}}
	for _, r := range e.rules {
		if r.kind != "deny" && r.kind != "ask" || r.compiled == nil {
			continue
		}
		if !deps.rule(r.compiled) || mentionsUnparsed(r.compiled) {
			continue
		}
		index := len(guard.rules)
		guard.rules = append(guard.rules, r)
		module.Rules = append(module.Rules, skeleton(module, index, deps.independent(r.compiled.Body)))
	}
	if len(guard.rules) == 0 {
		return nil, nil
	}
	all, err := withComposition(modules)
	if err != nil {
		return nil, err
	}
	all[guardFile] = module
	compiler, err := newCompiler(ctx, e.store, e.txn, false)
	if err != nil {
		return nil, err
	}
	if compiler.Compile(all); compiler.Failed() {
		return guard, nil // without conditions, so each rule refuses every unseen body
	}
	guard.query, err = prepare(ctx, compiler, e.store, e.txn, "data.warder.guard.unjudged")
	return guard, err
}

// skeleton makes `unjudged contains index if body`.
func skeleton(module *ast.Module, index int, body ast.Body) *ast.Rule {
	if len(body) == 0 {
		body = ast.NewBody(ast.NewExpr(ast.BooleanTerm(true)))
	}
	head := ast.NewHead(ast.Var("unjudged"), ast.IntNumberTerm(index))
	return &ast.Rule{Head: head, Body: body, Module: module}
}

// mentionsUnparsed reports whether a rule handles bodies it cannot see.
func mentionsUnparsed(rule *ast.Rule) bool {
	found := false
	walkRefs(rule, func(ref ast.Ref) {
		path := constantPath(ref)
		if len(path) >= 3 && path[0] == "input" && path[1] == "request" && (path[2] == "body_truncated" || path[2] == "unparsed") {
			found = true
		}
	})
	return found
}

// unjudged returns the first rule that could have matched an unseen body.
func (g *bodyGuard) unjudged(ctx context.Context, input ast.Value, cancel topdown.Cancel, now int64) (*entryRule, error) {
	if g == nil {
		return nil, nil
	}
	if g.query == nil {
		return &g.rules[0], nil
	}
	term, err := g.query.eval(ctx, input, cancel, now)
	if err != nil {
		return nil, err
	}
	set, ok := term.Value.(ast.Set)
	if !ok {
		return nil, errUndefined
	}
	if set.Len() == 0 {
		return nil, nil
	}
	number, _ := set.Slice()[0].Value.(ast.Number) // another type is not a number below
	index, ok := number.Int()
	if !ok || index < 0 || index >= len(g.rules) {
		return nil, errUndefined
	}
	return &g.rules[index], nil
}

// refuseUnjudged turns a decision into a denial because rule r could not see the body.
func refuseUnjudged(r *entryRule, body *parsedBody) Decision {
	why := "it is not JSON or a form that can be read without doubt"
	if body.truncated {
		why = "it is longer than what is read ahead"
	}
	d := refusal(ReasonDenied, "the body could not be judged: "+why,
		fmt.Sprintf("%s: %s rule %q depends on the body and does not mention body_truncated or unparsed", r.location(), r.kind, r.name))
	d.Rule = r.name
	if r.name != "" {
		d.Rules = []string{r.name}
	}
	return d
}

// bodyDependencies knows what depends on the body of the request.
type bodyDependencies struct {
	compiler *ast.Compiler
	known    map[*ast.Rule]bool
}

// rule reports whether a compiled rule reads the body, itself or through others.
func (b bodyDependencies) rule(r *ast.Rule) bool {
	if depends, ok := b.known[r]; ok {
		return depends
	}
	b.known[r] = false // rules cannot be recursive; this only ends the walk through else
	b.known[r] = b.node(r)
	return b.known[r]
}

// node reports whether anything in x reads the body.
func (b bodyDependencies) node(x any) bool {
	found := false
	walkRefs(x, func(ref ast.Ref) {
		found = found || b.ref(ref)
	})
	return found
}

func (b bodyDependencies) ref(ref ast.Ref) bool {
	switch {
	case len(ref) == 0:
		return false
	case ref[0].Equal(ast.InputRootDocument):
		read := &reference{}
		addInputRef(read, ref)
		for _, part := range bodyParts {
			if read.has("request", part) {
				return true
			}
		}
	case ref[0].Equal(ast.DefaultRootDocument):
		for _, r := range b.compiler.GetRulesDynamicWithOpts(ref, ast.RulesOptions{IncludeHiddenModules: true}) {
			if b.rule(r) {
				return true
			}
		}
	}
	return false
}

// independent returns copies of the conditions that neither read the body nor
// use a variable that a left-out condition uses.
func (b bodyDependencies) independent(body ast.Body) ast.Body {
	dropped := make([]bool, len(body))
	tainted := ast.VarSet{}
	for changed := true; changed; {
		changed = false
		for i, expr := range body {
			if dropped[i] {
				continue
			}
			vars := localVars(expr)
			if b.node(expr) || len(vars.Intersect(tainted)) > 0 {
				dropped[i], changed = true, true
				tainted.Update(vars)
			}
		}
	}
	var kept ast.Body
	for i, expr := range body {
		if !dropped[i] {
			kept.Append(expr.Copy())
		}
	}
	return kept
}

// localVars are all variables in x but the root documents and the names of
// built-in functions.
func localVars(x any) ast.VarSet {
	visitor := ast.NewVarVisitor().WithParams(ast.VarVisitorParams{SkipRefCallHead: true})
	visitor.Walk(x)
	vars := visitor.Vars().Copy()
	delete(vars, ast.InputRootDocument.Value.(ast.Var))
	delete(vars, ast.DefaultRootDocument.Value.(ast.Var))
	return vars
}
