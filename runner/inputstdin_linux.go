package runner

import (
	"errors"
	"io"
)

var errSandboxEnded = errors.New("the sandbox ended while standard input was read")

// attachStdin gives standard input to the one input that is read from it.
func (u *run) attachStdin() error {
	taken := false
	for i := range u.plan {
		e := &u.plan[i]
		fromHere := e.archive != nil && e.archive.src == fromStdin || e.archive == nil && e.root == "" && e.host == "" && e.mode.IsRegular()
		if !fromHere {
			continue
		}
		switch {
		case u.t.InputStdin == nil:
			return errors.New("input -: there is no standard input")
		case taken:
			return errors.New("input -: standard input can be one input only")
		case u.t.Stdin != nil:
			return errors.New("input -: standard input goes to the task already; hint: leave out --interactive")
		}
		taken = true
		e.stdin = u.t.InputStdin
	}
	return nil
}

// untilTheEnd reads src as long as the helper lives: a read of a terminal cannot
// be called off, so it is left behind.
func (u *run) untilTheEnd(src io.Reader) io.Reader {
	pr, pw := io.Pipe()
	go func() {
		_, err := io.Copy(pw, src)
		pw.CloseWithError(err)
	}()
	go func() {
		<-u.exited
		pr.CloseWithError(errSandboxEnded)
	}()
	return pr
}
