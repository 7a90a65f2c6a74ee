package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Phases that the helper reports, in order.
const (
	phasePrepared = "prepared" // root, workspace and inputs are in place
	phaseConsole  = "console"  // with a terminal only: its master comes along
	phaseNoCard   = "no-card"  // there is no network card, and will be a socket
	phaseSocket   = "socket"   // a listener for the proxy comes along
	phaseCreated  = "created"  // sentry and gofer run, the task does not
	phaseStarted  = "started"  // the task runs
	phaseExited   = "exited"   // the task and its sandbox are gone; descriptors of /workspace and /out come along
)

// Orders to the helper.
const (
	opStart  = "start"
	opSocket = "socket" // as root this binary comes along
	opSignal = "signal"
	opKill   = "kill"
	opDone   = "done"
)

// message is one datagram on the control socket, either way.
type message struct {
	Phase      string `json:"phase,omitempty"`
	SandboxPID int    `json:"sandbox_pid,omitempty"`
	Status     uint32 `json:"status,omitempty"` // wait status of the task, wait(2)
	Lost       string `json:"lost,omitempty"`   // process of the sandbox whose death ended the task
	Why        string `json:"why,omitempty"`    // with phaseNoCard: what is wrong with the network card
	Err        string `json:"err,omitempty"`
	Step       string `json:"step,omitempty"` // what was being done when Err happened
	Code       int    `json:"code,omitempty"` // 126 or 127 when the task could not be executed

	Op     string `json:"op,omitempty"`
	Signal int    `json:"signal,omitempty"`

	files []*os.File // that came with an order
}

const maxMessage = 32 << 10

// control is one end of the SEQPACKET pair between the runner and its helper.
// The end of file on it means that the other side is dead.
type control struct {
	f  *os.File
	mu sync.Mutex // serialises writers
}

func (c *control) send(m message, files ...*os.File) error {
	if len(m.Err) > 8<<10 {
		m.Err = m.Err[:8<<10]
	}
	if len(m.Why) > 8<<10 {
		m.Why = m.Why[:8<<10]
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("control: encode: %w", err)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		err = unix.Sendmsg(int(c.f.Fd()), b, oob, nil, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("control: send: %w", err)
	}
	return nil
}

// recv blocks for the next message; io.EOF when the other side is gone. The
// files that came along belong to the caller.
func (c *control) recv() (message, []*os.File, error) {
	buf := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(4*4))
	var n, oobn int
	var err error
	for {
		n, oobn, _, _, err = unix.Recvmsg(int(c.f.Fd()), buf, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.ECONNRESET) { // the other end went with something of ours unread
		n, err = 0, nil
	}
	if err != nil {
		return message{}, nil, fmt.Errorf("control: receive: %w", err)
	}
	if n == 0 {
		return message{}, nil, io.EOF
	}
	files, err := receivedFiles(oob[:oobn])
	if err != nil {
		return message{}, nil, err
	}
	var m message
	if err := json.Unmarshal(buf[:n], &m); err != nil {
		return message{}, files, fmt.Errorf("control: decode: %w", err)
	}
	return m, files, nil
}

func receivedFiles(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control: descriptors: %w", err)
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return files, fmt.Errorf("control: descriptors: %w", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// controlPair makes both ends; both are blocking and close on exec.
func controlPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("control: socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control"), nil
}
