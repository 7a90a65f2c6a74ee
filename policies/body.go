package policies

import (
	"mime"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Bounds of a parsed body. A body beyond them is unparsed.
const (
	maxBodyDepth   = 64
	maxBodyNumber  = 40 // characters of one number
	maxFormEntries = 10_000
)

// part is a set of those parts of input.request that are made by parsing.
type part uint16

const (
	partBody part = 1 << iota // body, body_truncated and unparsed
	partGraphQL
	partJSONRPC
	partMCP
	partGRPC
	partGit
	partOCI
	partNPM
	partPyPI
	partGolang
	partDebian

	allParts = partDebian<<1 - 1
	// ofPath are those that method, path and query alone decide.
	ofPath = partOCI | partNPM | partPyPI | partGolang | partDebian
)

// partNames are the parts by their names in input.request.
var partNames = map[string]part{
	"body": partBody, "body_truncated": partBody, "unparsed": partBody,
	"graphql": partGraphQL, "jsonrpc": partJSONRPC, "mcp": partMCP, "grpc": partGRPC, "git": partGit,
	"oci": partOCI, "npm": partNPM, "pypi": partPyPI, "golang": partGolang, "debian": partDebian,
}

// parsedBody is what a policy may know of a body, and of what a request says
// in a language that Warder reads.
type parsedBody struct {
	value     *ast.Term // nil: there is none, or it is unparsed
	truncated bool
	unparsed  bool // there is (or may be) a body, and it is not in value

	graphql, jsonrpc, mcp, grpc, git *ast.Term // nil: the request has none
	oci, npm, pypi, golang, debian   *ast.Term

	unseen part // wanted, there, and not understood
}

// judged reports whether the policy sees all that it wants to see.
func (b *parsedBody) judged() bool { return b.unseen == 0 }

// plain reports whether nothing of a body was parsed, so that the rest of the
// request says all.
func (b *parsedBody) plain() bool {
	return b.unseen&^ofPath == 0 && b.value == nil && b.graphql == nil && b.jsonrpc == nil && b.mcp == nil && b.grpc == nil && b.git == nil
}

// parseParts reads the wanted parts of a request.
func parseParts(r *Request, want part) *parsedBody {
	b := &parsedBody{}
	if want&(partBody|partGraphQL|partJSONRPC|partMCP) != 0 {
		*b = *parseBody(r)
	}
	if want&partGraphQL != 0 {
		b.graphql = parseGraphQL(r, b)
		b.note(partGraphQL, b.graphql)
	}
	if want&(partJSONRPC|partMCP) != 0 {
		messages := parseJSONRPC(b)
		b.jsonrpc, b.mcp = messages.jsonrpc(), messages.mcp()
		b.note(partJSONRPC, b.jsonrpc)
		b.note(partMCP, b.mcp)
	}
	if want&partGRPC != 0 {
		b.grpc = parseGRPC(r)
		b.note(partGRPC, b.grpc)
	}
	if want&partGit != 0 {
		b.git = parseGit(r)
		b.note(partGit, b.git)
	}
	for p, read := range pathParsers {
		if want&p != 0 {
			term := read(r)
			*b.ofPath(p) = term
			b.note(p, term)
		}
	}
	b.unseen &= want
	return b
}

// pathParsers read what a path says.
var pathParsers = map[part]func(*Request) *ast.Term{
	partOCI: parseOCI, partNPM: parseNPM, partPyPI: parsePyPI, partGolang: parseGolang, partDebian: parseDebian,
}

// ofPath is where a part is kept.
func (b *parsedBody) ofPath(p part) **ast.Term {
	switch p {
	case partOCI:
		return &b.oci
	case partNPM:
		return &b.npm
	case partPyPI:
		return &b.pypi
	case partGolang:
		return &b.golang
	}
	return &b.debian
}

// note remembers that a part says of itself that it is unparsed.
func (b *parsedBody) note(p part, term *ast.Term) {
	if term == nil {
		return
	}
	if object, ok := term.Value.(ast.Object); ok && object.Get(keyUnparsed) != nil {
		b.unseen |= p
	}
}

var keyUnparsed = ast.StringTerm("unparsed")

// unparsedPart is a part that is there and not understood.
func unparsedPart(known ...[2]*ast.Term) *ast.Term {
	return ast.ObjectTerm(append(known, [2]*ast.Term{keyUnparsed, ast.InternedTerm(true)})...)
}

// parseBody reads JSON and forms strictly. It never guesses: a type it does
// not know, a coding, a duplicate key, anything that two parsers could read
// differently, is unparsed.
func parseBody(r *Request) *parsedBody {
	b := readBody(r)
	if b.truncated || b.unparsed {
		b.unseen = partBody
	}
	return b
}

func readBody(r *Request) *parsedBody {
	if !r.BodyRead {
		// Nobody read it, so it may hold anything unless it is known to be empty.
		missing := r.ContentLength != 0
		return &parsedBody{truncated: missing, unparsed: missing}
	}
	if r.BodyTruncated {
		return &parsedBody{truncated: true, unparsed: true}
	}
	if len(r.Body) == 0 {
		return &parsedBody{}
	}
	unparsed := &parsedBody{unparsed: true}
	media := plainMedia(r)
	if media == "" || !utf8.Valid(r.Body) {
		return unparsed
	}
	var value *ast.Term
	switch {
	case media == "application/json" || strings.HasSuffix(media, "+json"):
		value = parseJSON(r.Body)
	case media == "application/x-www-form-urlencoded":
		value = parseForm(string(r.Body))
	}
	if value == nil {
		return unparsed
	}
	return &parsedBody{value: value}
}

// plainMedia is the one media type of an uncoded body in UTF-8, in lower case,
// or "".
func plainMedia(r *Request) string {
	if len(r.Headers["content-type"]) > 1 || isCoded(r.Headers["content-encoding"]) {
		return ""
	}
	media, params, err := mime.ParseMediaType(r.ContentType)
	if err != nil {
		return ""
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
		return ""
	}
	return media
}

func isCoded(encodings []string) bool {
	for _, e := range encodings {
		if e = strings.TrimSpace(e); e != "" && !strings.EqualFold(e, "identity") {
			return true
		}
	}
	return false
}

// parseForm reads application/x-www-form-urlencoded into key: [values], or
// returns nil. ";" separates for some parsers and not for others.
func parseForm(s string) *ast.Term {
	if strings.ContainsRune(s, ';') {
		return nil
	}
	parts := strings.Split(s, "&")
	if len(parts) > maxFormEntries {
		return nil
	}
	form := map[string][]string{}
	for _, part := range parts {
		if part == "" {
			continue
		}
		k, v, _ := strings.Cut(part, "=")
		key, err1 := url.QueryUnescape(k)
		value, err2 := url.QueryUnescape(v)
		if err1 != nil || err2 != nil || !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil
		}
		form[key] = append(form[key], value)
	}
	return listObject(form)
}
