package policies

import (
	"bytes"
	"context"
	_ "embed" // the composition and the schema are part of the program
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
)

//go:embed rego/decision.rego
var compositionSource string

//go:embed schemas/input.json
var inputSchema []byte

// compositionFile is how errors name the embedded composition.
const compositionFile = "warder:decision.rego"

// entryKinds are the rules of package warder.egress that hold entries.
var entryKinds = []string{"allow", "deny", "ask", "passthrough", "tunnel"}

// refused names the built-ins that a policy cannot call, and why.
var refused = map[string]string{
	"http.send":              "a policy must not reach the network",
	"net.lookup_ip_addr":     "a policy must not reach the network",
	"opa.runtime":            "a policy must not read the environment",
	"rand.intn":              "a decision must be repeatable",
	"uuid.rfc4122":           "a decision must be repeatable",
	"io.jwt.encode_sign":     "a policy must not sign",
	"io.jwt.encode_sign_raw": "a policy must not sign",
	"providers.aws.sign_req": "a policy must not sign",
	"trace":                  "it has no effect here; use `warder policy test`",
	"print":                  "it works in tests only",
	"json.match_schema":      "a schema can name files to read",
	"json.verify_schema":     "a schema can name files to read",
	"rego.parse_module":      "a policy must not compile policies",
	"graph.reachable_paths":  "its time and memory have no bound",
	"bits.lsh":               "its memory has no bound",
	"regex.globs_match":      "its time has no bound",
	"crypto.x509.parse_and_verify_certificates":              "it reads the clock of the host",
	"crypto.x509.parse_and_verify_certificates_with_options": "it reads the clock of the host",
}

func isRefused(name string) bool {
	_, ok := refused[name]
	return ok
}

// capabilities is what this version of OPA can do, less the refused built-ins.
// Tests may print.
func capabilities(forTests bool) *ast.Capabilities {
	c := ast.CapabilitiesForThisVersion()
	c.Builtins = slices.DeleteFunc(c.Builtins, func(b *ast.Builtin) bool {
		if forTests && b.Name == ast.Print.Name {
			return false
		}
		return isRefused(b.Name)
	})
	c.AllowNet = []string{} // not nil: no remote schema either
	return c
}

func schemas() (*ast.SchemaSet, error) {
	decoder := json.NewDecoder(bytes.NewReader(inputSchema))
	decoder.UseNumber()
	var schema any
	if err := decoder.Decode(&schema); err != nil {
		return nil, fmt.Errorf("policies: input schema: %w", err)
	}
	set := ast.NewSchemaSet()
	set.Put(ast.SchemaRootRef, schema)
	return set, nil
}

// newCompiler returns a compiler with the limits of a policy: reduced
// built-ins, the schema of the input, and no rule where there is data.
func newCompiler(ctx context.Context, store storage.Store, txn storage.Transaction, forTests bool) (*ast.Compiler, error) {
	set, err := schemas()
	if err != nil {
		return nil, err
	}
	return ast.NewCompiler().
		WithCapabilities(capabilities(forTests)).
		WithEnablePrintStatements(forTests).
		WithSchemas(set).
		WithDefaultRegoVersion(ast.RegoV1).
		WithPathConflictsCheck(storage.NonEmpty(ctx, store, txn)).
		SetErrorLimit(maxProblems), nil
}

func newStore(data map[string]any) storage.Store {
	return inmem.NewFromObjectWithOpts(data, inmem.OptRoundTripOnWrite(false), inmem.OptReturnASTValuesOnRead(true))
}

func (e *Engine) compile(f *folder) error {
	failure := &LoadError{Dir: f.dir, Problems: checkShape(f)}
	if err := failure.orNil(); err != nil {
		return err
	}
	ctx := context.Background()
	e.store = newStore(f.data)
	txn, err := e.store.NewTransaction(ctx)
	if err != nil {
		return fmt.Errorf("policies: load: %s: %w", f.dir, err)
	}
	e.txn = txn
	compiler, err := newCompiler(ctx, e.store, e.txn, false)
	if err != nil {
		return err
	}
	// Without the composition: it is compiled by itself, when it is first needed.
	if compiler.Compile(maps.Clone(f.modules)); compiler.Failed() {
		failure.Problems = explainRefused(problemsOf(f.dir, compiler.Errors))
		return failure.orNil()
	}
	e.compiler = compiler
	e.plan = analyse(compiler)
	e.rules = entryRules(f, compiler)
	e.plan.needs.Connection = slices.ContainsFunc(e.rules, func(r entryRule) bool { return r.kind == "passthrough" || r.kind == "tunnel" })
	if e.guard, err = e.newBodyGuard(ctx, f.modules); err != nil {
		return fmt.Errorf("policies: load: %s: %w", f.dir, err)
	}
	if e.foresight, err = e.newForesight(ctx, f.modules); err != nil {
		return fmt.Errorf("policies: load: %s: %w", f.dir, err)
	}
	for stage, kinds := range stageKinds {
		q, err := e.prepareEntries(ctx, kinds)
		if err != nil {
			return fmt.Errorf("policies: load: %s: %w", f.dir, err)
		}
		if stage == StageRequest {
			e.request = q
		} else {
			e.connection = q
		}
	}
	if e.plan.cacheable {
		e.cache = newDecisionCache()
	}
	e.composer = sync.OnceValues(newComposer)
	return nil
}

// Prepare compiles what the first decision needs, unless that was done before.
// It is called beside other work, so that the first request need not wait.
func (e *Engine) Prepare() {
	if e.composer != nil {
		_, _ = e.composer() // decisions tell of a failure
	}
}

// entryQuery evaluates the sets of entries of one stage as one array. A kind
// without a rule is left out and is the empty set.
type entryQuery struct {
	query *query // nil: no kind has a rule
	place []int  // of each kind in the array, -1 for a kind without a rule
	size  int    // of the array
}

func (e *Engine) prepareEntries(ctx context.Context, kinds []string) (entryQuery, error) {
	var q entryQuery
	var parts []string
	for _, kind := range kinds {
		if !slices.ContainsFunc(e.rules, func(r entryRule) bool { return r.kind == kind }) {
			q.place = append(q.place, -1)
			continue
		}
		q.place = append(q.place, len(parts))
		parts = append(parts, "data.warder.egress."+kind)
	}
	if q.size = len(parts); q.size == 0 {
		return q, nil
	}
	var err error
	q.query, err = prepare(ctx, e.compiler, e.store, e.txn, "["+strings.Join(parts, ", ")+"]")
	return q, err
}

var emptySet = ast.SetTerm()

// sets evaluates the entries that match, in the order of the stage's kinds.
func (q *entryQuery) sets(ctx context.Context, input ast.Value, cancel topdown.Cancel, now int64) (entrySets, error) {
	var found *ast.Array
	if q.query != nil {
		term, err := q.query.eval(ctx, input, cancel, now)
		if err != nil {
			return nil, err
		}
		var ok bool
		if found, ok = term.Value.(*ast.Array); !ok || found.Len() != q.size {
			return nil, errUndefined
		}
	}
	sets := make(entrySets, len(q.place))
	for i, place := range q.place {
		if sets[i] = emptySet; place >= 0 {
			sets[i] = found.Elem(place)
		}
	}
	return sets, nil
}

func withComposition(modules map[string]*ast.Module) (map[string]*ast.Module, error) {
	composition, problems := parseModule(compositionFile, []byte(compositionSource))
	if len(problems) > 0 {
		return nil, fmt.Errorf("policies: composition: %s", problems[0])
	}
	all := make(map[string]*ast.Module, len(modules)+1)
	for name, module := range modules {
		all[name] = module
	}
	all[compositionFile] = composition
	return all, nil
}

// checkShape finds what compiles but could never work, or could take the place
// of the composition: packages outside warder.egress that claim the name
// warder, and entry rules that are not sets.
func checkShape(f *folder) []Problem {
	var problems []Problem
	entries := 0
	for _, name := range sortedKeys(f.modules) {
		module := f.modules[name]
		path := constantPath(module.Package.Path)
		if len(path) > 1 && path[1] == "warder" {
			if len(path) < 3 || path[2] != "egress" {
				problems = append(problems, at(module.Package.Location, "package %s is reserved: entries belong in package warder.egress, helpers in any package outside warder", strings.Join(path[1:], ".")))
				continue
			}
			if len(path) > 3 && slices.Contains(entryKinds, path[3]) {
				problems = append(problems, at(module.Package.Location, "package %s would hide the entries of data.warder.egress.%s", strings.Join(path[1:], "."), path[3]))
				continue
			}
		}
		problems = append(problems, printCalls(module)...)
		problems = append(problems, reservedRefs(module)...)
		for _, rule := range module.Rules {
			kind, problem := entryKind(path, rule)
			if problem != nil {
				problems = append(problems, *problem)
			} else if kind != "" {
				entries++
			}
		}
	}
	if len(problems) == 0 && entries == 0 {
		problems = append(problems, Problem{File: f.dir, Message: "no file holds an entry: write `allow contains {\"rule\": \"name\"} if …` in package warder.egress\nhint: without entries everything is denied"})
	}
	return problems
}

// printCalls finds calls of print, which the compiler would take out without a word.
func printCalls(module *ast.Module) []Problem {
	var problems []Problem
	ast.WalkExprs(module, func(expr *ast.Expr) bool {
		if expr.IsCall() && expr.Operator().Equal(ast.Print.Ref()) {
			problems = append(problems, at(expr.Location, "built-in function print is not available to policies: %s", refused[ast.Print.Name]))
		}
		return false
	})
	return problems
}

// reservedRefs finds references to the composition: it is made of the entries,
// so an entry that is made of it would never come to an end.
func reservedRefs(module *ast.Module) []Problem {
	var problems []Problem
	walkRefs(module, func(ref ast.Ref) {
		path := constantPath(ref)
		if len(path) > 1 && path[0] == "data" && path[1] == "warder" && (len(path) < 3 || path[2] != "egress") {
			problems = append(problems, at(ref[0].Location, "%s is not for policies: it is made of their entries", ref))
		}
	})
	return problems
}

// entryKind says which kind of entry a rule contributes, "" for none.
func entryKind(pkg []string, rule *ast.Rule) (string, *Problem) {
	full := append(slices.Clone(pkg), constantPath(rule.Head.Ref())...)
	if len(full) < 4 || full[1] != "warder" || full[2] != "egress" || !slices.Contains(entryKinds, full[3]) {
		return "", nil
	}
	if len(full) > 4 || len(rule.Head.Ref()) != len(full)-len(pkg) || rule.Head.RuleKind() != ast.MultiValue {
		p := at(rule.Location, "%s must be a set of entries: write `%s contains {\"rule\": \"name\"} if …`", full[3], full[3])
		return "", &p
	}
	return full[3], nil
}

// constantPath is the leading constant part of a reference, without the
// brackets: data.a["b"][x] is [data a b].
func constantPath(ref ast.Ref) []string {
	path := make([]string, 0, len(ref))
	for i, term := range ref {
		switch v := term.Value.(type) {
		case ast.Var:
			if i != 0 {
				return path
			}
			path = append(path, string(v))
		case ast.String:
			path = append(path, string(v))
		default:
			return path
		}
	}
	return path
}

func at(loc *ast.Location, format string, args ...any) Problem {
	p := Problem{Message: fmt.Sprintf(format, args...)}
	if loc != nil {
		p.File, p.Line, p.Column = loc.File, loc.Row, loc.Col
	}
	return p
}

// explainRefused says why a function is undefined when it is one we took away.
func explainRefused(problems []Problem) []Problem {
	for i, p := range problems {
		_, name, found := strings.Cut(p.Message, "undefined function ")
		if !found {
			continue
		}
		name, _, _ = strings.Cut(name, "\n")
		if why, ok := refused[name]; ok {
			problems[i].Message = fmt.Sprintf("built-in function %s is not available to policies: %s", name, why)
		}
	}
	return problems
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
