// Package scrub masks secrets in an answer on its way back into the sandbox:
// in header fields, trailers and a streamed body.
//
// Invariants:
//   - A mask has the length of what it covers; nothing else of a body changes.
//   - What is masked does not depend on how the body is cut into pieces.
//   - Of a body no more is held back than could still become a secret, and
//     never more than the longest encoded secret; of whole messages nothing.
//   - A body whose coding cannot be read is refused, never passed.
//   - Memory is bounded whatever a compressed body expands to.
//
// A secret is found as it is, in Base64 at any alignment (both alphabets, so
// also inside an encoded pair of user and password), percent-encoded, escaped for
// JSON or HTML, and in hexadecimal. Of a Base64 text the characters that belong to a
// secret only in part are left: at most four bits at each end. A secret that the
// server itself transforms in another way is not found.
package scrub

import (
	"net/http"
	"strings"

	"warder/internal/secret"
)

const (
	mask = '*'

	// MinBody is the least length of a secret, in bytes, that is searched in
	// bodies. Shorter ones occur by chance.
	MinBody = 8
	// MinHeader is the same for header fields and trailers.
	MinHeader = 4
)

// Scrubber searches for a fixed set of secrets. It keeps copies of them. A nil
// Scrubber finds nothing. It is safe for concurrent use.
type Scrubber struct {
	of     []string // the secrets
	header *search
	body   *search // nil: all are too short
	names  *search // for names of fields, in lower case
}

// New returns a Scrubber for the given secrets; nil when there is nothing to find.
func New(secrets []secret.String) *Scrubber {
	s := &Scrubber{of: make([]string, 0, len(secrets))}
	var header, body, names []string
	for _, sec := range secrets {
		v := sec.Reveal()
		s.of = append(s.of, v)
		if len(v) < MinHeader {
			continue
		}
		for _, form := range forms(v) {
			if len(form) < MinHeader {
				continue
			}
			header = append(header, form)
			if len(v) >= MinBody {
				body, names = append(body, form), append(names, strings.ToLower(form))
			}
		}
	}
	if len(header) == 0 {
		return nil
	}
	s.header, s.body, s.names = newSearch(header), newSearch(body), newSearch(names)
	return s
}

// For returns a Scrubber for the given secrets: s when they are those that it was
// made for, so that it need not be made anew for each exchange.
func (s *Scrubber) For(secrets []secret.String) *Scrubber {
	same := s != nil && len(s.of) == len(secrets)
	for i := 0; same && i < len(secrets); i++ {
		same = secrets[i].Reveal() == s.of[i]
	}
	if same {
		return s
	}
	return New(secrets)
}

// Header masks secrets in the values of h and removes a field whose name holds
// one. It returns how many places it masked.
func (s *Scrubber) Header(h http.Header) (n int64) {
	if s == nil {
		return 0
	}
	for name, values := range h {
		if s.inName(name) {
			delete(h, name)
			n++
			continue
		}
		for i, v := range values {
			if masked, k := s.text(v); k > 0 {
				values[i] = masked
				n += k
			}
		}
	}
	return n
}

// inName compares without regard to case, because names lose theirs on the way.
func (s *Scrubber) inName(name string) bool {
	if s.names == nil || len(name) < s.names.least {
		return false
	}
	low := strings.ToLower(name)
	return s.names.in(low)
}

// text masks what is found in v and counts the places.
func (s *Scrubber) text(v string) (string, int64) {
	if !s.header.in(v) {
		return v, 0
	}
	b := []byte(v)
	var prev bool
	n := s.header.find(b, nil).apply(b, len(b), &prev)
	return string(b), n
}
