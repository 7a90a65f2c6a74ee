package policies

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// maxKeptInput bounds Decision.Input, in bytes. A longer one is not kept.
const maxKeptInput = 64 << 10

// Masked stands in a kept input for a value that may be a secret.
const Masked = "(masked)"

// keptPlan builds what a decision can be made from again: the parts that the
// policy and its floor refer to, and those that the composition needs.
func (e *Engine) keptPlan() *inputPlan {
	refs := &reference{}
	e.plan.refs.each(nil, func(path []string) { refs.add(path, true) })
	if e.floor != nil {
		e.floor.plan.refs.each(nil, func(path []string) { refs.add(path, true) })
	}
	for _, name := range []string{"stage", "approvals", "credentials"} {
		refs.add([]string{name}, true)
	}
	for _, name := range sortedKeys(partNames) {
		if refs.has("request", name) { // whether it could be read
			refs.add([]string{"request", "body_truncated"}, true)
			refs.add([]string{"request", "unparsed"}, true)
			if p := partNames[name]; p != partBody {
				refs.add([]string{"request", name, "unparsed"}, true)
			}
		}
	}
	return newInputPlan(refs, e.needs.Time)
}

// each calls visit for every reference.
func (r *reference) each(path []string, visit func([]string)) {
	if r.whole || len(r.parts) == 0 {
		visit(path)
		return
	}
	for _, name := range sortedKeys(r.parts) {
		r.parts[name].each(append(path[:len(path):len(path)], name), visit)
	}
}

// keepInput notes in d what it was decided from.
func (e *Engine) keepInput(d *Decision, in *Input, body *parsedBody) {
	k := keeper{}
	if e.kept == nil || !k.value(e.kept.build(in, body), nil) {
		return
	}
	sum := sha256.Sum256(k.out)
	d.Input, d.InputRef = k.out, "sha256:"+hex.EncodeToString(sum[:])
}

// keeper writes a value as canonical JSON: members sorted by name, no white space,
// numbers as they were, and secrets masked.
type keeper struct{ out []byte }

// value appends v, which stands at path, and returns false when the whole is too long.
func (k *keeper) value(v ast.Value, path []string) bool {
	switch v := v.(type) {
	case ast.Object:
		return k.object(v, path)
	case *ast.Array:
		k.out = append(k.out, '[')
		for i := range v.Len() {
			if i > 0 {
				k.out = append(k.out, ',')
			}
			if !k.value(v.Elem(i).Value, path) {
				return false
			}
		}
		k.out = append(k.out, ']')
	case ast.String:
		if secretAt(path, string(v)) {
			v = Masked
		}
		k.text(string(v))
	case ast.Number:
		k.out = append(k.out, v...)
	case ast.Boolean:
		k.out = append(k.out, v.String()...)
	default:
		k.out = append(k.out, "null"...)
	}
	return len(k.out) <= maxKeptInput
}

func (k *keeper) object(v ast.Object, path []string) bool {
	k.out = append(k.out, '{')
	keys := v.Keys()
	slices.SortFunc(keys, func(a, b *ast.Term) int { return a.Value.Compare(b.Value) })
	for i, key := range keys {
		name, _ := key.Value.(ast.String)
		if i > 0 {
			k.out = append(k.out, ',')
		}
		k.text(string(name))
		k.out = append(k.out, ':')
		if !k.value(v.Get(key).Value, append(path[:len(path):len(path)], string(name))) {
			return false
		}
	}
	k.out = append(k.out, '}')
	return true
}

func (k *keeper) text(s string) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string can always be encoded
	k.out = append(k.out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}

// secretNames are parts of names, in lower case, whose values are not kept.
var secretNames = []string{
	"auth", "token", "secret", "passw", "passphrase", "pwd", "key", "credential", "cookie", "session", "sig", "jwt", "bearer", "otp", "csrf", "xsrf",
}

// secretAt reports whether the string s at path may be a secret: by the names above it
// that the sandbox chose, or by its own looks.
func secretAt(path []string, s string) bool {
	if len(path) < 2 || path[0] != "request" {
		return false
	}
	switch path[1] {
	case "headers", "query", "body", "graphql", "jsonrpc", "mcp", "grpc":
	default:
		return false
	}
	for _, name := range path[2:] {
		name = strings.ToLower(name)
		if slices.ContainsFunc(secretNames, func(part string) bool { return strings.Contains(name, part) }) {
			return true
		}
	}
	return looksSecret(s)
}

// tokenStarts are how the tokens of widespread services begin.
var tokenStarts = []string{
	"ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "sk-", "sk_", "rk_", "xox", "AKIA", "ASIA", "hvs.", "hvb.", "hvr.",
	"eyJ", "AIza", "ya29.", "npm_", "pypi-", "dop_v1_", "SG.", "-----BEGIN", "Bearer ", "Basic ",
}

// shortestToken is the least length of a word of letters and digits that looks like
// one, in bytes.
const shortestToken = 24

func looksSecret(s string) bool {
	for _, start := range tokenStarts {
		if i := strings.Index(s, start); i >= 0 && len(s)-i > len(start)+4 {
			return true
		}
	}
	letters, digits, n := 0, 0, 0
	for i := 0; i <= len(s); i++ {
		switch {
		case i < len(s) && (s[i]|0x20 >= 'a' && s[i]|0x20 <= 'z'):
			letters++
		case i < len(s) && s[i] >= '0' && s[i] <= '9':
			digits++
		case i < len(s) && (s[i] == '-' || s[i] == '_'):
		default:
			if n >= shortestToken && letters > 0 && digits > 0 {
				return true
			}
			letters, digits, n = 0, 0, 0
			continue
		}
		n++
	}
	return false
}
