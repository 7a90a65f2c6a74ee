package archtest

import (
	"bytes"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// revealers are the folders that may read the value of a secret.String.
var revealers = []string{"broker", "internal/scrub", "internal/secret"}

// Reveal checks that nobody else mentions the method: called, taken as a value
// or looked up by name, in tests too.
func Reveal(files []*File) []Violation {
	var out []Violation
	for _, f := range files {
		if under(f.Dir, revealers...) || under(f.Dir, "internal/archtest") {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if n.Sel.Name == "Reveal" {
					out = append(out, f.at(n.Pos(), "reveal", "only %s may reveal a secret", strings.Join(revealers, ", ")))
				}
			case *ast.BasicLit:
				if n.Kind == token.STRING && strings.Trim(n.Value, "`\"") == "Reveal" {
					out = append(out, f.at(n.Pos(), "reveal", "reflection must not reveal a secret"))
				}
			}
			return true
		})
	}
	return out
}

// House checks what is not about imports: unverified TLS, output outside of the
// command, init functions, tests that skip or sleep without saying why.
func House(files []*File) []Violation {
	var out []Violation
	for _, f := range files {
		reasons := commentLines(f)
		for _, decl := range f.AST.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Name.Name == "init" && fn.Recv == nil {
				out = append(out, f.at(fn.Pos(), "init", "work at import time cannot be ordered, refused or tested"))
			}
		}
		polling := loops(f)
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if v, bad := f.judge(n, reasons, polling); bad {
				out = append(out, v)
			}
			return true
		})
		if lines := bytes.Count(f.Source, []byte("\n")); lines > maxLines && !f.Test {
			out = append(out, Violation{f.Path, "size", strconv.Itoa(lines) + " lines: split it"})
		}
	}
	return out
}

// maxLines of a file that is not a test; most stay near 300.
const maxLines = 500

// loops are the bodies of for statements: a sleep in one is a poll.
func loops(f *File) []*ast.BlockStmt {
	var out []*ast.BlockStmt
	ast.Inspect(f.AST, func(n ast.Node) bool {
		if loop, ok := n.(*ast.ForStmt); ok {
			out = append(out, loop.Body)
		}
		return true
	})
	return out
}

func (f *File) judge(n ast.Node, reasons map[int]bool, polling []*ast.BlockStmt) (Violation, bool) {
	printer := under(f.Dir, "cmd", "tools")
	switch n := n.(type) {
	case *ast.Ident:
		if n.Name == "InsecureSkipVerify" && !f.Test {
			return f.at(n.Pos(), "tls", "certificates are verified, always"), true
		}
	case *ast.CallExpr:
		if id, ok := n.Fun.(*ast.Ident); ok && !f.Test && (id.Name == "print" || id.Name == "println") {
			return f.at(n.Pos(), "print", "use log/slog or return an error"), true
		}
		sel, ok := n.Fun.(*ast.SelectorExpr)
		if !ok {
			break
		}
		recv, _ := sel.X.(*ast.Ident)
		line := f.Fset.Position(n.Pos()).Line
		switch {
		case recv != nil && recv.Name == "fmt" && strings.HasPrefix(sel.Sel.Name, "Print") && !printer && !f.Test:
			return f.at(n.Pos(), "print", "only the command talks to the terminal"), true
		case recv != nil && recv.Name == "os" && sel.Sel.Name == "Exit" && !printer && !f.Test && !under(f.Dir, "runner"):
			// The runner is exempt for its helper, which is a process of its own.
			return f.at(n.Pos(), "exit", "return an error: os.Exit skips every clean-up"), true
		case recv != nil && recv.Name == "time" && sel.Sel.Name == "Sleep" && !reasons[line] && !inside(n, polling):
			return f.at(n.Pos(), "sleep", "wait for a condition; a sleep outside of a loop needs a comment that says why"), true
		case f.Test && recv != nil && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) && !reasons[line]:
			return f.at(n.Pos(), "skip", "a test that cannot run fails; a skip needs a comment that says why"), true
		}
	}
	return Violation{}, false
}

func inside(n ast.Node, blocks []*ast.BlockStmt) bool {
	return slices.ContainsFunc(blocks, func(b *ast.BlockStmt) bool { return b.Pos() <= n.Pos() && n.End() <= b.End() })
}

// commentLines are the lines that have a comment, or follow one.
func commentLines(f *File) map[int]bool {
	lines := map[int]bool{}
	for _, g := range f.AST.Comments {
		first, last := f.Fset.Position(g.Pos()).Line, f.Fset.Position(g.End()).Line
		for l := first; l <= last+1; l++ {
			lines[l] = true
		}
	}
	return lines
}

// PackageComments checks that every package says what it is.
func PackageComments(files []*File) []Violation {
	documented, seen := map[string]bool{}, map[string]*File{}
	for _, f := range files {
		if f.Test {
			continue
		}
		if seen[f.Dir] == nil {
			seen[f.Dir] = f
		}
		if doc := f.AST.Doc.Text(); f.AST.Name.Name == "main" && doc != "" || strings.HasPrefix(doc, "Package "+f.AST.Name.Name+" ") {
			documented[f.Dir] = true
		}
	}
	var out []Violation
	for dir, f := range seen {
		if !documented[dir] {
			out = append(out, Violation{f.Path, "package comment", "package " + f.AST.Name.Name + " has none"})
		}
	}
	return out
}

var testName = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Za-z0-9_]+)`")

// NamedTests checks that every test which a document names in backticks exists.
func NamedTests(doc string, text []byte, files []*File) []Violation {
	have := map[string]bool{}
	for _, f := range files {
		for _, decl := range f.AST.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && f.Test && fn.Recv == nil {
				have[fn.Name.Name] = true
			}
		}
	}
	var out []Violation
	found := false
	for i, line := range bytes.Split(text, []byte("\n")) {
		for _, m := range testName.FindAllSubmatch(line, -1) {
			found = true
			if !have[string(m[1])] {
				out = append(out, Violation{doc + ":" + strconv.Itoa(i+1), "named tests", "no test is called " + string(m[1])})
			}
		}
	}
	if !found {
		out = append(out, Violation{doc, "named tests", "names no test at all"})
	}
	return out
}

// InvariantTests checks that each of the first n invariants is named (I1, I2, …)
// by a test: in its name, its comment or a case.
func InvariantTests(n int, files []*File) []Violation {
	var out []Violation
	for i := 1; i <= n; i++ {
		re := regexp.MustCompile(`(?:Test|Fuzz|[^A-Za-z0-9])I` + strconv.Itoa(i) + `[^0-9]`)
		if !slices.ContainsFunc(files, func(f *File) bool { return f.Test && !under(f.Dir, "internal/archtest") && re.Match(f.Source) }) {
			out = append(out, Violation{"CONTRIBUTING.md", "invariants", "no test names invariant I" + strconv.Itoa(i)})
		}
	}
	return out
}
