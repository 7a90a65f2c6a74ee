package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"
	"go.yaml.in/yaml/v3"
)

// Bounds of a policy folder. Beyond them loading fails instead of slowing
// down everything that follows.
const (
	maxFiles      = 20_000
	maxFileBytes  = 64 << 20
	maxTotalBytes = 128 << 20
	maxProblems   = 50 // reported at once
	maxDataDepth  = 200
	maxDataNumber = 400 // characters of one number
)

// Problem is one thing wrong with a policy. Line and Column count from 1; 0
// means that there is none.
type Problem struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
}

// String is "file:line:column: message", as far as the parts are known.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
			if p.Column > 0 {
				fmt.Fprintf(&b, ":%d", p.Column)
			}
		}
		b.WriteString(": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// LoadError says why a policy does not load.
type LoadError struct {
	Dir      string
	Problems []Problem // at least one
	Cause    error     // of the file system, when it was one
}

func (e *LoadError) Error() string {
	if len(e.Problems) == 1 {
		return "policies: load: " + e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "policies: load: %s: %d problems", e.Dir, len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

func (e *LoadError) Unwrap() error { return e.Cause }

func loadFailure(dir, file, format string, args ...any) *LoadError {
	err := &LoadError{Dir: dir, Problems: []Problem{{File: file, Message: fmt.Sprintf(format, args...)}}}
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err.Cause = cause
		}
	}
	return err
}

// folder is a policy folder as read: nothing is read twice, so that the digest
// is that of what was compiled.
type folder struct {
	dir     string
	sources []Source               // sorted by path
	modules map[string]*ast.Module // by display path, without tests
	tests   map[string]*ast.Module // *_test.rego
	data    map[string]any
}

// readFolder reads every *.rego, *.json, *.yaml and *.yml under dir. Names that
// start with a dot are left out, which also hides the versioned folders behind
// a mounted Kubernetes ConfigMap; links to files are followed, links to folders
// are an error, because leaving one out silently could lose a deny.
func readFolder(dir string) (*folder, error) { return readFolderWithout(dir, false) }

// readFolderWithout leaves out the folders of other parts when the text is a
// recorded one.
func readFolderWithout(dir string, recorded bool) (*folder, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	paths, err := f.list()
	if err != nil {
		return nil, err
	}
	if recorded {
		paths = slices.DeleteFunc(paths, func(rel string) bool {
			top, _, _ := strings.Cut(rel, "/")
			return recordedPart(top)
		})
	}
	return f, f.parse(paths, func(rel string) ([]byte, error) {
		return readBounded(filepath.Join(f.dir, filepath.FromSlash(rel)), maxFileBytes)
	})
}

func openFolder(dir string) (*folder, error) {
	if dir == "" {
		return nil, loadFailure(dir, "", "no policy folder is given\nhint: set policy.path in the configuration, or give --policy DIR")
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, loadFailure(dir, dir, "cannot read the policy folder: %v\nhint: policy.path must name a folder with *.rego files", plain(err)).withCause(err)
	}
	if !info.IsDir() {
		return nil, loadFailure(dir, dir, "is not a folder\nhint: policy.path must name a folder with *.rego files")
	}
	return &folder{dir: dir, modules: map[string]*ast.Module{}, tests: map[string]*ast.Module{}, data: map[string]any{}}, nil
}

func (e *LoadError) withCause(err error) *LoadError {
	e.Cause = err
	return e
}

// plain drops the operation and path that a *fs.PathError repeats.
func plain(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

func (f *folder) list() ([]string, error) {
	var paths []string
	root := f.dir + string(filepath.Separator) // the folder that was named may itself be a link
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return loadFailure(f.dir, p, "cannot read: %v", plain(err)).withCause(err)
		}
		if p != root && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			return nil
		}
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Stat(p)
			if err != nil {
				return loadFailure(f.dir, p, "cannot follow the link: %v", plain(err)).withCause(err)
			}
			if target.IsDir() {
				return loadFailure(f.dir, p, "is a link to a folder, which is not followed\nhint: copy the folder, or name it as the policy path")
			}
		}
		if kindOf(p) == "" {
			return nil
		}
		rel, err := filepath.Rel(f.dir, p)
		if err != nil {
			return loadFailure(f.dir, p, "cannot name: %v", err)
		}
		paths = append(paths, filepath.ToSlash(rel))
		if len(paths) > maxFiles {
			return loadFailure(f.dir, f.dir, "more than %d files", maxFiles)
		}
		return nil
	})
	slices.Sort(paths)
	return paths, err
}

// kindOf tells files of a policy from others by their names: "test", "rego", "data" or "".
func kindOf(name string) string {
	switch {
	case strings.HasSuffix(name, "_test.rego"):
		return "test"
	case strings.HasSuffix(name, ".rego"):
		return "rego"
	case strings.HasSuffix(name, ".json"), strings.HasSuffix(name, ".yaml"), strings.HasSuffix(name, ".yml"):
		return "data"
	}
	return ""
}

// parse reads the files, by their paths in the folder, sorted.
func (f *folder) parse(paths []string, read func(rel string) ([]byte, error)) error {
	failure := &LoadError{Dir: f.dir}
	total := 0
	for _, rel := range paths {
		shown := filepath.Join(f.dir, filepath.FromSlash(rel))
		content, err := read(rel)
		if err != nil {
			return loadFailure(f.dir, shown, "cannot read: %v", plain(err)).withCause(err)
		}
		if total += len(content); total > maxTotalBytes {
			return loadFailure(f.dir, f.dir, "more than %d MiB in one policy folder", maxTotalBytes>>20)
		}
		kind := kindOf(rel)
		if kind == "data" {
			failure.Problems = append(failure.Problems, f.addData(rel, shown, content)...)
		} else {
			module, problems := parseModule(shown, content)
			failure.Problems = append(failure.Problems, problems...)
			if kind == "test" {
				f.tests[shown] = module
				continue
			}
			f.modules[shown] = module
		}
		sum := sha256.Sum256(content)
		f.sources = append(f.sources, Source{Path: rel, SHA256: hex.EncodeToString(sum[:]), Content: content})
	}
	if len(failure.Problems) == 0 && len(f.modules) == 0 {
		failure.Problems = append(failure.Problems, Problem{File: f.dir, Message: "the policy folder holds no *.rego file\nhint: write package warder.egress there, or name another folder in policy.path"})
	}
	return failure.orNil()
}

func (e *LoadError) orNil() error {
	if len(e.Problems) == 0 {
		return nil
	}
	if more := len(e.Problems) - maxProblems; more > 0 {
		e.Problems = append(e.Problems[:maxProblems:maxProblems], Problem{Message: fmt.Sprintf("and %d more", more)})
	}
	return e
}

func readBounded(name string, limit int64) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // opened for reading: nothing can be lost
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("larger than %d MiB", limit>>20)
	}
	return content, err
}

func parseModule(name string, content []byte) (*ast.Module, []Problem) {
	module, err := ast.ParseModuleWithOpts(name, string(content), ast.ParserOptions{ProcessAnnotation: true, RegoVersion: ast.RegoV1})
	if err != nil {
		return nil, problemsOf(name, err)
	}
	if module == nil {
		return nil, []Problem{{File: name, Line: 1, Message: "the file is empty: it must start with `package warder.egress`"}}
	}
	return module, nil
}

// addData merges one data file. As with opa, a file's place in the folder is
// its place in data, and its name says nothing: teams/data.json is data.teams.
func (f *folder) addData(rel, shown string, content []byte) []Problem {
	if strings.HasSuffix(rel, ".json") {
		if line, column, ok := checkJSON(content); !ok {
			return []Problem{{File: shown, Line: line, Column: column, Message: "cannot parse: not strict JSON (RFC 8259, without duplicate names)"}}
		}
	}
	if !strings.HasSuffix(rel, ".json") {
		// util.Unmarshal lets the last of two equal keys win; this does not.
		var twice any
		if err := yaml.Unmarshal(content, &twice); err != nil {
			return []Problem{yamlProblem(shown, err)}
		}
	}
	var value any
	if err := util.Unmarshal(content, &value); err != nil {
		return []Problem{{File: shown, Message: "cannot parse: " + firstLine(err.Error())}}
	}
	object, ok := value.(map[string]any)
	if !ok {
		return []Problem{{File: shown, Message: "a data file must hold an object"}}
	}
	parts := strings.Split(path.Dir(rel), "/")
	for i := len(parts) - 1; i >= 0 && parts[i] != "."; i-- {
		object = map[string]any{parts[i]: object}
	}
	if _, taken := object["warder"]; taken {
		return []Problem{{File: shown, Message: "data.warder is reserved for rules: name the key differently"}}
	}
	if at := mergeInto(f.data, object); at != "" {
		return []Problem{{File: shown, Message: fmt.Sprintf("data.%s is also set by another file", at)}}
	}
	return nil
}

// yamlProblem finds the line in an error such as "yaml: line 3: …".
func yamlProblem(shown string, err error) Problem {
	p := Problem{File: shown, Message: "cannot parse: " + strings.Join(strings.Fields(err.Error()), " ")}
	if m := regexp.MustCompile(`line (\d+)`).FindStringSubmatch(p.Message); m != nil {
		p.Line, _ = strconv.Atoi(m[1]) // digits alone; too many of them mean no line
	}
	return p
}

// mergeInto adds src to dst and returns where both hold a value, or "".
func mergeInto(dst, src map[string]any) string {
	for key, value := range src {
		old, exists := dst[key]
		if !exists {
			dst[key] = value
			continue
		}
		oldObject, ok1 := old.(map[string]any)
		newObject, ok2 := value.(map[string]any)
		if !ok1 || !ok2 {
			return key
		}
		if at := mergeInto(oldObject, newObject); at != "" {
			return key + "." + at
		}
	}
	return ""
}

func digestOf(sources []Source) string {
	h := sha256.New()
	for _, s := range sources {
		_, _ = io.WriteString(h, s.SHA256+"  "+s.Path+"\n") // a hash never fails
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// problemsOf turns errors of the parser, the compiler and the loader into problems.
func problemsOf(name string, err error) []Problem {
	var list ast.Errors
	if errors.As(err, &list) {
		problems := make([]Problem, 0, len(list))
		for _, e := range list {
			problems = append(problems, problemOf(name, e))
		}
		return problems
	}
	var single *ast.Error
	if errors.As(err, &single) {
		return []Problem{problemOf(name, single)}
	}
	return []Problem{{File: name, Message: err.Error()}}
}

func problemOf(name string, e *ast.Error) Problem {
	p := Problem{File: name, Message: e.Code + ": " + e.Message}
	if e.Location != nil {
		if e.Location.File != "" {
			p.File = e.Location.File
		}
		p.Line, p.Column = e.Location.Row, e.Location.Col
	}
	if e.Details != nil {
		for _, line := range e.Details.Lines() {
			if line = strings.TrimSpace(line); line != "" && line != "^" {
				p.Message += "\n    " + line
			}
		}
	}
	return p
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}
