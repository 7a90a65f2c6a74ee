package runner

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"

	"a.warder/early"
	"golang.org/x/sys/unix"
)

// spawn starts the helper with everything that it shares with us.
func (u *run) spawn() error {
	pair := u.link
	if pair == nil {
		pair = linkPair
	}
	hostFD, guest, err := pair()
	if err != nil {
		return err
	}
	defer guest.Close()
	if u.net, err = newNetwork(hostFD, u.route); err != nil {
		return err
	}
	ours, theirs, err := controlPair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	u.ctl = &control{f: ours}
	pipes, err := u.makePipes()
	if err != nil {
		return err
	}
	defer pipes.closeChildEnds()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{early.Helper, u.t.Run.ID}
	cmd.Env = []string{"PATH=" + defaultPath}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipes.stdinR, pipes.stdoutW, pipes.stderrW
	cmd.ExtraFiles = []*os.File{theirs, pipes.configR, guest, pipes.inputsR, u.state.f}
	tree, err := u.detachedTree()
	if err != nil {
		return err
	}
	if tree != nil {
		defer tree.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, tree)
	}
	cmd.SysProcAttr = u.ident.sysProcAttr()
	if err := u.startHelper(cmd); err != nil {
		pipes.closeAll()
		return helperStartError(err)
	}
	u.cmd = cmd
	u.takePipes(pipes)
	if tree != nil { // the helper waits for its configuration before it looks at it
		if err := mapTree(tree, cmd.Process.Pid); err != nil {
			return fmt.Errorf("image %s: %w", u.image.Ref, err)
		}
	}
	return nil
}

// startHelper starts it from a thread that lives as long as the helper: the
// parent-death signal follows the thread.
func (u *run) startHelper(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		_ = cmd.Wait() // its status says nothing that the control socket did not
		close(u.exited)
	}()
	return <-started
}

// takePipes keeps our ends, and begins to read the task's output.
func (u *run) takePipes(pipes *pipeSet) {
	u.feed, u.inputs, u.stdin = pipes.configW, pipes.inputsW, pipes.stdinW
	u.out, u.errs = newStream(u.t.Stdout), newStream(u.t.Stderr)
	if u.t.Terminal == nil {
		go u.out.pump(pipes.stdoutR)
	} else {
		closeFiles(pipes.stdoutR) // the terminal takes its place
	}
	go u.errs.pump(pipes.stderrR)
}

func helperStartError(err error) error {
	switch {
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w; hint: the warder binary must be executable by everyone (chmod 755)", err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return fmt.Errorf("%w; hint: this host does not allow user namespaces (see sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)", err)
	}
	return err
}

// pipes between us and the helper; the R/W suffix is the direction of that end.
type pipeSet struct {
	stdinR, stdinW, stdoutR, stdoutW, stderrR, stderrW *os.File
	configR, configW, inputsR, inputsW                 *os.File
}

func (u *run) makePipes() (*pipeSet, error) {
	p := &pipeSet{}
	for _, e := range []struct{ r, w **os.File }{
		{&p.stdoutR, &p.stdoutW}, {&p.stderrR, &p.stderrW}, {&p.configR, &p.configW}, {&p.inputsR, &p.inputsW},
	} {
		var err error
		if *e.r, *e.w, err = os.Pipe(); err != nil {
			p.closeAll()
			return nil, err
		}
	}
	var err error
	if u.t.Stdin == nil || u.t.Terminal != nil {
		p.stdinR, err = os.Open(os.DevNull)
	} else {
		p.stdinR, p.stdinW, err = os.Pipe()
	}
	if err != nil {
		p.closeAll()
		return nil, err
	}
	// As root the helper is another user: it re-opens nothing, but the sentry
	// may ask for the owner of its stdio.
	return p, nil
}

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (p *pipeSet) closeChildEnds() {
	closeFiles(p.stdinR, p.stdoutW, p.stderrW, p.configR, p.inputsR)
}

func (p *pipeSet) closeAll() {
	p.closeChildEnds()
	closeFiles(p.stdinW, p.stdoutR, p.stderrR, p.configW, p.inputsW)
}

// feedStdin copies the caller's input to the task until either side ends.
func (u *run) feedStdin() {
	if u.stdin == nil {
		return
	}
	go func() {
		_, _ = io.Copy(u.stdin, u.t.Stdin) // a task that reads no more breaks the pipe
		_ = u.stdin.Close()
	}()
}
