package policies

import (
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Values that stay the same from one input to the next are made once: the texts
// that the policy itself compares with, and the run.

// Bounds of what is kept. Beyond them values are made each time.
const (
	maxConstants     = 1 << 16
	maxConstantBytes = 256
	maxRunTerms      = 256
	maxRunKey        = 4096 // bytes
)

// collectConstants keeps the texts of x.
func collectConstants(constants map[string]*ast.Term, x any) {
	ast.WalkTerms(x, func(t *ast.Term) bool {
		if s, ok := t.Value.(ast.String); ok && len(s) <= maxConstantBytes && len(constants) < maxConstants {
			if _, known := constants[string(s)]; !known {
				constants[string(s)] = &ast.Term{Value: t.Value} // without its place in a file
			}
		}
		return false
	})
}

func (p *inputPlan) textTerm(s string) *ast.Term {
	if t := p.constants[s]; t != nil {
		return t
	}
	return ast.InternedTerm(s)
}

// runTerms remembers input.run by all that it is made of.
type runTerms struct {
	mu    sync.RWMutex
	terms map[string]*ast.Term // by the key of the run's fields; never changed once here; guarded by mu
}

// runTerm makes input.run, which is the same for all requests of a run.
func (p *inputPlan) runTerm(in *Input) *ast.Term {
	var space [256]byte
	key := space[:0]
	for i := range p.run {
		if p.run[i].mix != nil {
			key = p.run[i].mix(key, in)
		}
	}
	if len(key) > maxRunKey {
		return p.object(p.run, in, nil)
	}
	p.runs.mu.RLock()
	t := p.runs.terms[string(key)]
	p.runs.mu.RUnlock()
	if t != nil {
		return t
	}
	t = p.object(p.run, in, nil)
	p.runs.mu.Lock()
	defer p.runs.mu.Unlock()
	if p.runs.terms == nil || len(p.runs.terms) >= maxRunTerms {
		p.runs.terms = make(map[string]*ast.Term)
	}
	p.runs.terms[strings.Clone(string(key))] = t
	return t
}
