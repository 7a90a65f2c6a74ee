// Package scrub masks secrets in an answer on its way back into the sandbox:
// in header fields, trailers and a streamed body.
//
// Invariants:
//   - A mask has the length of what it covers; nothing else of a body changes.
//   - What is masked does not depend on how the body is cut into pieces.
//   - Of a body no more is held back than could still become a secret, and
//     never more than the longest encoded secret.
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
	"bytes"
	"net/http"
	"slices"
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

// Scrubber searches for a fixed set of secrets. It keeps copies of them, so it
// lives as long as one exchange. A nil Scrubber finds nothing. It is safe for
// concurrent use.
type Scrubber struct {
	header []needle
	body   []needle
}

// New returns a Scrubber for the given secrets; nil when there is nothing to find.
func New(secrets []secret.String) *Scrubber {
	s := &Scrubber{}
	seen := map[string]bool{}
	for _, sec := range secrets {
		v := sec.Reveal()
		if len(v) < MinHeader {
			continue
		}
		for _, form := range forms(v) {
			if len(form) < MinHeader || seen[form] {
				continue
			}
			seen[form] = true
			n := newNeedle(form)
			s.header = append(s.header, n)
			if len(v) >= MinBody {
				s.body = append(s.body, n)
			}
		}
	}
	if len(s.header) == 0 {
		return nil
	}
	return s
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
			masked, k := s.text(v)
			values[i] = masked
			n += k
		}
	}
	return n
}

// inName compares without regard to case, because names lose theirs on the way.
func (s *Scrubber) inName(name string) bool {
	low := strings.ToLower(name)
	return slices.ContainsFunc(s.body, func(n needle) bool {
		return len(n.form) <= len(low) && strings.Contains(low, strings.ToLower(n.form))
	})
}

func (s *Scrubber) text(v string) (string, int64) {
	if !slices.ContainsFunc(s.header, func(n needle) bool { return strings.Contains(v, n.form) }) {
		return v, 0
	}
	b := []byte(v)
	var m marks
	for _, n := range s.header {
		m.find(b, n)
	}
	var prev bool
	k := m.apply(b, len(b), &prev)
	return string(b), k
}

// needle is one text to be found. Long ones are looked for by their start,
// which is the part that the search instruction of the machine handles at once.
type needle struct {
	form        string
	text, start []byte
}

const startLen = 32

func newNeedle(form string) needle {
	b := []byte(form)
	return needle{form: form, text: b, start: b[:min(len(b), startLen)]}
}

// index returns the first place at or after from; -1 when there is none.
func (n needle) index(b []byte, from int) int {
	for from+len(n.text) <= len(b) {
		i := bytes.Index(b[from:], n.start)
		if i < 0 {
			return -1
		}
		if from += i; bytes.HasPrefix(b[from:], n.text) {
			return from
		}
		from++
	}
	return -1
}

// partial returns the first place from which the end of b is the start of the
// needle but not all of it; len(b) when there is none.
func (n needle) partial(b []byte) int {
	for i := max(0, len(b)-len(n.text)+1); i < len(b); i++ {
		j := bytes.IndexByte(b[i:], n.text[0])
		if j < 0 {
			break
		}
		i += j
		if bytes.HasPrefix(n.text, b[i:]) {
			return i
		}
	}
	return len(b)
}

// marks are the places to be masked, as [from, to).
type marks [][2]int

// find adds every occurrence, also those that overlap.
func (m *marks) find(b []byte, n needle) {
	for at := n.index(b, 0); at >= 0; at = n.index(b, at+1) {
		end := at + len(n.text)
		if k := len(*m); k > 0 && (*m)[k-1][0] <= at && at <= (*m)[k-1][1] && (*m)[k-1][1] <= end {
			(*m)[k-1][1] = end // a run of overlaps is one mark
		} else {
			*m = append(*m, [2]int{at, end})
		}
	}
}

// apply masks b[:end] and counts the masked stretches. prev says whether the byte
// before b was masked, and is set for the byte after.
func (m marks) apply(b []byte, end int, prev *bool) (n int64) {
	slices.SortFunc(m, func(x, y [2]int) int { return x[0] - y[0] })
	done := 0 // everything before is decided
	for _, r := range m {
		from, to := max(r[0], done), min(r[1], end)
		if from >= to {
			continue
		}
		if from > done || (done == 0 && !*prev) {
			n++
		}
		for i := from; i < to; i++ {
			b[i] = mask
		}
		done = to
	}
	if end > 0 {
		*prev = done == end
	}
	return n
}
