package runner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
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

	link func() (host int, guest *os.File, err error) // linkPair, but for a test
}

// Time allowed for what should take milliseconds.
const (
	createTimeout = 60 * time.Second // from the helper's start to the task's
	killGrace     = 5 * time.Second  // from a kill order to the helper's answer
	drainTimeout  = 5 * time.Second  // from the helper's death to the end of its output
	endTimeout    = 30 * time.Second // to take the credentials back
	recordTimeout = 10 * time.Second // to write how the run ended
	signalGrace   = 10 * time.Second // from a forwarded signal to the kill
)

// run is one task under way.
type run struct {
	*Runner
	t        Task
	ident    identitySet
	groups   []uint32 // the task's besides its own: of the image's user
	state    *State
	cg       *runCgroup
	host     *cgroupHost
	sess     *broker.Session
	pr       *proxy.Run
	net      *network
	image    *image.Image // nil: the curated root
	outside  Outside
	audit    *audit.Log // nil until openLog
	cmd      *exec.Cmd
	ctl      *control
	feed     *os.File // write end of the helper's configuration pipe
	inputs   *os.File // write end of the helper's inputs pipe
	plan     []inputEntry
	copied   []audit.File
	stdin    *os.File
	console  *os.File // master of the task's terminal, when it has one
	attached bool     // the caller's streams are joined with it
	out      *stream
	errs     *stream
	exited   chan struct{} // closed when the helper is dead and reaped

	running chan struct{} // closed when the task runs
	over    chan struct{} // closed when nothing is left to be ended from outside
	early   atomic.Int32  // the signal that ended the run before its task was started

	limits      Limits
	notEnforced []string
	network     string // what is in place of the network card; "" is nothing
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
		return refusef("%w", hinted(err, "--user root, task or a number, and a group's number after a colon"))
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
