package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Each guard of the list stands in the code once, and its test exists: a list that the
// code has left behind proves nothing.
func TestTheListFitsTheCode(t *testing.T) {
	list, err := readList("list.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 50 {
		t.Errorf("only %d mutants were read", len(list))
	}
	for _, m := range list {
		name := filepath.Join("..", "..", m.file)
		src, err := os.ReadFile(name)
		if err != nil {
			t.Errorf("list.txt:%d: %v", m.line, err)
			continue
		}
		if n := count(src, m.old); n != 1 {
			t.Errorf("list.txt:%d: %s: its text stands %d times in %s, not once", m.line, m.what, n, m.file)
		}
		if !hasTest(t, filepath.Join("..", "..", m.dir()), m.test) {
			t.Errorf("list.txt:%d: %s: no test %s in %s", m.line, m.what, m.test, m.dir())
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	head := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(`)
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if head.Match(src) {
			return true
		}
	}
	return false
}
