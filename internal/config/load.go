package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile is the largest warder.yaml in bytes; a bigger file is a mistake.
const maxFile = 1 << 20

// Error is a fault of the file, at a place in it.
type Error struct {
	File      string
	Line, Col int    // 1-based; columns count characters
	Msg       string // one sentence, no capital, no full stop
	Hint      string // what to do about it; may be empty
}

// Error is "FILE:LINE:COL: message; hint: …".
func (e *Error) Error() string {
	s := fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Col, e.Msg)
	if e.Hint != "" {
		s += "; hint: " + e.Hint
	}
	return s
}

// Load reads and checks the file at path. A fault in its text is an *Error, or
// several joined ones (errors.Join) in the order of the file.
func Load(path string) (*Config, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("config: %s: %w", path, err)
	}
	f, err := os.Open(abs)
	if err != nil {
		return nil, fmt.Errorf("config: %w; hint: check the path given by --config or $%s", err, EnvFile)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("config: read: %w", err)
	}
	return parse(abs, data, homeDir())
}

// parse turns the text of file (an absolute path) into a Config.
func parse(file string, data []byte, home string) (*Config, error) {
	body, err := document(file, data)
	if err != nil {
		return nil, err
	}
	w := &walker{file: file, marks: marks{}}
	w.walk("", body, reflect.TypeFor[Config]())
	if err := w.faults.join(); err != nil {
		return nil, err
	}
	c := &Config{}
	if err := yaml.NodeToValue(body, c, yaml.Strict()); err != nil {
		return nil, located(file, err)
	}
	c.File, c.marks = file, w.marks
	c.resolve(filepath.Dir(file), home)
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.fillDefaults()
	return c, nil
}

// document returns the root mapping of the only document in data.
func document(file string, data []byte) (ast.Node, error) {
	at := func(line, col int, msg, hint string) error {
		return &Error{File: file, Line: line, Col: col, Msg: msg, Hint: hint}
	}
	if len(data) > maxFile {
		return nil, at(1, 1, fmt.Sprintf("the file is larger than %d bytes", maxFile), "")
	}
	if line, col, ok := firstBad(data); !ok {
		return nil, at(line, col, "not UTF-8 text, or a control character", "")
	}
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, located(file, err)
	}
	var body ast.Node
	for i, doc := range f.Docs {
		if i > 0 {
			line, col := 1, 1
			if doc.Start != nil {
				line, col = doc.Start.Position.Line, doc.Start.Position.Column
			} else if doc.Body != nil {
				line, col = position(doc.Body)
			}
			return nil, at(line, col, "a second document", "keep one document in the file")
		}
		body = doc.Body
	}
	switch body.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return body, nil
	case nil, *ast.CommentGroupNode, *ast.NullNode:
		return nil, at(1, 1, "the file is empty", `start with "version: 1"`)
	}
	line, col := position(body)
	return nil, at(line, col, "the file is not a mapping", `start with "version: 1"`)
}

// firstBad finds the first byte that is not part of UTF-8 text, and the control
// characters that YAML forbids (https://yaml.org/spec/1.2.2/#51-character-set).
func firstBad(data []byte) (line, col int, ok bool) {
	line, col = 1, 1
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		if r == utf8.RuneError && n == 1 || r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0x7f {
			return line, col, false
		}
		col++
		if r == '\n' {
			line, col = line+1, 1
		}
		data = data[n:]
	}
	return 0, 0, true
}

// located turns an error of the YAML library into ours.
func located(file string, err error) error {
	var ye yaml.Error
	if errors.As(err, &ye) && ye.GetToken() != nil && ye.GetToken().Position != nil {
		p := ye.GetToken().Position
		return &Error{File: file, Line: max(p.Line, 1), Col: max(p.Column, 1), Msg: ye.GetMessage()}
	}
	return &Error{File: file, Line: 1, Col: 1, Msg: err.Error()}
}
