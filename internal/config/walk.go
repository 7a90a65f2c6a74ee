package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// pos is a place in the file, 1-based.
type pos struct{ line, col int }

func (p pos) compare(q pos) int {
	return cmp.Or(cmp.Compare(p.line, q.line), cmp.Compare(p.col, q.col))
}

// mark is where a key and its value stand.
type mark struct{ key, value pos }

// marks maps a dotted key ("credentials.github.hosts[0]") to its place.
type marks map[string]mark

// At returns "FILE:LINE:COL" of a dotted key such as "policy.path", or of its
// nearest parent that is in the file, or just the file; "" without a file.
func (c *Config) At(key string) string {
	if c.File == "" {
		return ""
	}
	if m, ok := c.marks.nearest(key); ok {
		return fmt.Sprintf("%s:%d:%d", c.File, m.value.line, m.value.col)
	}
	return c.File
}

// Locate turns an error that starts with a dotted key and a colon, such as the
// broker's "credentials.x.hosts: …", into an *Error at that key's place. Other
// errors, and all errors without a file, are returned as they are.
func (c *Config) Locate(err error) error {
	if err == nil || c.File == "" {
		return err
	}
	msg, hint, _ := strings.Cut(err.Error(), "; hint: ")
	key, _, _ := strings.Cut(msg, ": ")
	at, ok := c.marks.nearest(key)
	if !ok {
		return err
	}
	return &Error{File: c.File, Line: at.value.line, Col: at.value.col, Msg: msg, Hint: hint}
}

func (m marks) nearest(key string) (mark, bool) {
	for {
		if at, ok := m[key]; ok {
			return at, true
		}
		i := strings.LastIndexAny(key, ".[")
		if i < 0 {
			return mark{}, false
		}
		key = key[:i]
	}
}

// faults collects errors, to be reported together in the order of the file.
type faults []*Error

func (f faults) join() error {
	slices.SortStableFunc(f, func(a, b *Error) int {
		return pos{a.Line, a.Col}.compare(pos{b.Line, b.Col})
	})
	var errs []error
	for _, e := range f {
		errs = append(errs, e)
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// maxDepth of nested collections; the deepest documented key has 6.
const maxDepth = 16

// walker checks the shape of the tree against the Go types before decoding, so
// that every fault has its place and the decoder has nothing left to guess.
type walker struct {
	file   string
	marks  marks
	faults faults
	depth  int
}

func (w *walker) fault(p pos, hint, format string, args ...any) {
	w.faults = append(w.faults, &Error{File: w.file, Line: p.line, Col: p.col, Msg: fmt.Sprintf(format, args...), Hint: hint})
}

func (w *walker) walk(key string, n ast.Node, t reflect.Type) {
	at := place(n)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if w.depth++; w.depth > maxDepth {
		w.fault(at, "", "nested more than %d deep", maxDepth)
		return
	}
	defer func() { w.depth-- }()
	switch n := n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		w.fault(at, "write the value out", "anchors, aliases, tags and merge keys are not supported")
	case *ast.NullNode, nil:
		// A section may be left empty; below, an empty value could be read as
		// "any" where "none" was meant.
		if strings.ContainsAny(key, ".[") || key == "version" {
			w.fault(at, "give it a value or remove the line", "%s has no value", strconv.Quote(key))
		}
	case *ast.MappingNode:
		w.mapping(key, n.Values, at, t)
	case *ast.MappingValueNode:
		w.mapping(key, []*ast.MappingValueNode{n}, at, t)
	case *ast.SequenceNode:
		w.sequence(key, n, at, t)
	default:
		w.scalar(key, n, at, t)
	}
}

func (w *walker) mapping(key string, values []*ast.MappingValueNode, at pos, t reflect.Type) {
	free := t.Kind() == reflect.Interface
	if t.Kind() != reflect.Struct && t.Kind() != reflect.Map && !free {
		w.fault(at, "", "%q must be %s, not a mapping", key, want(t))
		return
	}
	seen := map[string]pos{}
	for _, v := range values {
		k, ok := v.Key.(*ast.StringNode)
		if !ok {
			w.fault(place(v.Key), "quote the key", "a key must be plain text")
			continue
		}
		kp := place(k)
		if first, dup := seen[k.Value]; dup {
			w.fault(kp, "", "duplicate key %q, first at line %d", k.Value, first.line)
			continue
		}
		seen[k.Value] = kp
		child := join(key, k.Value)
		w.marks[child] = mark{kp, valuePlace(v)}
		vt := t
		switch {
		case t.Kind() == reflect.Map:
			vt = t.Elem()
		case t.Kind() == reflect.Struct:
			if vt, ok = fieldType(t, k.Value); !ok {
				w.unknown(key, k.Value, kp, t)
				continue
			}
		}
		if isNull(v.Value) { // its own place is past the end of the line
			if key != "" || k.Value == "version" {
				w.fault(kp, "give it a value or remove the line", "%q has no value", child)
			}
			continue
		}
		w.walk(child, v.Value, vt)
	}
}

func (w *walker) sequence(key string, n *ast.SequenceNode, at pos, t reflect.Type) {
	vt := t
	switch t.Kind() {
	case reflect.Slice:
		vt = t.Elem()
	case reflect.Array:
		vt = t.Elem()
		if len(n.Values) != t.Len() {
			w.fault(at, "", "%q must be a list of %d, not of %d", key, t.Len(), len(n.Values))
			return
		}
	case reflect.Interface:
	default:
		w.fault(at, "", "%q must be %s, not a list", key, want(t))
		return
	}
	for i, v := range n.Values {
		child := key + "[" + strconv.Itoa(i) + "]"
		w.marks[child] = mark{at, place(v)}
		w.walk(child, v, vt)
	}
}

// scalar refuses a value of another kind than the field's: YAML would turn
// "field: 1.10" into 1.1, and "mode: true" into a word that nobody wrote.
func (w *walker) scalar(key string, n ast.Node, at pos, t reflect.Type) {
	switch t {
	case reflect.TypeFor[Duration]():
		if _, err := ParseDuration(scalarText(n)); err != nil {
			w.fault(at, "", "%q: %v", key, err)
		}
		return
	case reflect.TypeFor[Size]():
		if _, err := ParseSize(scalarText(n)); err != nil {
			w.fault(at, "", "%q: %v", key, err)
		}
		return
	}
	ok := t.Kind() == reflect.Interface
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		ok = ok || t.Kind() == reflect.String
	case *ast.BoolNode:
		ok = ok || t.Kind() == reflect.Bool
	case *ast.IntegerNode:
		ok = ok || t.Kind() == reflect.Float64 || isInt(t.Kind())
	case *ast.FloatNode:
		ok = ok || t.Kind() == reflect.Float64
	default:
		ok = false
	}
	if !ok {
		hint := ""
		if t.Kind() == reflect.String {
			hint = "quote the value"
		}
		w.fault(at, hint, "%q must be %s", key, want(t))
	}
}

func (w *walker) unknown(parent, key string, at pos, t reflect.Type) {
	names := fieldNames(t)
	hint := "one of " + strings.Join(names, ", ")
	for _, n := range names {
		if near(n, key) {
			hint = "did you mean " + n + "?"
		}
	}
	where := "at the top of the file"
	if parent != "" {
		where = "in " + strconv.Quote(parent)
	}
	w.fault(at, hint, "unknown key %q %s", key, where)
}

// near reports whether two names differ by at most two edits (Levenshtein).
func near(a, b string) bool {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, diag+1, row[j]+1)
		}
	}
	return row[len(b)] <= 2
}

func fieldType(t reflect.Type, key string) (reflect.Type, bool) {
	for f := range fields(t) {
		if f.Tag.Get("yaml") == key {
			return f.Type, true
		}
	}
	return nil, false
}

func fieldNames(t reflect.Type) []string {
	var names []string
	for f := range fields(t) {
		names = append(names, f.Tag.Get("yaml"))
	}
	return names
}

// fields yields the fields that have a key in the file.
func fields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			if tag := f.Tag.Get("yaml"); tag == "" || tag == "-" {
				continue
			}
			if !yield(f) {
				return
			}
		}
	}
}

func join(parent, key string) string {
	if parent == "" {
		return key
	}
	return parent + "." + key
}

func isNull(n ast.Node) bool {
	if n == nil {
		return true
	}
	_, ok := n.(*ast.NullNode)
	return ok
}

func isInt(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Uint64 }

// want names the shape that a type has in the file.
func want(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Map:
		return "a mapping"
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		return "a list"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t == reflect.TypeFor[Size]():
		return "a size"
	case t == reflect.TypeFor[Duration]():
		return "a duration"
	case t.Kind() == reflect.Float64:
		return "a number"
	case isInt(t.Kind()):
		return "a whole number"
	}
	return "text"
}

// scalarText is the text of a scalar as it was written, without quotes.
func scalarText(n ast.Node) string {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	}
	return n.GetToken().Value
}

func place(n ast.Node) pos {
	line, col := position(n)
	return pos{line, col}
}

// position of the first character of a node. The token of a block mapping is
// its first colon, so its first key is asked instead.
func position(n ast.Node) (line, col int) {
	switch m := n.(type) {
	case *ast.MappingNode:
		if !m.IsFlowStyle && len(m.Values) > 0 {
			return position(m.Values[0])
		}
	case *ast.MappingValueNode:
		return position(m.Key)
	}
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 1, 1
	}
	p := n.GetToken().Position
	return max(p.Line, 1), max(p.Column, 1)
}

func valuePlace(v *ast.MappingValueNode) pos {
	if isNull(v.Value) {
		return place(v.Key)
	}
	return place(v.Value)
}
