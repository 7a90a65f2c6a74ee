package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"syscall"

	"warder/audit"
)

// outputCap bounds what is kept of each stream in a JSON result, in bytes.
const outputCap = 8 << 20

// stream copies one output stream of the task: unchanged to w, or into a
// bounded buffer, always counted and hashed as the task wrote it.
type stream struct {
	w    io.Writer // nil: keep
	mu   sync.Mutex
	sum  hash.Hash
	n    int64
	kept []byte
	cut  bool
	lost error // why the rest could not be passed on
	done chan struct{}
}

func newStream(w io.Writer) *stream {
	return &stream{w: w, sum: sha256.New(), done: make(chan struct{})}
}

// pump copies until the end of r, and closes it. When nobody reads what we write
// any more, the task's next write fails too, as in a pipeline of a shell.
func (s *stream) pump(r io.ReadCloser) {
	defer close(s.done)
	defer r.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			s.add(buf[:n])
			if s.w != nil {
				if _, werr := s.w.Write(buf[:n]); werr != nil {
					s.mu.Lock()
					s.cut, s.lost = true, werr
					s.mu.Unlock()
					return
				}
			}
		}
		if err != nil {
			return
		}
	}
}

func (s *stream) add(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.Write(b)
	s.n += int64(len(b))
	if s.w != nil {
		return
	}
	if room := outputCap - len(s.kept); room < len(b) {
		b, s.cut = b[:room], true
	}
	s.kept = append(s.kept, b...)
}

// record is the stream's entry in the run.end record.
func (s *stream) record() *audit.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &audit.Stream{Bytes: s.n, SHA256: hex.EncodeToString(s.sum.Sum(nil)), Truncated: s.cut}
}

// failure tells that output was lost, but for a reader that went away by itself.
func (s *stream) failure(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost == nil || errors.Is(s.lost, syscall.EPIPE) {
		return nil
	}
	return fmt.Errorf("%s: %w", name, s.lost)
}

func (s *stream) bytes() ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept, s.cut
}
