package audit

const (
	leastAhead = 64 << 10 // bytes that are blanked at first
	mostAhead  = 256 << 10
	firstAhead = 8 // short writes that are waited for until then
)

// blankAhead writes NULs where the next lines go, when what was written, of n bytes, has
// come to the end of the last such. Blocks that fallocate(2) has only reserved cost each
// fdatasync a commit of the file system's journal; those that were written before do not.
// It serves speed alone, and only a log of short writes that somebody waits for: of
// errors nothing is said.
func (s *stream) blankAhead(n int) {
	if n >= directLeast {
		return // their size is what they cost
	}
	if s.waited++; s.waited <= firstAhead || s.end() <= s.blank {
		return
	}
	s.ahead = min(max(2*s.ahead, leastAhead), mostAhead)
	from := (max(s.reach, s.end()) + blockSize - 1) / blockSize * blockSize
	s.blank = min(from+s.ahead, s.segSize)
	if from < s.blank && s.seg.Blank(from, s.blank-from) != nil {
		s.blank = s.segSize // not again in this segment
	}
}
