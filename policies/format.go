package policies

import (
	"bytes"
	"os"
	"path/filepath"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"
)

// FormattedFile is one Rego file, laid out as `opa fmt` does it.
type FormattedFile struct {
	Path    string // as it can be opened
	Content []byte
	Changed bool // it was laid out otherwise
}

// Format lays out every *.rego file of the folder, tests too, and changes
// none. A file that does not parse is a *LoadError.
func Format(dir string) ([]FormattedFile, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	paths, err := f.list()
	if err != nil {
		return nil, err
	}
	var files []FormattedFile
	failure := &LoadError{Dir: dir}
	for _, rel := range paths {
		if kindOf(rel) == "data" {
			continue
		}
		name := filepath.Join(dir, filepath.FromSlash(rel))
		source, err := readBounded(name, maxFileBytes)
		if err != nil {
			return nil, loadFailure(dir, name, "cannot read: %v", plain(err)).withCause(err)
		}
		content, err := format.SourceWithOpts(name, source, format.Opts{
			RegoVersion:   ast.RegoV1,
			ParserOptions: &ast.ParserOptions{ProcessAnnotation: true, RegoVersion: ast.RegoV1},
		})
		if err != nil {
			failure.Problems = append(failure.Problems, problemsOf(name, err)...)
			continue
		}
		files = append(files, FormattedFile{Path: name, Content: content, Changed: !bytes.Equal(content, source)})
	}
	if len(failure.Problems) == 0 && len(files) == 0 {
		return nil, loadFailure(dir, dir, "the folder holds no *.rego file")
	}
	return files, failure.orNil()
}

// Write replaces the file by its content, and keeps its mode.
func (f FormattedFile) Write() error {
	info, err := os.Stat(f.Path)
	if err != nil {
		return err
	}
	return os.WriteFile(f.Path, f.Content, info.Mode().Perm())
}
