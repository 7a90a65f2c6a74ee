package policies

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// reference is a tree of the parts of the input that a policy refers to. A
// reference whose next step is not constant takes in everything below.
type reference struct {
	whole bool
	parts map[string]*reference
}

func (r *reference) add(path []string, whole bool) {
	node := r
	for _, step := range path {
		if node.whole {
			return
		}
		if node.parts == nil {
			node.parts = map[string]*reference{}
		}
		next := node.parts[step]
		if next == nil {
			next = &reference{}
			node.parts[step] = next
		}
		node = next
	}
	if whole {
		node.whole, node.parts = true, nil
	}
}

// has reports whether anything at or below path, or above it as a whole, is referred to.
func (r *reference) has(path ...string) bool {
	node := r
	for _, step := range path {
		if node.whole {
			return true
		}
		node = node.parts[step]
		if node == nil {
			return false
		}
	}
	return true
}

// ambientTime are the built-ins whose result depends on the time of the decision.
var ambientTime = map[string]bool{
	ast.NowNanos.Name:        true,
	ast.JWTDecodeVerify.Name: true,
}

// partsOf are the parsed parts that a set of references reads. With named, a
// reference to all of the request counts as one to its body alone.
func partsOf(refs *reference, named bool) part {
	var parts part
	request := refs
	if !request.whole {
		if request = request.parts["request"]; request == nil {
			return 0
		}
	}
	if request.whole {
		if named {
			return partBody
		}
		return allParts
	}
	for name := range request.parts {
		parts |= partNames[name]
	}
	return parts
}

// analyse walks all that the authors wrote, whether a decision reaches it or
// not: a rule that looks unused may be reached through a computed reference.
func analyse(compiler *ast.Compiler) *inputPlan {
	refs := &reference{}
	time := false
	constants := map[string]*ast.Term{}
	for _, name := range sortedKeys(compiler.Modules) {
		walkRefs(compiler.Modules[name], func(ref ast.Ref) {
			if ambientTime[ref.String()] {
				time = true
			}
			addInputRef(refs, ref)
		})
		collectConstants(constants, compiler.Modules[name])
	}
	plan := newInputPlan(refs, time)
	plan.constants = constants
	return plan
}

// walkRefs calls visit for every reference in x, also for those inside other
// references, and for a root document that stands alone as a variable.
func walkRefs(x any, visit func(ast.Ref)) {
	var visitor *ast.GenericVisitor
	visitor = ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case ast.Ref:
			visit(x)
			for i, term := range x {
				if _, root := term.Value.(ast.Var); i > 0 || !root {
					visitor.Walk(term)
				}
			}
			return true
		case ast.Var:
			if x.Equal(ast.InputRootDocument.Value) || x.Equal(ast.DefaultRootDocument.Value) {
				visit(ast.Ref{ast.NewTerm(x)})
			}
		}
		return false
	})
	visitor.Walk(x)
}

// addInputRef adds one reference when it starts at the input.
func addInputRef(refs *reference, ref ast.Ref) {
	if len(ref) == 0 || !ref[0].Equal(ast.InputRootDocument) {
		return
	}
	path := constantPath(ref)[1:]
	refs.add(path, true)
}

// paths lists the references, sorted: "request.host", or "request.*" for a
// whole subtree that is more than one field.
func (r *reference) paths(prefix string) []string {
	if len(r.parts) == 0 {
		return []string{prefix}
	}
	var list []string
	for _, name := range sortedKeys(r.parts) {
		full := name
		if prefix != "" {
			full = prefix + "." + name
		}
		list = append(list, r.parts[name].paths(full)...)
	}
	return list
}

// Reads lists the parts of the input that the policy refers to, such as
// "request.host"; a computed reference lists the part above it.
func (e *Engine) Reads() []string {
	if e.plan.refs == nil {
		return nil
	}
	return e.plan.refs.paths("")
}
