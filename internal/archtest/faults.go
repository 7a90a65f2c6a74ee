package archtest

import (
	"bytes"
	"go/ast"
	"regexp"
	"strconv"
	"strings"

	"warder/internal/faults"
)

// FaultTests checks docs/faults.md against the sources: every test that a row
// names exists, in others (further sources, of nested modules) or in files, and
// every test function that bears a number stands in that number's row. What ran
// is the business of tools/evidence.
func FaultTests(doc string, rows []faults.Row, files []*File, others []byte) []Violation {
	have := map[string]bool{}
	byNumber := make(map[string]faults.Row, len(rows))
	for _, r := range rows {
		byNumber[r.Number] = r
	}
	var out []Violation
	for _, f := range files {
		if bytes.HasPrefix(f.Source, []byte("//go:build soak\n")) {
			continue // make test does not run it
		}
		for _, decl := range f.AST.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !f.Test || fn.Recv != nil {
				continue
			}
			have[fn.Name.Name] = true
			if strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz") {
				for _, msg := range unlisted(byNumber, fn.Name.Name) {
					out = append(out, f.at(fn.Pos(), "faults", "%s in %s", msg, doc))
				}
			}
		}
	}
	for _, m := range testFunc.FindAllSubmatch(others, -1) {
		have[string(m[1])] = true
		for _, msg := range unlisted(byNumber, string(m[1])) {
			out = append(out, Violation{doc, "faults", msg})
		}
	}
	for _, r := range rows {
		for _, named := range r.Tests {
			top, _, _ := strings.Cut(named, "/")
			if prefix, star := strings.CutSuffix(top, "*"); !have[top] && !(star && anyBegins(have, prefix)) {
				out = append(out, Violation{doc + ":" + strconv.Itoa(r.Line), "faults", "no test is called " + top})
			}
		}
	}
	return out
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9_]+)\(`)

func anyBegins(names map[string]bool, prefix string) bool {
	for name := range names {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// unlisted is faults.Unlisted, content with a row that names subtests alone.
func unlisted(byNumber map[string]faults.Row, test string) []string {
	var out []string
	for _, msg := range faults.Unlisted(byNumber, test) {
		listed := false
		for _, n := range faults.Numbers(test) {
			for _, named := range byNumber[n].Tests {
				listed = listed || strings.HasPrefix(named, test+"/")
			}
		}
		if !listed {
			out = append(out, msg)
		}
	}
	return out
}

// proxyFaults is the last of the faults that the proxy has to hold by itself.
const proxyFaults = "F108"

// FaultMutants checks that every fault of severity C that is the proxy's has a
// mutant in the list (tools/mutants/list.txt): one whose guard or whose test bears
// its number.
func FaultMutants(doc string, rows []faults.Row, list []byte) []Violation {
	guarded := map[string]bool{}
	for line := range strings.SplitSeq(string(list), "\n") {
		if strings.HasPrefix(line, "= ") || strings.HasPrefix(line, "test ") {
			for _, n := range faults.Numbers(line) {
				guarded[n] = true
			}
		}
	}
	var out []Violation
	for _, r := range rows {
		if r.Severity == "C" && r.Number <= proxyFaults && !guarded[r.Number] {
			out = append(out, Violation{doc + ":" + strconv.Itoa(r.Line), "mutants", r.Number + " has no mutant: which guard holds it?"})
		}
	}
	return out
}
