package policies

import (
	"context"
	"fmt"
	"maps"

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
	parts []part // of each rule: what it reads and does not decide about itself
	query *query // nil: all rules are unconditional
}

// newBodyGuard returns nil when no deny or ask needs one.
func (e *Engine) newBodyGuard(ctx context.Context, modules map[string]*ast.Module) (*bodyGuard, error) {
	deps := bodyDependencies{compiler: e.compiler, known: map[*ast.Rule]part{}}
	guard := &bodyGuard{}
	module := &ast.Module{Package: &ast.Package{Path: ast.MustParseRef("data.warder.guard")}}
	for _, r := range e.rules {
		if r.kind != "deny" && r.kind != "ask" || r.compiled == nil {
			continue
		}
		parts := deps.rule(r.compiled) &^ mentionsUnparsed(r.compiled)
		if parts == 0 {
			continue
		}
		index := len(guard.rules)
		guard.rules, guard.parts = append(guard.rules, r), append(guard.parts, parts)
		module.Rules = append(module.Rules, skeleton(module, "unjudged", ast.IntNumberTerm(index), deps.independent(r.compiled.Body)))
	}
	if len(guard.rules) == 0 {
		return nil, nil
	}
	var err error // without a query each rule refuses every unseen body
	guard.query, err = e.prepareBeside(ctx, modules, guardFile, module, "data.warder.guard.unjudged")
	return guard, err
}

// prepareBeside prepares a query about a module of ours beside those of the policy, or
// returns nil when they do not compile together.
func (e *Engine) prepareBeside(ctx context.Context, modules map[string]*ast.Module, file string, ours *ast.Module, about string) (*query, error) {
	all := maps.Clone(modules)
	all[file] = ours
	compiler, err := newCompiler(ctx, e.store, e.txn, false)
	if err != nil {
		return nil, err
	}
	if compiler.Compile(all); compiler.Failed() {
		return nil, nil
	}
	return prepare(ctx, compiler, e.store, e.txn, about)
}

// skeleton makes `set contains element if body`.
func skeleton(module *ast.Module, set string, element *ast.Term, body ast.Body) *ast.Rule {
	if len(body) == 0 {
		body = ast.NewBody(ast.NewExpr(ast.BooleanTerm(true)))
	}
	head := ast.NewHead(ast.Var(set), element)
	return &ast.Rule{Head: head, Body: body, Module: module}
}

// mentionsUnparsed are the parts about which a rule decides itself when they
// cannot be seen: body_truncated and unparsed speak of the body, graphql.unparsed
// of the GraphQL part, and so on.
func mentionsUnparsed(rule *ast.Rule) part {
	var parts part
	walkRefs(rule, func(ref ast.Ref) {
		path := constantPath(ref)
		if len(path) < 3 || path[0] != "input" || path[1] != "request" {
			return
		}
		if path[2] == "body_truncated" || path[2] == "unparsed" || len(path) > 3 && path[3] == "unparsed" {
			parts |= partNames[path[2]]
		}
	})
	return parts
}

// unjudged returns the first rule that could have matched what was not seen.
func (g *bodyGuard) unjudged(ctx context.Context, input ast.Value, unseen part, cancel topdown.Cancel, now int64) (*entryRule, error) {
	if g == nil {
		return nil, nil
	}
	if g.query == nil {
		return g.first(unseen, func(int) bool { return true }), nil
	}
	term, err := g.query.eval(ctx, input, cancel, now)
	if err != nil {
		return nil, err
	}
	set, ok := term.Value.(ast.Set)
	if !ok {
		return nil, errUndefined
	}
	return g.first(unseen, func(i int) bool { return set.Contains(ast.IntNumberTerm(i)) }), nil
}

func (g *bodyGuard) first(unseen part, matches func(int) bool) *entryRule {
	for i := range g.rules {
		if g.parts[i]&unseen != 0 && matches(i) {
			return &g.rules[i]
		}
	}
	return nil
}

// refuseUnjudged turns a decision into a denial because rule r could not see the body.
func refuseUnjudged(r *entryRule, body *parsedBody) Decision {
	why := "it cannot be read without doubt"
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

// bodyDependencies knows what depends on parsed parts of the request.
type bodyDependencies struct {
	compiler *ast.Compiler
	known    map[*ast.Rule]part
}

// rule returns the parts that a compiled rule reads, itself or through others.
func (b bodyDependencies) rule(r *ast.Rule) part {
	if parts, ok := b.known[r]; ok {
		return parts
	}
	b.known[r] = 0 // rules cannot be recursive; this only ends the walk through else
	b.known[r] = b.node(r)
	return b.known[r]
}

// node returns the parts that anything in x reads.
func (b bodyDependencies) node(x any) part {
	var parts part
	walkRefs(x, func(ref ast.Ref) { parts |= b.ref(ref) })
	return parts
}

func (b bodyDependencies) ref(ref ast.Ref) part {
	var parts part
	switch {
	case len(ref) == 0:
	case ref[0].Equal(ast.InputRootDocument):
		read := &reference{}
		addInputRef(read, ref)
		parts = partsOf(read, true)
	case ref[0].Equal(ast.DefaultRootDocument):
		for _, r := range b.compiler.GetRulesDynamicWithOpts(ref, ast.RulesOptions{IncludeHiddenModules: true}) {
			parts |= b.rule(r)
		}
	}
	return parts
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
			if b.node(expr) != 0 || len(vars.Intersect(tainted)) > 0 {
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
