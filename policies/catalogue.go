package policies

import (
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// RuleDoc is what the policy says of one of its rules: from the entry itself
// and the `# METADATA` comment above it.
type RuleDoc struct {
	Kind       string `json:"kind"` // allow | deny | ask | passthrough | tunnel
	Rule       string `json:"rule"` // "" when the name is computed
	Title      string `json:"title,omitempty"`
	Owner      string `json:"owner,omitempty"` // custom.owner
	Hint       string `json:"hint,omitempty"`
	Message    string `json:"message,omitempty"`
	Credential string `json:"credential,omitempty"`
	File       string `json:"file"`
	Line       int    `json:"line"`
	Floor      bool   `json:"floor,omitempty"` // written in the operator's floor
}

// entryRule is one rule that contributes entries, as written.
type entryRule struct {
	kind     string
	name     string            // constant name, or ""
	strings  map[string]string // constant texts of the entry
	keys     []string          // constant keys of the entry
	literal  bool              // the entry is written out, with constant keys
	title    string
	owner    string
	loc      *ast.Location
	floor    bool
	written  *ast.Rule
	compiled *ast.Rule
}

func (r entryRule) location() string {
	return fmt.Sprintf("%s:%d", r.loc.File, r.loc.Row)
}

// entryRules collects the rules of package warder.egress in the order of files and lines.
func entryRules(f *folder, compiler *ast.Compiler) []entryRule {
	var list []entryRule
	for _, file := range sortedKeys(f.modules) {
		module := f.modules[file]
		pkg := constantPath(module.Package.Path)
		compiled := compiler.Modules[file]
		for i, rule := range module.Rules {
			kind, problem := entryKind(pkg, rule)
			if kind == "" || problem != nil {
				continue
			}
			r := entryRule{kind: kind, loc: rule.Location, written: rule, strings: map[string]string{}}
			if i < len(compiled.Rules) {
				r.compiled = compiled.Rules[i]
			}
			r.readHead(rule.Head.Key)
			r.readNotes(rule)
			list = append(list, r)
		}
	}
	return list
}

func (r *entryRule) readHead(key *ast.Term) {
	object, ok := key.Value.(ast.Object)
	if !ok {
		return
	}
	r.literal = true
	object.Foreach(func(k, v *ast.Term) {
		name, ok := k.Value.(ast.String)
		if !ok {
			r.literal = false
			return
		}
		r.keys = append(r.keys, string(name))
		if text, ok := v.Value.(ast.String); ok {
			r.strings[string(name)] = string(text)
		}
	})
	slices.Sort(r.keys)
	r.name = r.strings["rule"]
}

func (r *entryRule) readNotes(rule *ast.Rule) {
	for _, a := range rule.Annotations {
		if a.Title != "" {
			r.title = a.Title
		}
		if owner, ok := a.Custom["owner"].(string); ok {
			r.owner = owner
		}
	}
}

// allRules are the rules of the policy and those of the floor.
func (e *Engine) allRules() []entryRule {
	if e.floor == nil {
		return e.rules
	}
	all := slices.Clone(e.rules)
	for _, r := range e.floor.rules {
		r.floor = true
		all = append(all, r)
	}
	return all
}

// Catalogue lists the rules that contribute entries, for documentation and
// for telling an agent what it may call. Those of the floor come last. The
// caller owns the list.
func (e *Engine) Catalogue() []RuleDoc {
	rules := e.allRules()
	docs := make([]RuleDoc, 0, len(rules))
	for _, r := range rules {
		docs = append(docs, r.doc())
	}
	return docs
}

func (r entryRule) doc() RuleDoc {
	return RuleDoc{
		Kind: r.kind, Rule: r.name, Title: r.title, Owner: r.owner,
		Hint: r.strings["hint"], Message: r.strings["message"], Credential: r.strings["credential"],
		File: r.loc.File, Line: r.loc.Row, Floor: r.floor,
	}
}
