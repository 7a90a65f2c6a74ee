package policies

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of one GraphQL document. One beyond them is unparsed.
const (
	maxDocumentTokens = 50_000
	maxDocumentDepth  = 100
	maxTopFields      = 1000 // of one operation, fragments written out
	maxSpreads        = 1000 // followed for one operation
)

// graphqlOperation is one operation of a document.
type graphqlOperation struct {
	kind   string   // query | mutation | subscription
	name   string   // "" for an anonymous one
	fields []string // names (not aliases) of the top-level fields, sorted, each once
}

// selection is one member of a top-level selection set.
type selection struct {
	field  string      // name of a field, or ""
	spread string      // name of a fragment, or ""
	inside []selection // of an inline fragment
}

// documentParser reads an executable document of the GraphQL specification
// (October 2021, appendix B), and nothing that may not be in one.
type documentParser struct {
	lexer documentLexer
	token documentToken
	depth int
	bad   bool

	operations []graphqlOperation
	sets       [][]selection // top level of each operation
	fragments  map[string][]selection
}

// parseDocument returns the operations, or nil when the text is not exactly
// one well-formed document with at least one of them.
func parseDocument(text string) []graphqlOperation {
	if !utf8.ValidString(text) || strings.IndexFunc(text, isForbidden) >= 0 {
		return nil
	}
	p := &documentParser{lexer: documentLexer{in: text}, fragments: map[string][]selection{}}
	p.next()
	for !p.bad && p.token.kind != tokenEnd {
		p.definition()
	}
	if p.bad || len(p.operations) == 0 || len(p.operations) > maxOperations {
		return nil
	}
	names := map[string]bool{}
	for i := range p.operations {
		o := &p.operations[i]
		if names[o.name] || o.name == "" && len(p.operations) > 1 {
			return nil // a server must refuse it
		}
		names[o.name] = true
		w := fieldWalk{fragments: p.fragments, entered: map[string]bool{}, left: maxSpreads}
		w.walk(p.sets[i])
		if w.bad || len(w.fields) == 0 {
			return nil
		}
		slices.Sort(w.fields)
		o.fields = slices.Compact(w.fields)
	}
	return p.operations
}

// isForbidden are the control characters that may not be in a document.
func isForbidden(r rune) bool { return r < ' ' && r != '\t' && r != '\n' && r != '\r' }

// fieldWalk collects the fields of a top level, with fragments written out.
type fieldWalk struct {
	fragments map[string][]selection
	entered   map[string]bool // fragments being written out, or done
	left      int
	fields    []string
	bad       bool
}

func (w *fieldWalk) walk(set []selection) {
	for _, s := range set {
		switch {
		case s.field != "":
			w.fields = append(w.fields, s.field)
		case s.spread != "":
			inside, known := w.fragments[s.spread]
			if w.left--; !known || w.left < 0 {
				w.bad = true
			} else if !w.entered[s.spread] {
				w.entered[s.spread] = true
				w.walk(inside)
			}
		default:
			w.walk(s.inside)
		}
		if w.bad = w.bad || len(w.fields) > maxTopFields; w.bad {
			return
		}
	}
}

func (p *documentParser) next() {
	p.token = p.lexer.next()
	p.bad = p.bad || p.token.kind == tokenBad
}

func (p *documentParser) at(text string) bool {
	return p.token.kind == tokenMark && p.token.text == text
}

func (p *documentParser) word(text string) bool {
	return p.token.kind == tokenName && p.token.text == text
}

// take consumes a mark that may be there.
func (p *documentParser) take(mark string) bool {
	if !p.at(mark) {
		return false
	}
	p.next()
	return true
}

// need consumes a mark that must be there.
func (p *documentParser) need(mark string) {
	if !p.take(mark) {
		p.bad = true
	}
}

func (p *documentParser) name() string {
	if p.token.kind != tokenName || len(p.token.text) > maxName {
		p.bad = true
		return ""
	}
	text := p.token.text
	p.next()
	return text
}

// enter counts nesting; the caller must leave.
func (p *documentParser) enter() bool {
	p.depth++
	p.bad = p.bad || p.depth > maxDocumentDepth
	return !p.bad
}

func (p *documentParser) leave() { p.depth-- }

func (p *documentParser) definition() {
	switch {
	case p.at("{"):
		p.operations = append(p.operations, graphqlOperation{kind: "query"})
		p.sets = append(p.sets, p.selectionSet())
	case p.word("query"), p.word("mutation"), p.word("subscription"):
		o := graphqlOperation{kind: p.name()}
		if p.token.kind == tokenName {
			o.name = p.name()
		}
		p.variableDefinitions()
		p.directives()
		p.operations = append(p.operations, o)
		p.sets = append(p.sets, p.selectionSet())
	case p.word("fragment"):
		p.next()
		name := p.name()
		if _, twice := p.fragments[name]; twice || name == "on" || !p.word("on") {
			p.bad = true
			return
		}
		p.next()
		p.name()
		p.directives()
		p.fragments[name] = p.selectionSet()
	default: // a definition of types, or no GraphQL at all
		p.bad = true
	}
}

func (p *documentParser) selectionSet() []selection {
	defer p.leave()
	if !p.enter() {
		return nil
	}
	p.need("{")
	var set []selection
	for !p.bad && !p.at("}") {
		set = append(set, p.selection())
	}
	p.bad = p.bad || len(set) == 0
	p.need("}")
	return set
}

func (p *documentParser) selection() selection {
	if !p.take("...") {
		return p.field()
	}
	if p.token.kind == tokenName && p.token.text != "on" {
		s := selection{spread: p.name()}
		p.directives()
		return s
	}
	if p.word("on") {
		p.next()
		p.name()
	}
	p.directives()
	return selection{inside: p.selectionSet()}
}

func (p *documentParser) field() selection {
	s := selection{field: p.name()}
	if p.take(":") { // what came first was an alias
		s.field = p.name()
	}
	p.arguments()
	p.directives()
	if p.at("{") {
		p.selectionSet()
	}
	return s
}

func (p *documentParser) arguments() {
	if !p.take("(") {
		return
	}
	p.bad = p.bad || p.at(")")
	for !p.bad && !p.at(")") {
		p.name()
		p.need(":")
		p.value()
	}
	p.need(")")
}

func (p *documentParser) directives() {
	for !p.bad && p.take("@") {
		p.name()
		p.arguments()
	}
}

func (p *documentParser) variableDefinitions() {
	if !p.take("(") {
		return
	}
	p.bad = p.bad || p.at(")")
	for !p.bad && !p.at(")") {
		p.need("$")
		p.name()
		p.need(":")
		p.typeName()
		if p.take("=") {
			p.value()
		}
		p.directives()
	}
	p.need(")")
}

func (p *documentParser) typeName() {
	defer p.leave()
	if !p.enter() {
		return
	}
	if p.take("[") {
		p.typeName()
		p.need("]")
	} else {
		p.name()
	}
	p.take("!")
}

func (p *documentParser) value() {
	defer p.leave()
	if !p.enter() {
		return
	}
	switch {
	case p.take("$"):
		p.name()
	case p.take("["):
		for !p.bad && !p.at("]") {
			p.value()
		}
		p.need("]")
	case p.take("{"):
		for !p.bad && !p.at("}") {
			p.name()
			p.need(":")
			p.value()
		}
		p.need("}")
	case p.token.kind == tokenName, p.token.kind == tokenNumber, p.token.kind == tokenText:
		p.next()
	default:
		p.bad = true
	}
}

// Kinds of tokens.
const (
	tokenBad = iota // zero: nothing that was read
	tokenEnd
	tokenMark
	tokenName
	tokenNumber
	tokenText
)

type documentToken struct {
	kind int
	text string // of a mark or a name
}

type documentLexer struct {
	in     string
	pos    int
	tokens int
}

// skip passes over what has no meaning. It returns false at a character that
// some parsers take for the end of a comment and others do not.
func (l *documentLexer) skip() bool {
	for l.pos < len(l.in) {
		switch l.in[l.pos] {
		case ' ', '\t', '\n', '\r', ',':
			l.pos++
		case '#':
			end := strings.IndexAny(l.in[l.pos:], "\n\r")
			if end < 0 {
				end = len(l.in) - l.pos
			}
			if strings.ContainsAny(l.in[l.pos:l.pos+end], "\u0000\u000b\u000c\u0085\u2028\u2029") {
				return false
			}
			l.pos += end
		default:
			return true
		}
	}
	return true
}

func (l *documentLexer) next() documentToken {
	if l.tokens++; !l.skip() || l.tokens > maxDocumentTokens {
		return documentToken{}
	}
	if l.pos == len(l.in) {
		return documentToken{kind: tokenEnd}
	}
	start := l.pos
	switch c := l.in[l.pos]; {
	case strings.IndexByte("!$&():=@[]{|}", c) >= 0:
		l.pos++
		return documentToken{tokenMark, l.in[start:l.pos]}
	case strings.HasPrefix(l.in[l.pos:], "..."):
		l.pos += 3
		return documentToken{tokenMark, "..."}
	case isNameByte(c, false):
		for l.pos < len(l.in) && isNameByte(l.in[l.pos], true) {
			l.pos++
		}
		return documentToken{tokenName, l.in[start:l.pos]}
	case c == '-' || c >= '0' && c <= '9':
		return l.number()
	case strings.HasPrefix(l.in[l.pos:], `"""`):
		return l.block()
	case c == '"':
		return l.text()
	}
	return documentToken{}
}

// number reads an IntValue or FloatValue, which no name or dot may follow.
func (l *documentLexer) number() documentToken {
	p := &jsonParser{in: []byte(l.in[l.pos:min(len(l.in), l.pos+maxBodyNumber+1)]), maxNumber: maxBodyNumber}
	if p.number() == nil {
		return documentToken{}
	}
	l.pos += p.pos
	if l.pos < len(l.in) && (l.in[l.pos] == '.' || isNameByte(l.in[l.pos], true)) {
		return documentToken{}
	}
	return documentToken{kind: tokenNumber}
}

// text reads a StringValue: that of JSON with the tabulator and "\u{…}" added.
func (l *documentLexer) text() documentToken {
	for l.pos++; l.pos < len(l.in); l.pos++ {
		switch c := l.in[l.pos]; {
		case c == '"':
			l.pos++
			return documentToken{kind: tokenText}
		case c == '\\':
			if l.pos++; l.pos == len(l.in) || strings.IndexByte(`"\/bfnrtu`, l.in[l.pos]) < 0 {
				return documentToken{}
			}
		case c < ' ' && c != '\t':
			return documentToken{}
		}
	}
	return documentToken{}
}

// block reads a block string.
func (l *documentLexer) block() documentToken {
	for l.pos += 3; l.pos < len(l.in); {
		switch rest := l.in[l.pos:]; {
		case strings.HasPrefix(rest, `\"""`):
			l.pos += 4
		case strings.HasPrefix(rest, `"""`):
			l.pos += 3
			return documentToken{kind: tokenText}
		default:
			l.pos++
		}
	}
	return documentToken{}
}
