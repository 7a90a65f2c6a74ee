package runner

import (
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
)

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// Output that is lost must be told, unless nobody wanted it any more (I10).
func TestLostOutputIsAFailure_I10(t *testing.T) {
	for _, c := range []struct {
		w    io.Writer
		want string
	}{
		{io.Discard, ""}, {failing{syscall.EPIPE}, ""}, {failing{syscall.ENOSPC}, "stdout: no space left"}, {failing{errors.New("gone")}, "stdout: gone"},
	} {
		s := newStream(c.w)
		s.pump(io.NopCloser(strings.NewReader("text")))
		<-s.done
		got := ""
		if err := s.failure("stdout"); err != nil {
			got = err.Error()
		}
		if got != c.want && !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: %q, want %q", c.w, got, c.want)
		}
	}
}
