package policies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// testTimeout bounds one test of a policy.
const testTimeout = 10 * time.Second

// TestResult is the outcome of one test_ rule.
type TestResult struct {
	Package  string        `json:"package"`
	Name     string        `json:"name"`
	File     string        `json:"file"`
	Line     int           `json:"line"`
	Outcome  string        `json:"outcome"` // pass | fail | error | skip
	Detail   string        `json:"detail,omitempty"`
	Output   string        `json:"output,omitempty"` // of print
	Duration time.Duration `json:"duration_ns"`
}

// RunTests runs the test_ rules of the folder's *_test.rego files (and of
// others, if any) with the built-ins and the strictness of the Engine: a
// built-in error fails a test. run, when not "", is a regular expression that
// "package.name" must match. The tests of roots, further folders as in
// Options.Roots, run with them. A policy that does not load is a *LoadError.
// Results are sorted by file and line.
func RunTests(ctx context.Context, dir, run string, roots ...string) ([]TestResult, error) {
	if _, err := regexp.Compile(run); err != nil {
		return nil, fmt.Errorf("policies: test: %w\nhint: --run takes a regular expression (RE2)", err)
	}
	if _, err := Load(Options{Dir: dir, Roots: roots}); err != nil {
		return nil, err
	}
	f, err := readFolder(dir)
	if err != nil {
		return nil, err
	}
	if err := f.addRoots(roots); err != nil {
		return nil, err
	}
	modules, err := withComposition(f.modules)
	if err != nil {
		return nil, err
	}
	for name, module := range f.tests {
		modules[name] = module
	}
	return runTests(ctx, f.dir, f.data, modules, run)
}

func runTests(ctx context.Context, dir string, data map[string]any, modules map[string]*ast.Module, run string) ([]TestResult, error) {
	store := newStore(data)
	txn, err := store.NewTransaction(ctx)
	if err != nil {
		return nil, fmt.Errorf("policies: test: %w", err)
	}
	defer store.Abort(ctx, txn)
	compiler, err := newCompiler(ctx, store, txn, true)
	if err != nil {
		return nil, err
	}
	results, err := tester.NewRunner().
		SetCompiler(compiler).
		SetStore(store).
		SetModules(modules).
		SetTimeout(testTimeout).
		CapturePrintOutput(true).
		EnableTracing(true).
		RaiseBuiltinErrors(true).
		Filter(run).
		RunTests(ctx, txn)
	if err != nil {
		return nil, (&LoadError{Dir: dir, Problems: explainRefused(problemsOf(dir, err))}).orNil()
	}
	var list []TestResult
	for r := range results {
		list = append(list, testResult(r))
	}
	slices.SortFunc(list, func(a, b TestResult) int {
		return slices.Compare([]string{a.File, fmt.Sprintf("%08d", a.Line), a.Name}, []string{b.File, fmt.Sprintf("%08d", b.Line), b.Name})
	})
	return list, nil
}

func testResult(r *tester.Result) TestResult {
	t := TestResult{Package: r.Package, Name: r.Name, Duration: r.Duration, Output: string(r.Output), Outcome: "pass"}
	if r.Location != nil {
		t.File, t.Line = r.Location.File, r.Location.Row
	}
	switch {
	case r.Skip:
		t.Outcome = "skip"
	case r.Error != nil:
		t.Outcome, t.Detail = "error", describe(r.Error)
	case r.Fail:
		t.Outcome, t.Detail = "fail", failedAt(r)
	}
	for path, sub := range r.SubResults.Iter {
		if sub.Fail {
			t.Outcome = "fail"
			t.Detail += fmt.Sprintf("\ncase %v failed", path)
		}
	}
	return t
}

// failedAt shows the last expression that failed, with its place.
func failedAt(r *tester.Result) string {
	for _, event := range slices.Backward(r.Trace) {
		expr, ok := event.Node.(*ast.Expr)
		if !ok || event.Op != topdown.FailOp || event.Location == nil || event.QueryID == 0 {
			continue
		}
		if _, every := expr.Terms.(*ast.Every); every {
			continue // what failed is inside it
		}
		var text bytes.Buffer
		if err := topdown.PrettyEvent(&text, event, topdown.PrettyEventOpts{PrettyVars: true}); err != nil {
			return fmt.Sprintf("%s:%d", event.Location.File, event.Location.Row)
		}
		return fmt.Sprintf("%s:%d:\n%s", event.Location.File, event.Location.Row, bytes.TrimRight(text.Bytes(), "\n"))
	}
	return ""
}

// IsLoadError reports whether err says that a policy does not load.
func IsLoadError(err error) bool {
	var failure *LoadError
	return errors.As(err, &failure)
}
