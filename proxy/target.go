package proxy

import (
	"fmt"
	"strings"
)

// target is a request target (RFC 9112 §3.2) in the one form that is judged and
// sent. path and query are the received bytes.
type target struct {
	scheme       string // of absolute-form; "" in origin-form
	authority    string // of absolute-form, as received
	path         string
	query        string
	hasQuery     bool
	segments     []string // of path, decoded one by one
	encodedSlash bool     // a %2F stands inside a segment
}

// parseTarget reads origin-form and absolute-form. Anything else is an error.
func parseTarget(s string) (target, error) {
	var t target
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f {
			return t, fmt.Errorf("character in the request target that must be percent-encoded")
		} else if c == '#' {
			return t, fmt.Errorf("fragment in the request target")
		}
	}
	if !strings.HasPrefix(s, "/") {
		scheme, rest, ok := strings.Cut(s, "://")
		if !ok {
			return t, fmt.Errorf("request target is neither a path nor a URL")
		}
		t.scheme = strings.ToLower(scheme)
		if t.scheme != "http" && t.scheme != "https" {
			return t, fmt.Errorf("request target with a scheme other than http and https")
		}
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		t.authority, s = rest[:end], rest[end:]
		if strings.IndexByte(t.authority, '@') >= 0 {
			return t, fmt.Errorf("user information in the request target")
		}
		if s == "" || s[0] == '?' {
			s = "/" + s
		}
	}
	t.path, t.query, t.hasQuery = strings.Cut(s, "?")
	err := t.checkPath()
	return t, err
}

// uri is the origin-form that goes upstream.
func (t *target) uri() string {
	if t.hasQuery {
		return t.path + "?" + t.query
	}
	return t.path
}

// checkPath splits and decodes the path, and refuses every form that servers
// are known to read in more than one way.
func (t *target) checkPath() error {
	p := t.path
	if len(p) == 0 || p[0] != '/' {
		return fmt.Errorf("path does not begin with a slash")
	}
	if strings.Contains(p, "//") {
		return fmt.Errorf("empty segment (//) in the path")
	}
	if strings.IndexByte(p, '\\') >= 0 {
		return fmt.Errorf("backslash in the path")
	}
	if p == "/" {
		return nil
	}
	t.segments = strings.Split(p[1:], "/")
	for i, seg := range t.segments {
		plain, err := t.checkSegment(seg)
		if err != nil {
			return err
		}
		t.segments[i] = plain
	}
	return nil
}

func (t *target) checkSegment(seg string) (string, error) {
	if strings.IndexByte(seg, '%') < 0 {
		return seg, checkDots(seg)
	}
	plain, err := unescape(seg)
	if err != nil {
		return "", err
	}
	if strings.IndexByte(plain, 0) >= 0 {
		return "", fmt.Errorf("encoded NUL in the path")
	}
	if strings.IndexByte(plain, '/') >= 0 {
		t.encodedSlash = true
	}
	// A server may decode more than once: no stage of decoding may show a dot
	// segment, a backslash or a slash-like overlong form.
	for stage, again := plain, true; again; {
		if strings.IndexByte(stage, '\\') >= 0 {
			return "", fmt.Errorf("encoded backslash in the path")
		}
		for _, long := range overlong() {
			if strings.Contains(stage, long) {
				return "", fmt.Errorf("overlong UTF-8 in the path")
			}
		}
		for part := range strings.SplitSeq(stage, "/") {
			if err := checkDots(part); err != nil {
				return "", err
			}
		}
		next, err := unescape(stage)
		again = err == nil && next != stage
		stage = next
	}
	return plain, nil
}

// overlong lists the two- and three-byte forms of '.', '/' and '\' that RFC 3629
// forbids and lenient decoders accept.
func overlong() []string {
	return []string{"\xc0\xae", "\xc0\xaf", "\xc1\x9c", "\xe0\x80\xae", "\xe0\x80\xaf", "\xe0\x81\x9c"}
}

// checkDots refuses "." and "..", also beside path parameters ("..;x", ";..").
func checkDots(seg string) error {
	if strings.IndexByte(seg, '.') < 0 {
		return nil
	}
	if seg == "." || seg == ".." {
		return fmt.Errorf("dot segment in the path")
	}
	if strings.IndexByte(seg, ';') >= 0 {
		for part := range strings.SplitSeq(seg, ";") {
			if part == "." || part == ".." {
				return fmt.Errorf("dot segment beside a path parameter")
			}
		}
	}
	return nil
}

// unescape decodes percent-encoding (RFC 3986 §2.1) once; '+' stays.
func unescape(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 {
		return s, nil
	}
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
			return "", fmt.Errorf("broken percent-encoding")
		}
		b.WriteByte(unhex(s[i+1])<<4 | unhex(s[i+2]))
		i += 2
	}
	return b.String(), nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c >= 'a':
		return c - 'a' + 10
	default:
		return c - 'A' + 10
	}
}

// parseQuery gives every value of every key in the order received. Only '&'
// separates; what does not decode is kept as it stands.
func parseQuery(q string) map[string][]string {
	if q == "" {
		return nil
	}
	m := make(map[string][]string)
	for pair := range strings.SplitSeq(q, "&") {
		if pair == "" {
			continue
		}
		k, v, _ := strings.Cut(pair, "=")
		k = formValue(k)
		m[k] = append(m[k], formValue(v))
	}
	return m
}

func formValue(s string) string {
	if strings.IndexByte(s, '+') >= 0 {
		s = strings.ReplaceAll(s, "+", " ")
	}
	if plain, err := unescape(s); err == nil {
		return plain
	}
	return s
}

// knownMethod reports a method that may be judged: RFC 9110 but for CONNECT and
// TRACE (which would echo an injected value), PATCH (RFC 5789), QUERY, and the
// registered WebDAV methods (RFC 4918, 3253, 5323). Case matters.
func knownMethod(m string) bool {
	switch m {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY",
		"PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH":
		return true
	}
	return false
}

// withoutUser drops the user information of a target (RFC 3986 §3.2.1), whatever
// else is wrong with it: it may be a password, and a record is made of the rest.
func withoutUser(target string) string {
	head, rest := "", target
	if scheme, after, ok := strings.Cut(target, "://"); ok {
		head, rest = scheme+"://", after
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	if at := strings.LastIndexByte(rest[:end], '@'); at >= 0 {
		return head + rest[at+1:]
	}
	return target
}
