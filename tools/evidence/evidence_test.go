package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build gives the program and a module with tests of every outcome.
func build(t *testing.T) (bin, module string) {
	t.Helper()
	dir := t.TempDir()
	bin = filepath.Join(dir, "evidence")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	module = filepath.Join(dir, "m")
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"good/a_test.go": `package good
import "testing"
func TestGood_F001(t *testing.T) { t.Run("plain", func(t *testing.T) { t.Log("not shown") }) }
func TestLeftOut_F002(t *testing.T) { t.Skip("no") }
`,
		"bad/a_test.go": `package bad
import "testing"
func TestBad_F003(t *testing.T) { t.Run("fine", func(t *testing.T) {}); t.Run("inner", func(t *testing.T) { t.Error("this went wrong") }) }
func TestPanics(t *testing.T) { panic("boom") }
`,
		"broken/a_test.go": "package broken\nfunc x() { undefined() }\n",
		"table.md":         "| F001 | C | x | `TestGood_F001` |\n",
	} {
		p := filepath.Join(module, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return bin, module
}

func TestRunPrintsWhatGoTestPrintsAndKeepsTheOutcomes(t *testing.T) {
	bin, module := build(t)
	do := func(args ...string) (string, int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Dir = module
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, code := do("run", "log", "go", "test", "./good")
	if code != 0 || !strings.HasPrefix(out, "ok  \tm/good") || strings.Count(out, "\n") != 1 {
		t.Errorf("%d %q", code, out)
	}
	out, code = do("run", "log", "go", "test", "./bad", "./broken")
	for _, want := range []string{"this went wrong", "--- FAIL: TestBad_F003", "panic: boom", "FAIL\tm/bad", "undefined: undefined", "FAIL\tm/broken [build failed]"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in %s", want, out)
		}
	}
	if code == 0 || strings.Contains(out, "=== RUN") || strings.Contains(out, "--- PASS") || strings.Contains(out, `"Action"`) {
		t.Errorf("%d %s", code, out)
	}
	log, err := os.ReadFile(filepath.Join(module, "log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"pass m/good TestGood_F001\n", "pass m/good TestGood_F001/plain\n", "skip m/good TestLeftOut_F002\n", "fail m/bad TestBad_F003/inner\n"} {
		if !strings.Contains(string(log), want) {
			t.Errorf("%q is missing in %s", want, log)
		}
	}
	// The table against it: two tests are missing in it, and one did not pass.
	if out, code = do("check", "table.md", "log"); code != 2 || strings.Count(out, "whose row does not name it") != 2 {
		t.Errorf("%d %s", code, out)
	}
	if err := os.WriteFile(filepath.Join(module, "log"), []byte("pass m/good TestGood_F001\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code = do("check", "table.md", "log"); code != 0 || !strings.HasPrefix(out, "1 faults") {
		t.Errorf("%d %s", code, out)
	}
	if _, code = do("check", "table.md", "nothing"); code != 1 {
		t.Errorf("without a log: %d", code)
	}
}
