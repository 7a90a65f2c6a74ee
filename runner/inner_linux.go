package runner

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Programs of the fallback that run inside the sandbox: this binary under other
// names. They hold nothing that the task could not have, and are trusted with
// nothing: what they send ends in the proxy's pipeline, as what the task sends.
const (
	innerDir     = "/.warder"         // mounted by the fallback alone
	innerForward = "warder-forward"   // moves connections to the proxy's socket
	innerWait    = "warder-wait"      // becomes the task, once there is somebody to move them
	innerSocket  = innerDir + "/sock" // of the proxy
	innerListen  = "127.0.0.1:3128"   // where the task's programs find the forwarder
	innerTimeout = 30 * time.Second   // for the forwarder to come
	innerThreads = 24                 // processes that the two may need on top of the task's
)

// innerEnv names the forwarder to the programs of the task, those of its variables
// that are not set yet.
func innerEnv(env []string) []string {
	out := slices.Clone(env)
	for _, name := range []string{"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "no_proxy", "NO_PROXY"} {
		value := "http://" + innerListen
		if strings.EqualFold(name, "no_proxy") {
			value = "localhost,127.0.0.1"
		}
		if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			out = append(out, name+"="+value)
		}
	}
	return out
}

// isInner reports that this process was started as one of the two.
func isInner(argv0 string) bool {
	base := filepath.Base(argv0)
	return base == innerForward || base == innerWait
}

// innerMain does the job of argv[0] inside of the sandbox.
func innerMain(args []string) int {
	var err error
	switch filepath.Base(args[0]) {
	case innerForward:
		err = forwardMain(innerListen, innerSocket)
	case innerWait:
		var code int
		if code, err = becomeTask(args[1:]); err != nil && code != ExitWarder {
			fmt.Fprintln(os.Stderr, "warder:", err)
			return code
		}
	}
	fmt.Fprintln(os.Stderr, "warder: inside:", err)
	return ExitWarder
}

// forwardMain takes connections until its sandbox ends.
func forwardMain(listen, socket string) error {
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE) // they are the task's
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
				time.Sleep(10 * time.Millisecond) // until one of the others ends
				continue
			}
			return err
		}
		go forward(c.(*net.TCPConn), socket)
	}
}

// forward joins a connection with the proxy's socket, each direction to its own end.
func forward(c *net.TCPConn, socket string) {
	defer c.Close()
	up, err := net.Dial("unix", socket) //nolint:forbidigo,noctx // inside of a sandbox, where this socket is all there is
	if err != nil {
		_ = c.SetLinger(0) // a reset, not an empty answer
		return
	}
	defer up.Close()
	var wg sync.WaitGroup
	move := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		if err != nil {
			c.Close()
			up.Close()
			return
		}
		_ = dst.(interface{ CloseWrite() error }).CloseWrite()
	}
	wg.Go(func() { move(up, c) })
	wg.Go(func() { move(c, up) })
	wg.Wait()
}

// becomeTask waits for the forwarder and becomes the command: the same process,
// so that exit code and signals are its own.
func becomeTask(argv []string) (code int, err error) {
	deadline := time.Now().Add(innerTimeout)
	for {
		c, err := net.Dial("tcp", innerListen) //nolint:forbidigo,noctx // its own forwarder
		if err == nil {
			c.Close()
			break
		}
		if time.Now().After(deadline) {
			return ExitWarder, fmt.Errorf("the forwarder did not come: %w", err)
		}
		time.Sleep(2 * time.Millisecond) // it is another program, which is just starting
	}
	path, err := exec.LookPath(argv[0])
	if err == nil || errors.Is(err, exec.ErrDot) {
		err = unix.Exec(path, argv, os.Environ())
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return ExitNotFound, fmt.Errorf("command %q not found in the sandbox", argv[0])
	}
	return ExitNotExecutable, fmt.Errorf("command %q cannot be executed in the sandbox: %w", argv[0], err)
}
