package archtest

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"warder/internal/faults"
)

// root is the top folder of the module, from this package's folder.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil || !bytes.HasPrefix(mod, []byte("module "+Module+"\n")) {
		t.Fatalf("%s is not the root of the module: %v", dir, err)
	}
	return dir
}

func load(t *testing.T) []*File {
	t.Helper()
	files, err := Load(os.DirFS(root(t)))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func report(t *testing.T, got []Violation) {
	t.Helper()
	for _, v := range got {
		t.Error(v)
	}
}

func TestImportsPointOneWay(t *testing.T) {
	files := load(t)
	report(t, Layers(files))
	report(t, Vanished(files))
}

func TestEachLibraryHasOneOwner(t *testing.T) { report(t, LibraryUse(load(t), Libraries())) }

// I2
func TestSecretsAreRevealedInTwoPackages(t *testing.T) {
	files := load(t)
	report(t, Reveal(files))
	uses := 0 // positive control: the method that is looked for exists and is used
	for _, f := range files {
		if under(f.Dir, "broker", "internal/scrub") && !f.Test {
			uses += bytes.Count(f.Source, []byte(".Reveal()"))
		}
	}
	if uses == 0 {
		t.Error("nobody calls Reveal: the rule looks for something that is not there")
	}
}

func TestHouseRules(t *testing.T) { report(t, House(load(t))) }

func TestEveryPackageHasAComment(t *testing.T) { report(t, PackageComments(load(t))) }

func TestThreatModelNamesTestsThatExist(t *testing.T) {
	files := load(t)
	for _, doc := range []string{"docs/threat-model.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(doc)))
		if err != nil {
			t.Fatal(err)
		}
		report(t, NamedTests(doc, text, files))
	}
}

// What of it ran is held against the table by make test (tools/evidence).
func TestFaultsNameTestsThatExist(t *testing.T) {
	const doc = "docs/faults.md"
	text, err := os.ReadFile(filepath.Join(root(t), filepath.FromSlash(doc)))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := faults.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var nested []byte
	mods, err := filepath.Glob(filepath.Join(root(t), "tools", "*", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, mod := range mods {
		tests, err := filepath.Glob(filepath.Join(filepath.Dir(mod), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range tests {
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			nested = append(nested, src...)
		}
	}
	report(t, FaultTests(doc, rows, load(t), nested))
	mutants, err := os.ReadFile(filepath.Join(root(t), "tools", "mutants", "list.txt"))
	if err != nil {
		t.Fatal(err)
	}
	report(t, FaultMutants(doc, rows, mutants))
}

// invariants is how many CONTRIBUTING.md numbers.
const invariants = 10

func TestEveryInvariantIsNamedByATest(t *testing.T) { report(t, InvariantTests(invariants, load(t))) }

func TestTheTestVaultIsNotLinkedIntoTheProduct(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(mod, []byte("github.com/hashicorp/vault ")) {
		t.Error("go.mod requires the Vault server")
	}
	if !bytes.Contains(mod, []byte("github.com/hashicorp/vault/api ")) { // positive control
		t.Error("go.mod does not require the client either")
	}
}

// A path of the machine that built it says who did, and works nowhere else.
func TestNoFileNamesAPathOfThisMachine(t *testing.T) {
	dir := root(t)
	paths := []string{dir}
	for _, name := range []string{"GOMODCACHE", "GOCACHE"} {
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, strings.TrimSpace(string(out)))
	}
	report(t, mentions(t, os.DirFS(dir), paths))
}

func TestMentionsFindsAPath(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.md"), []byte("x\nsee /some/where/main/x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantRules(t, mentions(t, os.DirFS(dir), []string{"/some/where/main"}), "a.md machine path")
}

// mentions looks for machine paths of at least three elements in every file
// that is not built, ignored or a module sum.
func mentions(t *testing.T, fsys fs.FS, paths []string) []Violation {
	t.Helper()
	var out []Violation
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && (d.Name() == "bin" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci"):
			return fs.SkipDir
		case !d.Type().IsRegular() || d.Name() == "go.sum":
			return nil
		}
		text, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		for _, path := range paths {
			if strings.Count(path, "/") >= 2 && bytes.Contains(text, []byte(path)) {
				out = append(out, Violation{p, "machine path", path})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// docs/architecture.md has a row for every package of the product.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range load(t) {
		if !under(f.Dir, "tools") && !bytes.Contains(text, []byte("| `"+f.Dir+"` |")) {
			t.Errorf("docs/architecture.md has no row for %s", f.Dir)
		}
	}
}
