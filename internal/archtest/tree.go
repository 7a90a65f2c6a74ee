// Package archtest holds the rules of the source tree that the compiler does
// not check: which way imports point, which package alone may use which
// library, who may reveal a secret, and the house rules.
//
// Invariants:
//
//   - A rule is a pure function of a tree of files, so that a test can break it
//     on purpose and see that it is noticed.
//   - What is not listed is a violation: a new package or library has to be
//     given its place here.
//   - A table row that nothing uses any more is a violation too, so the tables
//     stay true.
package archtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Module is the module path of the product.
const Module = "warder"

// File is one parsed Go file. Build constraints are not applied: every file
// counts on every system.
type File struct {
	Path   string // slash-separated, from the root of the tree
	Dir    string // "." for the root
	Test   bool   // a test file, or a file of a package for tests (its folder ends in "test")
	AST    *ast.File
	Fset   *token.FileSet
	Source []byte
}

// Violation is a broken rule at a place.
type Violation struct {
	At   string // PATH:LINE or PATH
	Rule string
	Msg  string
}

func (v Violation) String() string { return v.At + ": " + v.Rule + ": " + v.Msg }

func (f *File) at(pos token.Pos, rule, format string, args ...any) Violation {
	return Violation{f.Path + ":" + strconv.Itoa(f.Fset.Position(pos).Line), rule, fmt.Sprintf(format, args...)}
}

// Imports yields the import paths of the file with their positions.
func (f *File) Imports() func(yield func(string, token.Pos) bool) {
	return func(yield func(string, token.Pos) bool) {
		for _, spec := range f.AST.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err == nil && !yield(p, spec.Pos()) {
				return
			}
		}
	}
}

// Load parses the Go files of the module at the root of fsys: nested modules,
// testdata and what starts with "." or "_" are other trees.
func Load(fsys fs.FS) ([]*File, error) {
	var files []*File
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return enter(fsys, p, d.Name())
		}
		if path.Ext(p) != ".go" || strings.HasPrefix(d.Name(), "_") || strings.HasPrefix(d.Name(), ".") {
			return nil
		}
		src, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, p, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("archtest: parse: %w", err)
		}
		test := strings.HasSuffix(p, "_test.go") || strings.HasSuffix(path.Dir(p), "test")
		files = append(files, &File{p, path.Dir(p), test, parsed, fset, src})
		return nil
	})
	if err == nil && len(files) == 0 {
		err = errors.New("archtest: no Go file found")
	}
	return files, err
}

func enter(fsys fs.FS, p, name string) error {
	if p == "." {
		return nil
	}
	if name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return fs.SkipDir
	}
	if _, err := fs.Stat(fsys, path.Join(p, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

// under reports whether dir is one of the folders or below one of them.
func under(dir string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return dir == f || strings.HasPrefix(dir, f+"/") })
}
