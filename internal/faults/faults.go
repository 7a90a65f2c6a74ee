// Package faults reads docs/faults.md, the table of publicly known faults of such
// systems and of the tests that hold each of them here, and compares it with the
// tests that ran.
//
// A row is
//
//	| F017 | H | ports that are not plain decimal | `TestParseAuthorityPorts_F017` `TestOneAuthority_I5/F017*` |
//
// number, severity (C leads to the loss of a secret, of the policy or of the
// proxy; H breaks isolation, availability or evidence in part; M breaks correct
// clients or misleads operators), the fault, and the tests. A test is named as go
// test names it, subtests with a slash; "*" at the end stands for the rest of one
// or several names.
//
// Invariants:
//
//   - A test in a row bears the row's number in its name, and a test that bears a
//     number stands in that row: neither side can be forgotten.
//   - Only a test that ran and passed is evidence. One that was skipped, or does
//     not exist any more, is a violation.
package faults

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Row is one fault.
type Row struct {
	Number   string // F001
	Severity string // C, H or M
	Title    string
	Tests    []string // at least one
	Line     int      // in the table's file
}

var (
	rowForm  = regexp.MustCompile(`^\| (F[0-9]{3}) \| ([CHM]) \| ([^|]+) \| ([^|]+) \|$`)
	testForm = regexp.MustCompile("^`((?:Test|Fuzz)[^`* ]*\\*?)`$")
	number   = regexp.MustCompile(`(^|[^0-9A-Za-z]|Test|Fuzz)(F[0-9]{3})`)
)

// Parse reads the rows. Lines that do not begin like a row are text.
func Parse(table []byte) ([]Row, error) {
	var rows []Row
	last := ""
	for i, line := range bytes.Split(table, []byte("\n")) {
		if !bytes.HasPrefix(line, []byte("| F")) {
			continue
		}
		m := rowForm.FindSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("faults: line %d is not of the form | F000 | C, H or M | fault | `tests` |", i+1)
		}
		r := Row{Number: string(m[1]), Severity: string(m[2]), Title: string(m[3]), Line: i + 1}
		for _, name := range strings.Fields(string(m[4])) {
			t := testForm.FindStringSubmatch(name)
			if t == nil {
				return nil, fmt.Errorf("faults: line %d: %s is not the name of a test in backticks", i+1, name)
			}
			if !slices.Contains(Numbers(t[1]), r.Number) {
				return nil, fmt.Errorf("faults: line %d: %s does not bear the number %s in its name", i+1, t[1], r.Number)
			}
			r.Tests = append(r.Tests, t[1])
		}
		if r.Number <= last {
			return nil, fmt.Errorf("faults: line %d: %s does not follow on %s", i+1, r.Number, last)
		}
		last = r.Number
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("faults: no row")
	}
	return rows, nil
}

// Numbers are the faults that a test's name bears.
func Numbers(test string) []string {
	var out []string
	for _, m := range number.FindAllStringSubmatchIndex(test, -1) {
		if end := m[5]; end == len(test) || test[end] < '0' || test[end] > '9' {
			out = append(out, test[m[4]:end])
		}
	}
	return out
}

// Covers reports that the name in a row stands for the test: it is it, one of its
// parents, or begins it where the name ends in "*".
func Covers(named, test string) bool {
	if prefix, ok := strings.CutSuffix(named, "*"); ok {
		return strings.HasPrefix(test, prefix)
	}
	return test == named || strings.HasPrefix(test, named+"/")
}

// Ran holds what became of each test: "pass", "fail" or "skip". A test of the same
// name in two packages has the worse of both.
type Ran map[string]string

// Add notes an outcome. A test that another runs again as its subtest, under the whole
// of its name, is that test once more.
func (r Ran) Add(test, outcome string) {
	if i := strings.LastIndex(test, "/Test"); i >= 0 {
		test = test[i+1:]
	}
	if had, ok := r[test]; !ok || had == "pass" {
		r[test] = outcome
	}
}

// Compare says where the table and what ran differ.
func Compare(rows []Row, ran Ran) []string {
	var wrong []string
	byNumber := make(map[string]Row, len(rows))
	for _, r := range rows {
		byNumber[r.Number] = r
		for _, named := range r.Tests {
			if how := outcome(named, ran); how != "pass" {
				wrong = append(wrong, fmt.Sprintf("line %d: %s: %s %s", r.Line, r.Number, named, how))
			}
		}
	}
	for _, test := range slices.Sorted(maps.Keys(ran)) {
		wrong = append(wrong, Unlisted(byNumber, test)...)
	}
	return wrong
}

// Unlisted says which numbers of a test's own name do not lead to it.
func Unlisted(byNumber map[string]Row, test string) []string {
	var wrong []string
	parent, own := "", test
	if i := strings.LastIndexByte(test, '/'); i >= 0 {
		parent, own = test[:i], test[i+1:]
	}
	for _, n := range Numbers(own) {
		if slices.Contains(Numbers(parent), n) {
			continue // said of the parent
		}
		if !slices.ContainsFunc(byNumber[n].Tests, func(named string) bool { return Covers(named, test) }) {
			wrong = append(wrong, fmt.Sprintf("%s bears the number %s, whose row does not name it: add `%s`", test, n, test))
		}
	}
	return wrong
}

// outcome of all tests that a name in a row stands for.
func outcome(named string, ran Ran) string {
	how := "did not run"
	for test, out := range ran {
		exact := test == named || strings.HasSuffix(named, "*") && Covers(named, test)
		switch {
		case !exact:
		case out != "pass":
			return map[string]string{"fail": "failed", "skip": "was skipped"}[out]
		default:
			how = "pass"
		}
	}
	return how
}
