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

// parsedBody is what a policy may know of a body.
type parsedBody struct {
	value     *ast.Term // nil: there is none, or it is unparsed
	truncated bool
	unparsed  bool // there is (or may be) a body, and it is not in value
}

// judged reports whether the policy sees all of the body.
func (b *parsedBody) judged() bool { return !b.truncated && !b.unparsed }

// parseBody reads JSON and forms strictly. It never guesses: a type it does
// not know, a coding, a duplicate key, anything that two parsers could read
// differently, is unparsed.
func parseBody(r *Request) *parsedBody {
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
	if len(r.Headers["content-type"]) > 1 || isCoded(r.Headers["content-encoding"]) || !utf8.Valid(r.Body) {
		return unparsed
	}
	media, params, err := mime.ParseMediaType(r.ContentType)
	if err != nil {
		return unparsed
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
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
