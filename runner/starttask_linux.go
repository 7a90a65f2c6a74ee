package runner

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
)

// startTask is what Container.Start does for a root container, with our
// descriptor as the only interface instead of a loopback-only network. Both are
// calls on the sentry's control socket; the network arguments come first because
// the sentry's system-call filter is installed by the second.
func startTask(c *container.Container, fd int) (*startedTask, error) {
	conn, err := client.ConnectTo(c.Sandbox.GetControlSocketPath())
	if err != nil {
		return nil, fmt.Errorf("connect to sentry: %w", err)
	}
	if err := conn.Call(boot.ContMgrSetNetworkArgs, linkArgs(fd), nil); err != nil {
		_ = conn.Close()
		return nil, refusedCard(err)
	}
	if err := conn.Call(boot.ContMgrRootContainerStart, &c.ID, nil); err != nil {
		_ = conn.Close()
		return nil, refusedCard(err)
	}
	c.Status = container.Running
	return awaitOn(conn, c), nil
}

// await awaits the end of a container that was started otherwise.
func await(c *container.Container) (*startedTask, error) {
	conn, err := client.ConnectTo(c.Sandbox.GetControlSocketPath())
	if err != nil {
		return nil, fmt.Errorf("connect to sentry: %w", err)
	}
	return awaitOn(conn, c), nil
}

// awaitOn asks at once, on an open connection: a sentry whose task is over ends too,
// and its own exit code does not say by which signal the task ended.
func awaitOn(conn *urpc.Client, c *container.Container) *startedTask {
	t := &startedTask{c: c, told: make(chan struct{})}
	go func() {
		defer close(t.told)
		defer conn.Close()
		t.err = conn.Call(boot.ContMgrWait, &c.ID, &t.status)
	}()
	return t
}

// startedTask is a task that runs.
type startedTask struct {
	c      *container.Container
	told   chan struct{}   // closed when the sentry answered, or is gone
	status unix.WaitStatus // of the task, when err is nil
	err    error
}

// wait waits until the task and its sandbox are gone. lost names the process of
// the sandbox whose violent death was the end of the task, if one was.
func (t *startedTask) wait() (status unix.WaitStatus, lost string, err error) {
	<-t.told
	// Until the sentry has written everything and is gone. Container.Wait would reap
	// the gofer beside it, and how that one ended would be nobody's to ask.
	own, err := t.c.Sandbox.Wait(t.c.ID)
	if err != nil {
		return 0, "", err
	}
	var patience time.Duration // a task that ended well needs no reason
	if t.err != nil || t.status != 0 {
		patience = goferTime
	}
	if wasKilled(t.c.GoferPid.Load(), patience) {
		lost = "gofer" // the sentry ends the task then
	}
	if t.err == nil {
		return t.status, lost, nil
	}
	if lost == "" || own.Signaled() { // it answers before it exits: one that did not was killed, or failed
		lost = "sentry"
	}
	return own, lost, nil
}

// goferTime is how long the end of a gofer is awaited whose sentry is gone. It
// takes milliseconds: nobody is left whom it could serve.
const goferTime = killGrace / 2

// wasKilled reports that a child was ended by a signal, at the latest patience
// from now. Its files are closed before it is dead (exit(2) of a process has an
// order), so whoever sees those close may be here first. It stays to be reaped.
func wasKilled(pid int, patience time.Duration) bool {
	if pid <= 0 {
		return false
	}
	if patience == 0 {
		return endedBySignal(pid, unix.WNOHANG)
	}
	told := make(chan bool, 1)
	go func() { told <- endedBySignal(pid, 0) }() // ends with the child: whoever reaps it answers it
	select {
	case killed := <-told:
		return killed
	case <-time.After(patience):
		return false
	}
}

func endedBySignal(pid, options int) bool {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
		if err == unix.EINTR {
			continue
		}
		const killed, dumped = 2, 3 // CLD_KILLED, CLD_DUMPED (waitid(2))
		return err == nil && info.Signo == int32(unix.SIGCHLD) && (info.Code == killed || info.Code == dumped)
	}
}

func linkArgs(fd int) *boot.CreateLinksAndRoutesArgs {
	lo := boot.DefaultLoopbackLink
	lo.Addresses = lo.Addresses[:1] // 127.0.0.1/8 only, no ::1
	lo.Routes = lo.Routes[:1]
	args := &boot.CreateLinksAndRoutesArgs{
		LoopbackLinks: []boot.LoopbackLink{lo},
		FDBasedLinks: []boot.FDBasedLink{{
			Name: "eth0", MTU: linkMTU, NumChannels: 1,
			ProcessorsPerChannel: 1, // whoever reads a packet delivers it: more would be woken for each
			Addresses:            []boot.IPWithPrefix{{Address: net.ParseIP(sandboxAddr).To4(), PrefixLen: 32}},
			RXChecksumOffload:    true, TXChecksumOffload: true,
			QDisc: config.QDiscFIFO,
		}},
		Defaultv4Gateway: boot.DefaultRoute{Name: "eth0", Route: boot.Route{
			Destination: net.IPNet{IP: net.IPv4zero.To4(), Mask: net.IPMask(net.IPv4zero.To4())},
		}},
	}
	args.FilePayload.Files = []*os.File{os.NewFile(uintptr(fd), "link")}
	return args
}

// execCode tells, from the sentry's answer (errors lose their type on the way),
// whether the task was not found (127) or not executable (126); 0 when the
// failure has nothing to do with the command.
func execCode(err error) int {
	s := err.Error()
	if !strings.Contains(s, "failed to load") && !strings.Contains(s, "error finding executable") {
		return 0
	}
	if strings.Contains(s, "no such file or directory") || strings.Contains(s, "not a directory") {
		return ExitNotFound
	}
	return ExitNotExecutable
}
