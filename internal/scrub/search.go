package scrub

import (
	"cmp"
	"slices"
	"strings"
)

// search finds any of a set of texts in one pass, most of which it skips: it looks
// at the last bytes of a window as long as the shortest text, and knows how far the
// window may move before a text can end there (Wu and Manber, "A Fast Algorithm for
// Multi-Pattern Searching", 1994). It is not changed once made.
type search struct {
	needles []string    // sorted, no two equal
	from    [257]uint16 // needles[from[c]:from[c+1]] begin with the byte c
	least   int         // length of the shortest, at least MinHeader
	most    int         // and of the longest
	skip    [1 << skipBits]uint8
}

const (
	block    = 3  // bytes that are looked at together
	skipBits = 13 // so that skip fits the machine's nearest memory
)

// hash may be the same for two blocks: then the smaller skip holds for both.
func hash(a, b, c byte) uint32 {
	return (uint32(a) | uint32(b)<<8 | uint32(c)<<16) * 0x9E3779B1 >> (32 - skipBits)
}

// newSearch is nil for no needles. None may be shorter than MinHeader.
func newSearch(needles []string) *search {
	if len(needles) == 0 {
		return nil
	}
	s := &search{needles: slices.Compact(slices.Sorted(slices.Values(needles)))}
	byLen := func(a, b string) int { return cmp.Compare(len(a), len(b)) }
	s.least, s.most = len(slices.MinFunc(s.needles, byLen)), len(slices.MaxFunc(s.needles, byLen))
	for c := range 256 {
		n := s.from[c]
		for int(n) < len(s.needles) && s.needles[n][0] == byte(c) {
			n++
		}
		s.from[c+1] = n
	}
	farthest := uint8(min(s.least-block+1, 255))
	for i := range s.skip {
		s.skip[i] = farthest
	}
	for _, n := range s.needles {
		for end := block; end <= s.least; end++ {
			at := &s.skip[hash(n[end-3], n[end-2], n[end-1])]
			*at = uint8(min(int(*at), s.least-end))
		}
	}
	return s
}

// candidate returns the first place at or after from where a needle may begin; -1
// when there is none.
func candidate[T string | []byte](s *search, b T, from int) int {
	for end := from + s.least; end <= len(b); {
		k := s.skip[hash(b[end-3], b[end-2], b[end-1])]
		if k == 0 {
			return end - s.least
		}
		end += int(k)
	}
	return -1
}

// startingWith are the needles that begin with c.
func (s *search) startingWith(c byte) []string { return s.needles[s.from[c]:s.from[int(c)+1]] }

// in reports whether v holds a needle.
func (s *search) in(v string) bool {
	if s == nil {
		return false
	}
	for at := candidate(s, v, 0); at >= 0; at = candidate(s, v, at+1) {
		for _, n := range s.startingWith(v[at]) {
			if strings.HasPrefix(v[at:], n) {
				return true
			}
		}
	}
	return false
}

// find adds every occurrence in b, also those that overlap.
func (s *search) find(b []byte, m marks) marks {
	if s == nil {
		return m
	}
	for at := candidate(s, b, 0); at >= 0; at = candidate(s, b, at+1) {
		for _, n := range s.startingWith(b[at]) {
			if end := at + len(n); end <= len(b) && string(b[at:end]) == n {
				m = m.add(at, end)
			}
		}
	}
	return m
}

// partial returns the first place from which the end of b is the start of a needle
// but not all of it; len(b) when there is none.
func (s *search) partial(b []byte) int {
	if s == nil {
		return len(b)
	}
	from := max(0, len(b)-s.most+1)
	for at := candidate(s, b, from); at >= 0; at = candidate(s, b, at+1) {
		if s.begins(b[at:]) {
			return at
		}
	}
	for at := max(from, len(b)-s.least+1); at < len(b); at++ { // too short for a window
		if s.begins(b[at:]) {
			return at
		}
	}
	return len(b)
}

// begins reports whether rest, which is not empty, is the start of a longer needle.
func (s *search) begins(rest []byte) bool {
	for _, n := range s.startingWith(rest[0]) {
		if len(n) > len(rest) && n[:len(rest)] == string(rest) {
			return true
		}
	}
	return false
}

// marks are the places to be masked, as [from, to), in order and apart.
type marks [][2]int

// add takes in a place that begins no earlier than the last one did.
func (m marks) add(from, to int) marks {
	if k := len(m); k > 0 && from <= m[k-1][1] {
		m[k-1][1] = max(m[k-1][1], to)
		return m
	}
	return append(m, [2]int{from, to})
}

// apply masks b[:end] and counts the masked stretches. prev says whether the byte
// before b was masked, and is set for the byte after.
func (m marks) apply(b []byte, end int, prev *bool) (n int64) {
	done := 0 // everything before is decided
	for _, r := range m {
		from, to := r[0], min(r[1], end)
		if from >= to {
			continue
		}
		if from > 0 || !*prev {
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
