package policies

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
)

// jsonParser reads RFC 8259 without any of the liberties that let two parsers
// see different documents: no duplicate names, no lone surrogates, no bytes
// after the value, bounded depth and numbers.
type jsonParser struct {
	in        []byte
	pos       int
	depth     int
	maxDepth  int
	maxNumber int  // characters
	discard   bool // check only: containers stay empty
}

// parseJSON returns nil when b is not exactly one such value.
func parseJSON(b []byte) *ast.Term {
	p := &jsonParser{in: b, maxDepth: maxBodyDepth, maxNumber: maxBodyNumber}
	return p.document()
}

func (p *jsonParser) document() *ast.Term {
	value := p.value()
	if value == nil {
		return nil
	}
	p.space()
	if p.pos != len(p.in) {
		return nil
	}
	return value
}

// checkJSON returns the line and column (in bytes, from 1) at which b stops
// being one strict JSON value, or ok.
func checkJSON(b []byte) (line, column int, ok bool) {
	p := &jsonParser{in: b, maxDepth: maxDataDepth, maxNumber: maxDataNumber, discard: true}
	if p.document() != nil && utf8.Valid(b) {
		return 0, 0, true
	}
	before := b[:min(p.pos, len(b))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n'), false
}

func (p *jsonParser) space() {
	for p.pos < len(p.in) {
		switch p.in[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// take consumes c after white space.
func (p *jsonParser) take(c byte) bool {
	p.space()
	if p.pos < len(p.in) && p.in[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *jsonParser) word(w string, value *ast.Term) *ast.Term {
	if len(p.in)-p.pos < len(w) || string(p.in[p.pos:p.pos+len(w)]) != w {
		return nil
	}
	p.pos += len(w)
	return value
}

func (p *jsonParser) value() *ast.Term {
	p.space()
	if p.pos == len(p.in) {
		return nil
	}
	switch c := p.in[p.pos]; c {
	case '{', '[':
		if p.depth++; p.depth > p.maxDepth {
			return nil
		}
		p.pos++
		defer func() { p.depth-- }()
		if c == '{' {
			return p.object()
		}
		return p.array()
	case '"':
		s, ok := p.text()
		if !ok {
			return nil
		}
		return ast.StringTerm(s)
	case 't':
		return p.word("true", ast.InternedTerm(true))
	case 'f':
		return p.word("false", ast.InternedTerm(false))
	case 'n':
		return p.word("null", ast.NullTerm())
	default:
		return p.number()
	}
}

func (p *jsonParser) object() *ast.Term {
	var pairs [][2]*ast.Term
	seen := map[string]bool{}
	if p.take('}') {
		return ast.ObjectTerm()
	}
	for {
		p.space()
		name, ok := p.text()
		if !ok || seen[name] || !p.take(':') {
			return nil
		}
		seen[name] = true
		value := p.value()
		if value == nil {
			return nil
		}
		if !p.discard {
			pairs = append(pairs, [2]*ast.Term{ast.StringTerm(name), value})
		}
		if p.take('}') {
			return ast.ObjectTerm(pairs...)
		}
		if !p.take(',') {
			return nil
		}
	}
}

func (p *jsonParser) array() *ast.Term {
	var items []*ast.Term
	if p.take(']') {
		return ast.ArrayTerm()
	}
	for {
		item := p.value()
		if item == nil {
			return nil
		}
		if !p.discard {
			items = append(items, item)
		}
		if p.take(']') {
			return ast.ArrayTerm(items...)
		}
		if !p.take(',') {
			return nil
		}
	}
}

// text reads a string, which must start here. The input is valid UTF-8.
func (p *jsonParser) text() (string, bool) {
	if p.pos == len(p.in) || p.in[p.pos] != '"' {
		return "", false
	}
	p.pos++
	start := p.pos
	for p.pos < len(p.in) {
		switch c := p.in[p.pos]; {
		case c == '"':
			p.pos++
			return string(p.in[start : p.pos-1]), true
		case c == '\\':
			return p.escapedText(append([]byte(nil), p.in[start:p.pos]...))
		case c < ' ':
			return "", false
		}
		p.pos++
	}
	return "", false
}

func (p *jsonParser) escapedText(out []byte) (string, bool) {
	for p.pos < len(p.in) {
		c := p.in[p.pos]
		p.pos++
		switch {
		case c == '"':
			return string(out), true
		case c < ' ':
			return "", false
		case c != '\\':
			out = append(out, c)
		default:
			r, ok := p.escape()
			if !ok {
				return "", false
			}
			out = utf8.AppendRune(out, r)
		}
	}
	return "", false
}

// escape reads what follows a backslash.
func (p *jsonParser) escape() (rune, bool) {
	if p.pos == len(p.in) {
		return 0, false
	}
	c := p.in[p.pos]
	p.pos++
	switch c {
	case '"', '\\', '/':
		return rune(c), true
	case 'b':
		return '\b', true
	case 'f':
		return '\f', true
	case 'n':
		return '\n', true
	case 'r':
		return '\r', true
	case 't':
		return '\t', true
	case 'u':
		r, ok := p.hex4()
		if !ok || !utf16.IsSurrogate(r) {
			return r, ok
		}
		if len(p.in)-p.pos < 2 || p.in[p.pos] != '\\' || p.in[p.pos+1] != 'u' {
			return 0, false
		}
		p.pos += 2
		low, ok := p.hex4()
		pair := utf16.DecodeRune(r, low)
		return pair, ok && pair != utf8.RuneError
	}
	return 0, false
}

func (p *jsonParser) hex4() (rune, bool) {
	if len(p.in)-p.pos < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.in[p.pos:p.pos+4]), 16, 16)
	p.pos += 4
	return rune(n), err == nil
}

func (p *jsonParser) digits() int {
	start := p.pos
	for p.pos < len(p.in) && p.in[p.pos] >= '0' && p.in[p.pos] <= '9' {
		p.pos++
	}
	return p.pos - start
}

// next consumes one of the bytes of set.
func (p *jsonParser) next(set string) bool {
	if p.pos < len(p.in) {
		for i := range len(set) {
			if p.in[p.pos] == set[i] {
				p.pos++
				return true
			}
		}
	}
	return false
}

// number keeps the digits as written. Exponents are limited to three digits,
// because comparing 1e999999999 would have to write it out.
func (p *jsonParser) number() *ast.Term {
	start := p.pos
	p.next("-")
	leading := p.pos
	n := p.digits()
	if n == 0 || (n > 1 && p.in[leading] == '0') {
		return nil
	}
	if p.next(".") && p.digits() == 0 {
		return nil
	}
	if p.next("eE") {
		p.next("+-")
		if n := p.digits(); n == 0 || n > 3 {
			return nil
		}
	}
	if p.pos-start > p.maxNumber {
		return nil
	}
	return ast.NewTerm(ast.Number(p.in[start:p.pos]))
}
