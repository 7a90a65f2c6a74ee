package runner

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// consoleListener is where gVisor sends the master of the pseudo-terminal that
// it makes for the task.
type consoleListener struct {
	l    *net.UnixListener
	path string
}

func listenConsole(dir string) (*consoleListener, error) {
	p := filepath.Join(dir, "console.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &consoleListener{l, p}, nil
}

// master waits for the one connection and takes the descriptor out of it.
func (c *consoleListener) master() (*os.File, error) {
	defer c.l.Close()
	conn, err := c.l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 64), oob)
	if err != nil {
		return nil, err
	}
	files, err := receivedFiles(oob[:n])
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		closeFiles(files...)
		return nil, fmt.Errorf("console: %d descriptors instead of 1", len(files))
	}
	return files[0], nil
}

// setConsole keeps the master of the sandbox's terminal; there is a second sandbox
// when the first one had no network card.
func (u *run) setConsole(master *os.File) {
	closeFiles(u.console)
	u.console = master
	u.resize()
}

// attach joins the caller's streams with the terminal of the task that runs.
func (u *run) attach() {
	master := u.console
	if u.t.Terminal == nil || master == nil {
		return
	}
	u.attached = true
	go func() {
		for {
			select {
			case <-u.over:
				return
			case _, ok := <-u.t.Terminal.Resized:
				if !ok {
					return
				}
				u.resize()
			}
		}
	}()
	go u.out.pump(master) // ends with EIO when the task's side is closed
	if u.t.Stdin != nil {
		go func() { _, _ = io.Copy(master, u.t.Stdin) }() // ends with the terminal
	}
}

func (u *run) resize() {
	if u.t.Terminal.Size == nil {
		return
	}
	if rows, cols := u.t.Terminal.Size(); rows > 0 && cols > 0 {
		_ = unix.IoctlSetWinsize(int(u.console.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}) // a dying terminal has no size
	}
}

// termName is TERM inside.
func (u *run) termName() string {
	switch {
	case u.t.Terminal == nil:
		return "dumb"
	case u.t.Terminal.Name != "":
		return u.t.Terminal.Name
	}
	return "xterm"
}
