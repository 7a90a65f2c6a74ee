package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	sentry "gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"

	"warder/audit"
)

// The network of a run, sandbox.network. The card is attached by two calls that
// gVisor does not document. Each start is its own test of them: they come before
// the first instruction of the task, and when the sentry refuses, a second sandbox
// is made that needs only what is documented. In it a Unix socket, opened by the
// gofer, is all there is, and a forwarder moves what programs send to it. Never the
// host's network.
const (
	NetworkAuto   = "auto"   // the card, or else the socket, said loudly
	NetworkCard   = "card"   // the card, or no run
	NetworkSocket = "socket" // the socket, also where the card would do
)

// errNoCard is the sentry's refusal of the network card.
type errNoCard struct{ err error }

func (e errNoCard) Error() string { return "network card: " + e.err.Error() }
func (e errNoCard) Unwrap() error { return e.err }

// laterStage is in the sentry's errors about the files of a sandbox, which it looks at
// when the card is attached: a gofer that was killed, for one.
const laterStage = "setupFS"

// refusedCard tells the sentry's own no from the sentry's death, from a sandbox without
// its files, and from a command that cannot be executed.
func refusedCard(err error) error {
	var remote urpc.RemoteError
	if errors.As(err, &remote) && execCode(err) == 0 && !strings.Contains(remote.Message, laterStage) {
		return errNoCard{err}
	}
	return err
}

const (
	fallbackName   = "fallback" // folder below the helper's
	fallbackSocket = "sock"
)

// openSocket makes the folder that is mounted at innerDir: this binary, and the
// proxy's socket, which the runner gets to listen on. It is in the helper's own
// mount namespace, so that nobody else of the host can reach it.
func (h *helper) openSocket(why string) error {
	if err := h.ctl.send(message{Phase: phaseNoCard, Why: why}); err != nil {
		return err
	}
	m := <-h.orders
	defer closeFiles(m.files...)
	if m.Op != opSocket {
		return fmt.Errorf("unexpected order %q", m.Op)
	}
	dir := filepath.Join(helperBase, fallbackName)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := mountSelf(m.files, filepath.Join(dir, "warder")); err != nil {
		return err
	}
	for _, name := range []string{innerForward, innerWait} {
		if err := os.Symlink("warder", filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, fallbackSocket), Net: "unix"})
	if err != nil {
		return err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(filepath.Join(dir, fallbackSocket), 0o666); err != nil {
		return err
	}
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	h.cfg.Socket = true
	return h.ctl.send(message{Phase: phaseSocket}, f)
}

// selfTree is this binary as a mount that belongs to nowhere yet: as root the
// helper has no right on the folder that it is in. As an ordinary user it has, and
// there is none.
func selfTree() ([]*os.File, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, "/proc/self/exe", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open_tree: %w", err)
	}
	return []*os.File{os.NewFile(uintptr(fd), "warder")}, nil
}

// mountSelf mounts this binary at a place of its own, read-only.
func mountSelf(tree []*os.File, at string) error {
	if err := makeMountPoint(at, true); err != nil {
		return err
	}
	if len(tree) == 1 {
		if err := unix.MoveMount(int(tree[0].Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("move_mount: %w", err)
		}
		return unix.MountSetattr(unix.AT_FDCWD, at, 0, imageAttr())
	}
	exe, err := os.Readlink("/proc/self/exe") // the link itself leads into another mount namespace
	if err != nil {
		return err
	}
	return bindReadOnly(exe, at)
}

// startWithoutCard makes another sandbox in place of the one that has no card.
func (h *helper) startWithoutCard(c *container.Container, why error) (*container.Container, *startedTask, error) {
	if err := c.Destroy(); err != nil {
		return nil, nil, errors.Join(why, err)
	}
	if err := h.openSocket(why.Error()); err != nil {
		return nil, nil, errors.Join(why, err)
	}
	c, conf, err := h.create()
	if err != nil {
		return nil, nil, errors.Join(why, err)
	}
	t, err := h.start(c, conf)
	return c, t, err
}

// startBehindSocket starts the container with nothing but documented calls, and
// the forwarder in it.
func startBehindSocket(c *container.Container, conf *config.Config) (*startedTask, error) {
	if err := c.Start(conf); err != nil {
		return nil, err
	}
	t, err := await(c)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	_, err = c.Execute(conf, &sentry.ExecArgs{
		Filename: innerDir + "/" + innerForward, Argv: []string{innerForward}, Envv: []string{"GOMAXPROCS=2"}, WorkingDirectory: "/",
		NoNewPrivileges: true, Capabilities: &auth.TaskCapabilities{},
		FilePayload: sentry.NewFilePayload(map[int]*os.File{0: null, 1: null, 2: null}, nil),
	})
	if err != nil {
		return nil, fmt.Errorf("forwarder: %w", err)
	}
	return t, nil
}

// withoutCard is told that the sandbox gets the socket. why is what was wrong with
// the card; "" is nothing.
func (u *run) withoutCard(ctx context.Context, why string) error {
	if u.image != nil && strings.HasPrefix(u.image.Ref, "dir:") {
		// The gofer opens whatever socket the root file system shows.
		return errors.New("a folder as image may hold sockets of the host, and gets none of its own; hint: an image in the cache, or an EROFS one")
	}
	u.network = NetworkSocket
	if why != "" {
		u.network += ": " + why
		u.Log.Warn("the sandbox's network card could not be attached: this run has a Unix socket in its place, "+
			"for programs that heed http_proxy and https_proxy; hint: warder doctor", "err", why)
	}
	if u.recorded { // else recordStart does it
		if err := u.recordNetwork(ctx); err != nil {
			return err
		}
	}
	tree, err := selfTree()
	if err != nil {
		return err
	}
	defer closeFiles(tree...)
	return u.ctl.send(message{Op: opSocket}, tree...)
}

// useSocket serves the proxy's socket to the sandbox.
func (u *run) useSocket(l *os.File) error {
	defer l.Close()
	ln, err := net.FileListener(l)
	if err != nil {
		return err
	}
	u.net.serveSocket(ln, u.pr.ServeExplicit)
	return nil
}

// recordNetwork says in the log that the run has no card.
func (u *run) recordNetwork(ctx context.Context) error {
	if u.network == "" {
		return nil
	}
	ident := u.t.Run
	return u.audit.Append(ctx, &audit.Record{
		Event: audit.EventOverride, Run: &ident, Override: &audit.Override{Setting: "sandbox.network", Value: u.network},
	}).Wait(ctx)
}

// serveSocket hands connections over until the network is closed. They count
// against the same cap as those of the card.
func (n *network) serveSocket(ln net.Listener, handle func(net.Conn)) {
	n.socket = ln
	n.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
				time.Sleep(10 * time.Millisecond) // until one of the others ends
				continue
			}
			if err != nil {
				return
			}
			if !n.enter() {
				c.Close()
				continue
			}
			handle(&socketConn{UnixConn: c.(*net.UnixConn), place: place{open: &n.open}})
		}
	})
}

// socketConn gives its place back when it is closed.
type socketConn struct {
	*net.UnixConn
	place
}

func (c *socketConn) Close() error {
	c.leave()
	return c.UnixConn.Close()
}
