package archtest

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"warder/internal/faults"
)

// parseTree makes the files of a fixture tree; keys are paths.
func parseTree(t *testing.T, tree map[string]string) []*File {
	t.Helper()
	fsys := fstest.MapFS{}
	for path, src := range tree {
		fsys[path] = &fstest.MapFile{Data: []byte(src)}
	}
	files, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// wantRules checks which places break a rule, as "PATH:LINE rule", in any order.
func wantRules(t *testing.T, got []Violation, want ...string) {
	t.Helper()
	var have []string
	for _, v := range got {
		have = append(have, v.At+" "+v.Rule)
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("violations:\n  %s\nwant:\n  %s", strings.Join(have, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestLoadLeavesOtherTreesAlone(t *testing.T) {
	files := parseTree(t, map[string]string{
		"audit/a.go":            "package audit",
		"audit/testdata/bad.go": "package",
		"tools/other/go.mod":    "module other",
		"tools/other/bad.go":    "package",
		".hidden/bad.go":        "package",
		"_old/bad.go":           "package",
		"docs/x.md":             "package",
	})
	if len(files) != 1 || files[0].Path != "audit/a.go" {
		t.Errorf("loaded %d files", len(files))
	}
	if _, err := Load(fstest.MapFS{"bad.go": {Data: []byte("package")}}); err == nil {
		t.Error("a file that does not parse was accepted")
	}
	if _, err := Load(fstest.MapFS{}); err == nil {
		t.Error("an empty tree was accepted")
	}
}

func TestLayersNoticesEachWrongWay(t *testing.T) {
	imports := func(pkg, imp string) string { return "package " + pkg + "\n\nimport _ \"" + imp + "\"\n" }
	wantRules(t, Layers(parseTree(t, map[string]string{
		// Right:
		"cmd/warder/a.go":        imports("main", "warder/runner"),
		"runner/a.go":            imports("runner", "warder/proxy"),
		"runner/b.go":            imports("runner", "warder/audit"),
		"proxy/a.go":             imports("proxy", "warder/policies"),
		"audit/a.go":             imports("audit", "warder/internal/identity"),
		"internal/config/a.go":   imports("config", "warder/internal/secret"),
		"broker/brokertest/a.go": imports("brokertest", "warder/broker"),
		"broker/a_test.go":       imports("broker_test", "warder/internal/vaulttest"),
		// Wrong:
		"broker/b.go":          imports("broker", "warder/internal/vaulttest"),
		"policies/a.go":        imports("policies", "warder/audit"),
		"broker/a.go":          imports("broker", "warder/policies"),
		"audit/b_test.go":      imports("audit_test", "warder/broker"),
		"proxy/b.go":           imports("proxy", "warder/runner"),
		"runner/c.go":          imports("runner", "warder/cmd/warder"),
		"internal/secret/a.go": imports("secret", "warder/audit"),
		"audit/sub/a.go":       imports("sub", "warder/proxy"),
		"tools/bench/a.go":     imports("main", "warder/proxy"),
		"util/a.go":            imports("util", "fmt"),
		"internal/x/a.go":      imports("x", "warder/brokerage"),
	})),
		"policies/a.go:3 layers", "broker/a.go:3 layers", "broker/b.go:3 layers", "audit/b_test.go:3 layers", "proxy/b.go:3 layers", "runner/c.go:3 layers",
		"internal/secret/a.go:3 layers", "audit/sub/a.go:3 layers", "tools/bench/a.go:3 layers", "util/a.go layers", "internal/x/a.go:3 layers")
}

func TestLibraryUseNoticesEachMisuse(t *testing.T) {
	table := []Library{
		{"example.org/opa", []string{"policies"}, "w", []string{"cmd"}},
		{"example.org/any", []string{"*"}, "", nil},
		{"example.org/gone", []string{"audit"}, "w", nil},
	}
	src := func(pkg string, imps ...string) string {
		return "package " + pkg + "\n\nimport _ \"" + strings.Join(imps, "\"\nimport _ \"") + "\"\n"
	}
	wantRules(t, LibraryUse(parseTree(t, map[string]string{
		"policies/a.go":        src("policies", "example.org/opa/v1/rego", "example.org/any/x"),
		"policies/b/c.go":      src("c", "example.org/opa"),
		"audit/a.go":           src("audit", "example.org/opa/v1/ast"),
		"cmd/warder/a_test.go": src("main", "example.org/opa"),
		"cmd/warder/a.go":      src("main", "example.org/opa"),
		"audit/b.go":           src("audit", "example.org/opaque"),
		"audit/c.go":           src("audit", "os/exec"),
		"audit/c_test.go":      src("audit", "os/exec"),
		"audit/d.go":           src("audit", "unsafe", "fmt"),
		"runner/a.go":          src("runner", "unsafe", "os/exec"),
		"proxy/a.go":           src("proxy", "math/rand"),
		"tools/bench/a.go":     src("main", "os/exec"),
		"proxy/ok.go":          src("proxy", "math/rand/v2", "warder/audit"),
		"proxy/lookalike.go":   src("proxy", "warder.example/x"),
	}), table),
		"audit/a.go:3 libraries", "cmd/warder/a.go:3 libraries", "audit/b.go:3 libraries", "audit/c.go:3 standard library", "audit/d.go:3 standard library",
		"proxy/a.go:3 standard library", "proxy/lookalike.go:3 libraries", "internal/archtest libraries")
}

func TestVanishedNamesAnEmptyFolder(t *testing.T) {
	got := Vanished(parseTree(t, map[string]string{"audit/a.go": "package audit", "proxyish/a.go": "package p"}))
	if len(got) != len(layers)-1 {
		t.Errorf("%d violations, want one for each folder but audit: %v", len(got), got)
	}
}

// I2: a secret is revealed in the broker and the scrubber, nowhere else.
func TestRevealNoticesEachWay(t *testing.T) {
	wantRules(t, Reveal(parseTree(t, map[string]string{
		"broker/inject.go":        "package broker\nfunc f(s interface{ Reveal() string }) { _ = s.Reveal() }",
		"internal/scrub/s.go":     "package scrub\nfunc f(s interface{ Reveal() string }) { _ = s.Reveal() }",
		"proxy/call.go":           "package proxy\nfunc f(s interface{ Reveal() string }) { _ = s.Reveal() }",
		"proxy/value.go":          "package proxy\nfunc f(s interface{ Reveal() string }) { g := s.Reveal; _ = g }",
		"proxy/expr.go":           "package proxy\nimport \"warder/internal/secret\"\nvar f = secret.String.Reveal",
		"proxy/reflect.go":        "package proxy\nimport \"reflect\"\nfunc f(v reflect.Value) { v.MethodByName(\"Reveal\") }",
		"proxy/call_test.go":      "package proxy\nfunc g(s interface{ Reveal() string }) { _ = s.Reveal() }",
		"internal/scrubbery/s.go": "package scrubbery\nfunc f(s interface{ Reveal() string }) { _ = s.Reveal() }",
		"proxy/fine.go":           "package proxy\n// Reveal in a comment is fine.\nconst text = \"Reveals\"\n",
	})),
		"proxy/call.go:2 reveal", "proxy/value.go:2 reveal", "proxy/expr.go:3 reveal", "proxy/reflect.go:3 reveal",
		"proxy/call_test.go:2 reveal", "internal/scrubbery/s.go:2 reveal")
}

func TestHouseNoticesEachHabit(t *testing.T) {
	body := func(pkg, stmts string) string { return "package " + pkg + "\n\nfunc f() {\n" + stmts + "\n}\n" }
	wantRules(t, House(parseTree(t, map[string]string{
		"proxy/tls.go":         "package proxy\n\nvar c = tls.Config{InsecureSkipVerify: true}\n",
		"proxy/tls2.go":        body("proxy", "c.InsecureSkipVerify = os.Getenv(\"X\") != \"\""),
		"proxy/tls_test.go":    "package proxy\n\nvar c = tls.Config{InsecureSkipVerify: true}\n",
		"audit/print.go":       body("audit", "fmt.Println(1)"),
		"audit/builtin.go":     body("audit", "println(1)"),
		"audit/fprint.go":      body("audit", "fmt.Fprintln(w, 1)"),
		"cmd/warder/print.go":  body("main", "fmt.Println(1)"),
		"audit/init.go":        "package audit\n\nfunc init() {}\nfunc (t) init() {}\n",
		"audit/exit.go":        body("audit", "os.Exit(1)"),
		"runner/exit.go":       body("runner", "os.Exit(1)"),
		"audit/sleep_test.go":  body("audit", "time.Sleep(1)"),
		"audit/sleep2_test.go": body("audit", "time.Sleep(1) // poll until the deadline"),
		"audit/sleep3_test.go": body("audit", "for {\ntime.Sleep(1)\n}"),
		"audit/skip_test.go":   "package audit\n\nfunc TestX(t *testing.T) {\n\tt.Skip(\"no\")\n}\n",
		"audit/skip2_test.go":  "package audit\n\nfunc TestY(t *testing.T) {\n\tt.Skipf(\"no\")\n\n\tt.SkipNow()\n}\n",
		"audit/long.go":        "package audit\n" + strings.Repeat("\n", maxLines),
		"audit/long_test.go":   "package audit\n" + strings.Repeat("\n", maxLines),
		"audit/notquite.go":    "package audit\n" + strings.Repeat("\n", maxLines-1),
	})),
		"proxy/tls.go:3 tls", "proxy/tls2.go:4 tls", "audit/print.go:4 print", "audit/builtin.go:4 print", "audit/init.go:3 init",
		"audit/exit.go:4 exit", "audit/sleep_test.go:4 sleep", "audit/skip_test.go:4 skip", "audit/skip2_test.go:4 skip",
		"audit/skip2_test.go:6 skip", "audit/long.go size")
}

func TestPackageCommentsNoticesAMissingOne(t *testing.T) {
	wantRules(t, PackageComments(parseTree(t, map[string]string{
		"audit/a.go":      "package audit",
		"audit/doc.go":    "// Package audit keeps records.\npackage audit",
		"broker/a.go":     "// broker is documented in another form.\npackage broker",
		"cmd/warder/a.go": "// Warder runs code.\npackage main",
		"proxy/a.go":      "package proxy",
		"proxy/a_test.go": "// Package proxy is documented in a test only.\npackage proxy",
	})), "broker/a.go package comment", "proxy/a.go package comment")
}

func TestNamedTestsNoticesANameWithoutATest(t *testing.T) {
	files := parseTree(t, map[string]string{
		"a/a_test.go": "package a\nfunc TestReal(t *testing.T) {}\nfunc (s) TestMethod() {}",
		"a/a.go":      "package a\nfunc TestNotInATestFile() {}",
	})
	wantRules(t, NamedTests("d.md", []byte("| x | `TestReal` |\n| y | `TestGone`, `TestMethod` |\n| z | `TestNotInATestFile` |\n"), files),
		"d.md:2 named tests", "d.md:2 named tests", "d.md:3 named tests")
	wantRules(t, NamedTests("d.md", []byte("no test here"), files), "d.md named tests")
}

func TestInvariantTestsNoticesAnInvariantWithoutATest(t *testing.T) {
	files := parseTree(t, map[string]string{
		"a/a_test.go": "package a\n\n// I1: said in a comment.\nfunc TestX() {}\n\nfunc TestI2Named() {}\n\nvar _ = \"I10 only\"\n",
		"a/a.go":      "package a\n\n// I3 stands in no test.\n",
	})
	got := InvariantTests(4, files)
	if len(got) != 2 || !strings.HasSuffix(got[0].Msg, "I3") || !strings.HasSuffix(got[1].Msg, "I4") {
		t.Errorf("got %v", got)
	}
}

func TestFaultTableIsHeldAgainstTheSources(t *testing.T) {
	files := parseTree(t, map[string]string{
		"proxy/a_test.go":    "package proxy\n\nfunc TestDots_F001(t *testing.T) {}\n\nfunc TestNew_F002(t *testing.T) {}\n\nfunc TestTable(t *testing.T) {}\n",
		"proxy/soak_test.go": "//go:build soak\n\npackage proxy\n\nfunc TestLong_F003(t *testing.T) {}\n",
	})
	rows, err := faults.Parse([]byte("| F001 | C | x | `TestDots_F001` `TestTable/F001*` `TestPeer_F001` |\n| F009 | H | x | `TestGone_F009` |\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := FaultTests("t.md", rows, files, []byte("package peers\n\nfunc TestPeer_F001(t *testing.T) {}\n\nfunc TestPeer_F004(t *testing.T) {}\n"))
	wantRules(t, got, "proxy/a_test.go:5 faults", "t.md faults", "t.md:2 faults")
	got = FaultMutants("t.md", []faults.Row{{Number: "F001", Severity: "C", Line: 1}, {Number: "F002", Severity: "C", Line: 2}, {Number: "F003", Severity: "H", Line: 3}, {Number: "F004", Severity: "C", Line: 4}},
		[]byte("= a dot makes no other name (F001)\nfile proxy/a.go\ntest TestX_F002\n- \tF004\n"))
	wantRules(t, got, "t.md:4 mutants")
}
