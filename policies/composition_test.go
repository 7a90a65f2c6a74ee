package policies

import (
	"context"
	"os"
	"testing"
)

// The composition's own tests, run by the engine that runs policies' tests.
func TestComposition(t *testing.T) {
	source, err := os.ReadFile("rego/decision_test.rego")
	if err != nil {
		t.Fatal(err)
	}
	module, problems := parseModule("decision_test.rego", source)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	modules, err := withComposition(nil)
	if err != nil {
		t.Fatal(err)
	}
	modules["decision_test.rego"] = module
	results, err := runTests(context.Background(), ".", map[string]any{}, modules, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(results) < 20 {
		t.Fatalf("only %d tests ran", len(results))
	}
	for _, r := range results {
		if r.Outcome != "pass" {
			t.Errorf("%s.%s: %s\n%s", r.Package, r.Name, r.Outcome, r.Detail)
		}
	}
}
