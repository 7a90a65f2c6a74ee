package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"warder/audit"
	"warder/broker"
	"warder/proxy"
	"warder/runner/image"
)

// Runner runs tasks. Its parts are made by the caller, who also closes them.
type Runner struct {
	Proxy  *proxy.Proxy
	Broker *broker.Broker
	State  *StateDir
	Images *image.Store // nil: no images
	Log    *slog.Logger

	// Open makes Proxy and Broker while the helper is being loaded; nil when they
	// are there already.
	Open func(context.Context) error

	// Ready returns the log once requests can be judged and recorded. It is asked
	// when the sandbox exists and before the task starts, so that policy and log
	// can be opened meanwhile; an error refuses the run.
	Ready func(context.Context) (*audit.Log, error)

	// Outside tells what the sandbox's trust depends on; nil: nothing. It is asked
	// before the sandbox is made, after Open.
	Outside func(context.Context) Outside
}

// Time allowed for what should take milliseconds.
const (
	createTimeout = 60 * time.Second // from the helper's start to the task's
	killGrace     = 5 * time.Second  // from a kill order to the helper's answer
	drainTimeout  = 5 * time.Second  // from the helper's death to the end of its output
	endTimeout    = 30 * time.Second // to take the credentials back
	signalGrace   = 10 * time.Second // from a forwarded signal to the kill
)

// run is one task under way.
type run struct {
	*Runner
	t       Task
	ident   identitySet
	state   *State
	cg      *runCgroup
	host    *cgroupHost
	sess    *broker.Session
	pr      *proxy.Run
	net     *network
	image   *image.Image // nil: the curated root
	outside Outside
	audit   *audit.Log // nil until openLog
	cmd     *exec.Cmd
	ctl     *control
	feed    *os.File // write end of the helper's configuration pipe
	inputs  *os.File // write end of the helper's inputs pipe
	plan    []inputEntry
	copied  []audit.File
	stdin   *os.File
	console *os.File // master of the task's terminal, when it has one
	out     *stream
	errs    *stream
	exited  chan struct{} // closed when the helper is dead and reaped

	running chan struct{} // closed when the task runs
	over    chan struct{} // closed when nothing is left to be ended from outside
	early   atomic.Int32  // the signal that ended the run before its task was started

	limits      Limits
	notEnforced []string
	started     time.Time
	endCause    atomic.Pointer[string] // set by whoever ends the run from outside
	sandboxPID  atomic.Int64
	recorded    bool // run.start is in the log
	readyErr    error
	orderly     bool // the helper destroyed the sandbox and exited by itself
}

// Run runs the task and returns its result. An error means that the result
// could not be had or that records of the run could not be written; the result
// is right as far as it goes even then.
func (r *Runner) Run(ctx context.Context, t Task) (Result, error) {
	u := &run{Runner: r, t: t, started: time.Now(), exited: make(chan struct{}), running: make(chan struct{}), over: make(chan struct{})}
	res := Result{RunID: t.Run.ID, ExitCode: ExitWarder, Cause: CauseError}
	err := u.begin(ctx)
	if err == nil {
		err = u.supervise(ctx, &res)
	}
	close(u.over)
	err = errors.Join(err, u.finish(ctx, &res, err))
	res.Duration = time.Since(u.started)
	return res, err
}

// begin makes everything up to the created sandbox.
func (u *run) begin(ctx context.Context) error {
	var err error
	if !builtStatic {
		return refusef("this binary was built with cgo and cannot start a sandbox; hint: build it with CGO_ENABLED=0 (make build)")
	}
	if err := u.useImage(ctx); err != nil {
		return refusef("%w", hinted(err, imageHint(u.t.Image)))
	}
	if len(u.t.Argv) == 0 {
		return refusef("no command; hint: warder run [flags] -- CMD [ARG…]")
	}
	// The sandbox is told in JSON, which would change such bytes without a word.
	for _, s := range slices.Concat(u.t.Argv, u.t.Env, []string{u.t.Workdir}) {
		if !utf8.ValidString(s) {
			return refusef("%q is not valid UTF-8; hint: pass such bytes in a file (--input) or on standard input (-i)", s)
		}
	}
	if u.limits, err = u.t.Limits.withDefaults(); err != nil {
		return refusef("limits: %w", hinted(err, "give another value, or none for the default"))
	}
	if err := prepareArtifacts(u.t.Artifacts, u.t.ArtifactsDir); err != nil {
		return refusef("%w", err)
	}
	if u.plan, err = planInputs(u.t.Inputs); err != nil {
		return refusef("%w", hinted(err, "--input [tar:|zip:]SRC[:DST]: SRC is yours to read, DST below /workspace or /out"))
	}
	if err := u.attachStdin(); err != nil {
		return refusef("%w", err)
	}
	if u.ident, err = chooseIDs(u.t.User, u.t.UIDRange); err != nil {
		return refusef("%w", hinted(err, "--user root, task or a number"))
	}
	if u.state, err = u.State.begin(u.t.Run.ID, u.ident.slots, u.ident.hostIDs); err != nil {
		return refusef("%w", err)
	}
	u.ident.slot = u.state.slot
	// The helper waits for its configuration, so there is time to confine it while
	// it is being loaded.
	if err := u.spawn(); err != nil {
		return refusef("start helper: %w", err)
	}
	u.trace("spawned")
	if err := u.confine(); err != nil {
		return err
	}
	if err := u.cg.add(u.cmd.Process.Pid); errors.Is(err, unix.ESRCH) {
		return refusef("sandbox: %w", errHelperKilled)
	} else if err != nil {
		return refusef("%w", err)
	}
	if err := u.connect(ctx); err != nil {
		return refusef("%w", err)
	}
	go u.forwardSignals(ctx)
	return u.configure(ctx)
}

// confine makes the cgroups and decides what is not enforced here.
func (u *run) confine() error {
	held := map[string]bool{}
	if os.Geteuid() == 0 {
		u.host = findCgroups("/proc")
		if u.host != nil {
			cg, err := u.host.create(u.t.Run.ID, u.limits)
			u.cg = cg
			if err != nil {
				u.Log.Warn("cgroups", "err", err)
			}
			for _, name := range cg.held {
				held[name] = true
			}
		}
	}
	if !held["cpus"] {
		u.notEnforced = append(u.notEnforced, "cpus")
	}
	// Without a memory cgroup the watchdog enforces the limit.
	if err := u.limits.refuse(u.notEnforced); err != nil {
		return refusef("%w", err)
	}
	return nil
}

func (u *run) watchdogNeeded() bool {
	if u.cg == nil {
		return true
	}
	for _, name := range u.cg.held {
		if name == "memory" {
			return false
		}
	}
	return true
}

// connect makes the session, the proxy's side of the run and the network.
func (u *run) connect(ctx context.Context) error {
	if u.Open != nil {
		if err := u.Open(ctx); err != nil {
			return err
		}
	}
	var err error
	if u.sess, err = u.Broker.Begin(u.t.Run, u.t.Credentials, u.state); err != nil {
		return err
	}
	u.pr, err = u.Proxy.NewRun(proxy.RunOptions{Run: u.t.Run, Offered: u.sess.Offered(), Granter: u.sess, StandIns: proxy.StandInsOf(u.sess), NameOf: u.nameOf})
	return err
}

// nameOf gives the name that an address of the pool stands for.
func (u *run) nameOf(a netip.Addr) (name string, pool bool) {
	if !poolPrefix.Contains(a) {
		return "", false
	}
	name, _ = u.net.names.lookup(a)
	return name, true
}

// route hands a connection of the sandbox to the proxy.
func (u *run) route(c net.Conn, dst netip.AddrPort) {
	d := proxy.Destination{Addr: dst}
	switch {
	case dst.Addr() == netip.MustParseAddr(explicitAddr) && dst.Port() == explicitPort:
		u.pr.ServeExplicit(c)
		return
	case poolPrefix.Contains(dst.Addr()):
		name, ok := u.net.names.lookup(dst.Addr())
		if !ok {
			reset(c)
			u.pr.Refuse(d, "unknown-address")
			return
		}
		d.Name = name
	case netip.MustParsePrefix("10.0.2.0/24").Contains(dst.Addr()):
		reset(c)
		u.pr.Refuse(d, "unknown-address")
		return
	}
	u.pr.ServeConn(c, d)
}

func reset(c net.Conn) {
	if rc, ok := c.(*countedConn); ok {
		rc.Reset()
		return
	}
	_ = c.Close()
}

// spawn starts the helper from a thread that lives as long as the helper: the
// parent-death signal follows the thread.
func (u *run) spawn() error {
	hostFD, guest, err := linkPair()
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
	cmd.Args = []string{helperName, u.t.Run.ID}
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
	if err := <-started; err != nil {
		pipes.closeAll()
		return helperStartError(err)
	}
	u.cmd = cmd
	u.feed, u.inputs, u.stdin = pipes.configW, pipes.inputsW, pipes.stdinW
	u.out, u.errs = newStream(u.t.Stdout), newStream(u.t.Stderr)
	if u.t.Terminal == nil {
		go u.out.pump(pipes.stdoutR)
	} else {
		closeFiles(pipes.stdoutR) // the terminal takes its place
	}
	go u.errs.pump(pipes.stderrR)
	if tree != nil { // the helper waits for its configuration before it looks at it
		if err := mapTree(tree, cmd.Process.Pid); err != nil {
			return fmt.Errorf("image %s: %w", u.image.Ref, err)
		}
	}
	return nil
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

// configure tells the helper what to do and streams the inputs.
func (u *run) configure(ctx context.Context) error {
	if u.Outside != nil {
		u.outside = u.Outside(ctx)
	}
	root, err := u.rootPlan()
	if err != nil {
		return refusef("%w", err)
	}
	h := helperConfig{
		ID: u.t.Run.ID, Args: u.t.Argv, Env: u.environment(), Cwd: u.t.Workdir, UID: u.ident.inside, Root: root,
		NProc: uint64(u.limits.PIDs), NoFile: defaultNoFile,
		Disk: u.limits.Disk, Tmp: min(u.limits.Disk, maxTmp), Overlay: u.limits.overlay(u.image != nil),
		HasInputs: len(u.plan) > 0, Terminal: u.t.Terminal != nil,
	}
	if !path.IsAbs(h.Cwd) {
		h.Cwd = path.Join("/workspace", h.Cwd)
	}
	err = json.NewEncoder(u.feed).Encode(h)
	if cerr := u.feed.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		u.copied, err = u.sendInputs(ctx)
	}
	if err != nil {
		switch why := u.helperFailure(); {
		case why != nil && errors.Is(err, unix.EPIPE):
			err = why // it closed the pipe
		default:
			err = errors.Join(err, why)
		}
		if len(u.plan) > 0 {
			err = hinted(err, "inputs have to be yours to read, to stay as they are meanwhile, and to fit into --disk")
		}
	}
	if err != nil && u.cg.oomKilled() {
		return &Error{ExitOOM, errors.New("out of memory while the inputs were copied: /workspace and /out are in memory; hint: --memory")}
	}
	if err != nil {
		return refusef("sandbox: prepare: %w", err)
	}
	return nil
}

func (u *run) sendInputs(ctx context.Context) ([]audit.File, error) {
	defer u.inputs.Close()
	if len(u.plan) == 0 {
		return nil, nil
	}
	for i, e := range u.plan {
		if e.stdin != nil {
			u.plan[i].stdin = u.untilTheEnd(e.stdin)
		}
	}
	return packInputs(ctx, u.inputs, u.plan)
}

// helperFailure is what the helper says when a pipe to it broke.
func (u *run) helperFailure() error {
	m, _, err := u.ctl.recv()
	if errors.Is(err, io.EOF) {
		return errHelperKilled
	}
	if err == nil && m.Err != "" {
		return fmt.Errorf("%s: %s", m.Step, m.Err)
	}
	return nil
}

var errHelperKilled = errors.New("the helper process was killed")

func (u *run) trace(name string) {
	if u.t.Trace == nil {
		return
	}
	p := Phase{Name: name, Run: u.t.Run.ID, Time: time.Now(), PID: os.Getpid(), SandboxPID: int(u.sandboxPID.Load())}
	if u.cmd != nil && u.cmd.Process != nil {
		p.HelperPID = u.cmd.Process.Pid
	}
	u.t.Trace(p)
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
