package policies

import (
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Severities of a finding. Only errors change an exit code.
const (
	SeverityError   = "error"
	SeverityWarning = "warning"
)

// Finding is something in a policy that loads but cannot do what it says.
type Finding struct {
	Severity string `json:"severity"`
	Code     string `json:"code"` // stable name of the check, such as unknown-key
	Problem
}

func (f Finding) String() string {
	p := f.Problem
	p.Message = f.Severity + ": " + p.Message + " [" + f.Code + "]"
	return p.String()
}

// entryKeys are the keys of each kind of entry, as the composition has them.
var entryKeys = map[string][]string{
	"allow":       {"credential", "encoded_slash", "hint", "limits", "rule"},
	"deny":        {"hint", "message", "rule"},
	"ask":         {"message", "rule", "scope", "timeout"},
	"passthrough": {"rule"},
	"tunnel":      {"rule"},
}

// Check looks for what is provably wrong, sorted by file and line. It
// evaluates nothing.
func (e *Engine) Check() []Finding {
	c := &checker{}
	for _, r := range e.rules {
		c.entry(r)
		c.credential(r, e.creds)
		c.conditions(r, e.creds)
	}
	for _, file := range sortedKeys(e.parsed) {
		c.literals(e.parsed[file])
	}
	for _, r := range e.guardedRules() {
		c.add(SeverityWarning, "body-truncation", r.loc, "%s rule %q depends on the body: where it cannot be judged the request is denied; mention input.request.body_truncated or input.request.unparsed to decide otherwise", r.kind, r.name)
	}
	if e.floor != nil {
		c.findings = append(c.findings, e.floor.Check()...)
	}
	sort.SliceStable(c.findings, func(i, j int) bool {
		a, b := c.findings[i], c.findings[j]
		if a.File != b.File {
			return a.File < b.File
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	return c.findings
}

func (e *Engine) guardedRules() []entryRule {
	if e.guard == nil {
		return nil
	}
	return e.guard.rules
}

type checker struct {
	findings []Finding
}

func (c *checker) add(severity, code string, loc *ast.Location, format string, args ...any) {
	c.findings = append(c.findings, Finding{Severity: severity, Code: code, Problem: at(loc, format, args...)})
}

// entry checks an entry that is written out; a computed one is checked when it
// is made.
func (c *checker) entry(r entryRule) {
	if !r.literal {
		return
	}
	for _, key := range r.keys {
		if !slices.Contains(entryKeys[r.kind], key) {
			c.add(SeverityError, "unknown-key", r.loc, "%s entry: unknown key %q makes every decision in which it matches a policy-error (known: %s)", r.kind, key, strings.Join(entryKeys[r.kind], ", "))
		}
	}
	if !slices.Contains(r.keys, "rule") {
		c.add(SeverityError, "no-rule-name", r.loc, "%s entry has no `rule`", r.kind)
	}
	if text, ok := r.strings["rule"]; ok && text == "" {
		c.add(SeverityError, "no-rule-name", r.loc, "%s entry has an empty `rule`", r.kind)
	}
	if r.title == "" && r.kind != "deny" {
		c.add(SeverityWarning, "no-title", r.loc, "%s rule %q has no `# METADATA` title, which is what agents and auditors read", r.kind, r.name)
	}
}

func (c *checker) credential(r entryRule, known map[string]CredentialInfo) {
	name, named := r.strings["credential"]
	if !named || known == nil {
		return
	}
	if _, ok := known[name]; !ok {
		c.add(SeverityError, "unknown-credential", r.loc, "allow rule %q names credential %q, which the configuration does not define", r.name, name)
	}
}

// literals checks constants that are compared with fields of the request.
func (c *checker) literals(module *ast.Module) {
	ast.WalkExprs(module, func(expr *ast.Expr) bool {
		if !expr.IsCall() || len(expr.Operands()) != 2 {
			return false
		}
		a, b := expr.Operand(0), expr.Operand(1)
		switch expr.Operator().String() {
		case ast.Equal.Name, ast.Equality.Name:
			c.compare(a, b)
			c.compare(b, a)
		case ast.Member.Name:
			c.member(a, b)
		}
		return false
	})
}

func (c *checker) member(field, collection *ast.Term) {
	switch v := collection.Value.(type) {
	case ast.Set:
		v.Foreach(func(t *ast.Term) { c.compare(field, t) })
	case *ast.Array:
		v.Foreach(func(t *ast.Term) { c.compare(field, t) })
	}
}

func (c *checker) compare(field, constant *ast.Term) {
	ref, ok := field.Value.(ast.Ref)
	if !ok {
		return
	}
	text, ok := constant.Value.(ast.String)
	if !ok {
		return
	}
	switch ref.String() {
	case "input.request.host":
		if why := impossibleHost(string(text)); why != "" {
			c.add(SeverityError, "impossible-host", constant.Location, "host %q can never match: %s", string(text), why)
		}
	case "input.request.method":
		if upper := strings.ToUpper(string(text)); upper != string(text) {
			c.add(SeverityWarning, "method-case", constant.Location, "method %q matches only as written; methods are case-sensitive (%s?)", string(text), upper)
		}
	case "input.request.path":
		if text == "" || text[0] != '/' && text != "*" {
			c.add(SeverityWarning, "path-form", constant.Location, "path %q can never match: a path starts with /", string(text))
		}
	}
}

// impossibleHost says why no canonical host can equal s, or "".
func impossibleHost(s string) string {
	if _, err := netip.ParseAddr(s); err == nil {
		return ""
	}
	switch {
	case s == "":
		return "a host is never empty"
	case strings.Contains(s, "://"):
		return "input.request.host has no scheme"
	case strings.Contains(s, "/"):
		return "input.request.host has no path"
	case strings.Contains(s, ":"):
		return "input.request.host has no port; compare input.request.port"
	case strings.Contains(s, "*"):
		return "== does not know wildcards; use glob.match(pattern, [\".\"], input.request.host)"
	case strings.HasSuffix(s, "."):
		return "input.request.host has no trailing dot"
	case s != strings.ToLower(s):
		return "input.request.host is lower case"
	}
	for _, r := range s {
		if r <= ' ' || r > '~' {
			return fmt.Sprintf("input.request.host is ASCII (punycode), and %q is not", r)
		}
	}
	return ""
}
