package policies

import (
	"net"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Only what is provable is said here: a rule that can never match, or that
// matches more than anybody who wrote it can have meant.

// atConnection are the parts of request that are known at stage connection.
var atConnection = []string{"host", "id", "port"}

// conditions checks the conditions of one rule together.
func (c *checker) conditions(r entryRule, known map[string]CredentialInfo) {
	allowed := constraints(r.written.Body)
	for _, field := range sortedKeys(allowed) {
		if len(allowed[field].values) == 0 {
			c.add(SeverityError, "never-matches", allowed[field].loc, "%s rule %q can never match: no %s fulfils all its conditions", r.kind, r.name, field)
		}
	}
	c.stage(r, allowed)
	if info, ok := known[r.strings["credential"]]; ok {
		c.binding(r, info, allowed)
	}
	for _, expr := range r.written.Body {
		c.pattern(r, expr)
	}
}

// constraint is the values that a field must be one of.
type constraint struct {
	values []string
	loc    *ast.Location
}

// constraints collects what a body says of fields by == and in, with constants.
func constraints(body ast.Body) map[string]constraint {
	found := map[string]constraint{}
	for _, expr := range body {
		if expr.Negated || len(expr.With) > 0 || !expr.IsCall() || len(expr.Operands()) != 2 {
			continue
		}
		field, values, ok := constrained(expr)
		if !ok {
			continue
		}
		if before, twice := found[field]; twice {
			values = slices.DeleteFunc(values, func(v string) bool { return !slices.Contains(before.values, v) })
		}
		found[field] = constraint{values, expr.Location}
	}
	return found
}

// constrained reads `field == constant`, either way round, and `field in constants`.
func constrained(expr *ast.Expr) (field string, values []string, ok bool) {
	a, b := expr.Operand(0), expr.Operand(1)
	switch expr.Operator().String() {
	case ast.Equal.Name, ast.Equality.Name:
		if _, isRef := a.Value.(ast.Ref); !isRef {
			a, b = b, a
		}
		values, ok = constantsOf(ast.ArrayTerm(b))
	case ast.Member.Name:
		values, ok = constantsOf(b)
	}
	ref, isRef := a.Value.(ast.Ref)
	if !ok || !isRef || len(ref) < 2 || !ref[0].Equal(ast.InputRootDocument) || len(constantPath(ref)) != len(ref) {
		return "", nil, false
	}
	return ref.String(), values, true
}

// constantsOf are the members of a collection of constants, as written.
func constantsOf(t *ast.Term) ([]string, bool) {
	values := []string{}
	good := true
	add := func(t *ast.Term) {
		switch t.Value.(type) {
		case ast.String, ast.Number, ast.Boolean, ast.Null:
			values = append(values, t.String())
		default:
			good = false
		}
	}
	switch v := t.Value.(type) {
	case ast.Set:
		v.Foreach(add)
	case *ast.Array:
		v.Foreach(add)
	default:
		good = false
	}
	return values, good
}

// stage finds rules that ask for what is not there where they are judged.
func (c *checker) stage(r entryRule, allowed map[string]constraint) {
	atRequest := slices.Contains(stageKinds[StageRequest], r.kind)
	stage := StageConnection
	if atRequest {
		stage = StageRequest
	}
	said, ok := allowed["input.stage"]
	if ok && r.kind != "deny" && !slices.Contains(said.values, ast.StringTerm(stage).String()) {
		c.add(SeverityError, "never-matches", said.loc, "%s rule %q can never match: %s is judged at stage %q", r.kind, r.name, r.kind, stage)
	}
	if atRequest {
		return
	}
	for _, expr := range r.written.Body {
		if expr.Negated || len(expr.With) > 0 {
			continue
		}
		walkRefs(expr, func(ref ast.Ref) {
			p := constantPath(ref)
			if len(p) > 2 && p[0] == "input" && p[1] == "request" && !slices.Contains(atConnection, p[2]) {
				c.add(SeverityError, "never-matches", expr.Location, "%s rule %q can never match: request.%s is not known at stage connection", r.kind, r.name, p[2])
			}
		})
	}
}

// binding finds an allow whose credential may go to none of the places it allows.
func (c *checker) binding(r entryRule, info CredentialInfo, allowed map[string]constraint) {
	name := r.strings["credential"]
	if hosts, ok := allowed["input.request.host"]; ok && len(hosts.values) > 0 {
		ports, portSaid := allowed["input.request.port"]
		fits := func(quoted string) bool {
			return slices.ContainsFunc(info.Hosts, func(bound string) bool {
				host, port, err := net.SplitHostPort(bound)
				if err != nil {
					host, port = bound, "443"
				}
				return hostFits(host, unquoted(quoted)) && (!portSaid || slices.Contains(ports.values, port))
			})
		}
		if !slices.ContainsFunc(hosts.values, fits) {
			c.add(SeverityError, "credential-excludes", hosts.loc, "allow rule %q names credential %q, which is bound to other hosts (%s): it would always be refused", r.name, name, strings.Join(info.Hosts, ", "))
		}
	}
	methods, ok := allowed["input.request.method"]
	if !ok || len(methods.values) == 0 || info.Methods == nil {
		return
	}
	if !slices.ContainsFunc(methods.values, func(quoted string) bool {
		method := unquoted(quoted)
		return slices.Contains(*info.Methods, method) || method == "HEAD" && slices.Contains(*info.Methods, "GET")
	}) {
		c.add(SeverityError, "credential-excludes", methods.loc, "allow rule %q names credential %q, which is bound to other methods (%s): it would always be refused", r.name, name, strings.Join(*info.Methods, ", "))
	}
}

// hostFits matches a host of a binding, where * is one label.
func hostFits(bound, host string) bool {
	if net.ParseIP(strings.Trim(bound, "[]")) != nil || strings.Count(bound, ".") != strings.Count(host, ".") {
		return strings.Trim(bound, "[]") == host
	}
	labels, given := strings.Split(bound, "."), strings.Split(host, ".")
	for i, label := range labels {
		if fits, err := path.Match(label, given[i]); err != nil || !fits {
			return false
		}
	}
	return true
}

func unquoted(s string) string { return strings.Trim(s, `"`) }

// pattern checks the pattern that one condition holds a host or path against.
func (c *checker) pattern(r entryRule, expr *ast.Expr) {
	if !expr.IsCall() {
		return
	}
	args := expr.Operands()
	call := expr.Operator().String()
	warn := func(code, format string, args ...any) {
		if r.kind != "deny" && r.kind != "ask" && !expr.Negated { // where too much is too much
			c.add(SeverityWarning, code, expr.Location, format, args...)
		}
	}
	switch {
	case call == ast.GlobMatch.Name && len(args) == 3:
		text, isText := args[0].Value.(ast.String)
		if !isText {
			return
		}
		switch args[2].String() {
		case "input.request.host":
			c.hostGlob(r, expr, string(text), globDelimiters(args[1]))
		case "input.request.path":
			c.pathGlob(r, expr, string(text), globDelimiters(args[1]))
		}
	case len(args) == 2 && args[0].String() == "input.request.host":
		text, isText := args[1].Value.(ast.String)
		if !isText {
			return
		}
		switch call {
		case ast.EndsWith.Name:
			if text != "" && text[0] != '.' {
				warn("host-suffix", "endswith(input.request.host, %q) also matches %s: begin the suffix with a dot", string(text), "evil"+string(text))
			}
			if why := impossibleHost("a" + strings.ToLower(string(text))); why != "" || strings.ToLower(string(text)) != string(text) {
				c.add(SeverityError, "impossible-host", expr.Location, "no host ends with %q", string(text))
			}
		case ast.StartsWith.Name, ast.Contains.Name:
			warn("host-prefix", "%s(input.request.host, %q) also matches hosts of anybody's domain: compare with ==, or glob.match", call, string(text))
		}
	}
}

// globDelimiters are those of glob.match; nil is none. An empty list means ".".
func globDelimiters(t *ast.Term) []string {
	array, ok := t.Value.(*ast.Array)
	if !ok {
		return nil
	}
	list := []string{}
	array.Foreach(func(t *ast.Term) {
		if text, ok := t.Value.(ast.String); ok {
			list = append(list, string(text))
		}
	})
	if len(list) == 0 {
		list = append(list, ".")
	}
	return list
}

func (c *checker) hostGlob(r entryRule, expr *ast.Expr, pattern string, delimiters []string) {
	if strings.Trim(pattern, "*") == "" {
		if dotted := slices.Contains(delimiters, "."); pattern == "*" && dotted {
			c.add(SeverityWarning, "glob-nothing", expr.Location, "%q matches only hosts without a dot", pattern)
		} else if pattern != "" && !expr.Negated {
			c.add(SeverityWarning, "glob-everything", expr.Location, "%q matches every host", pattern)
		}
		return
	}
	bare := strings.NewReplacer("*", "x", "?", "x").Replace(pattern)
	if strings.ContainsAny(pattern, "[]{}!\\") {
		return // alternatives and classes are not looked into
	}
	if why := impossibleHost(bare); why != "" {
		c.add(SeverityError, "impossible-host", expr.Location, "host pattern %q can never match: %s", pattern, why)
	}
	if strings.HasSuffix(pattern, "*") && r.kind != "deny" && r.kind != "ask" && !expr.Negated {
		c.add(SeverityWarning, "host-prefix", expr.Location, "host pattern %q also matches hosts of anybody's domain: end it with a fixed name", pattern)
	}
}

func (c *checker) pathGlob(r entryRule, expr *ast.Expr, pattern string, delimiters []string) {
	if pattern == "" || !strings.ContainsRune("/*?[{", rune(pattern[0])) {
		c.add(SeverityError, "path-form", expr.Location, "path pattern %q can never match: a path starts with /", pattern)
	}
	if strings.Contains(pattern, "*") && !slices.Contains(delimiters, "/") && r.kind == "allow" && !expr.Negated {
		c.add(SeverityWarning, "glob-delimiter", expr.Location, "in %q, * also matches /: %s", pattern, `write glob.match(pattern, ["/"], input.request.path)`)
	}
}
