package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"warder/audit"
	"warder/broker"
)

// supervise follows the helper from its start to its end.
func (u *run) supervise(ctx context.Context, res *Result) error {
	timer := time.AfterFunc(createTimeout, func() { u.kill(CauseError) })
	defer func() { timer.Stop() }()
	for {
		m, files, err := u.ctl.recv()
		if err != nil {
			return u.helperDied(err)
		}
		switch {
		case m.Err != "":
			return u.helperError(m, res)
		case m.Phase == phaseConsole && len(files) == 1 && u.t.Terminal != nil:
			u.setConsole(files[0])
		case m.Phase == phaseSocket && len(files) == 1:
			if err := u.useSocket(files[0]); err != nil {
				return refusef("sandbox: proxy's socket: %w", err)
			}
		case m.Phase == phaseNoCard:
			if err := u.withoutCard(ctx, m.Why); err != nil {
				return refusef("sandbox: proxy's socket: %w", err)
			}
		case m.Phase == phaseCreated:
			u.sandboxPID.Store(int64(m.SandboxPID))
			u.trace(phaseCreated)
			if err := u.image.Unchanged(); err != nil { // it is open now
				return refusef("%w", err)
			}
			if err := u.openLog(ctx); err != nil {
				return refusef("%w", err)
			}
			if err := u.recordStart(ctx); err != nil {
				return refusef("audit: %w", err)
			}
			if err := u.ctl.send(message{Op: opStart}); err != nil {
				return u.helperDied(err)
			}
		case m.Phase == phaseStarted:
			timer.Stop()
			timer = time.AfterFunc(u.limits.Timeout, func() { u.kill(CauseTimeout) })
			close(u.running)
			u.sandboxPID.Store(int64(m.SandboxPID))
			u.trace(phaseStarted)
			u.attach()
			u.feedStdin()
			if u.t.onStart != nil {
				go u.t.onStart(u.net.probe)
			}
			go u.watchHealth(m.SandboxPID, u.over)
			if u.watchdogNeeded() {
				go u.watchMemory(m.SandboxPID, u.over)
			}
		case m.Phase == phaseExited:
			timer.Stop()
			u.trace(phaseExited)
			lost := u.taskEnded(unix.WaitStatus(m.Status), m.Lost, res)
			return errors.Join(lost, u.collect(files, res))
		}
	}
}

// kill ends the run from outside: first by an order, so that artefacts can be
// collected, then by killing the helper, which takes everything with it.
func (u *run) kill(cause string) {
	u.endCause.CompareAndSwap(nil, &cause)
	_ = u.ctl.send(message{Op: opKill}) // a dead helper needs no order
	select {
	case <-u.exited:
	case <-time.After(killGrace):
		_ = u.cmd.Process.Kill()
	}
}

func (u *run) causeSet() string {
	if p := u.endCause.Load(); p != nil {
		return *p
	}
	return ""
}

// forwardSignals passes the caller's signals to the task, and kills after the
// second one, the grace period, or the end of ctx. Before there is a task, the
// first one ends the run.
func (u *run) forwardSignals(ctx context.Context) {
	var deadline <-chan time.Time
	for {
		select {
		case <-u.over:
			return
		case <-ctx.Done():
			u.kill(CauseSignal)
			return
		case <-deadline:
			u.kill(CauseSignal)
			return
		case s, ok := <-u.t.Signals:
			if !ok {
				return
			}
			sig, isSys := s.(syscall.Signal)
			if u.starting() {
				u.early.Store(int32(sig))
				u.kill(CauseSignal)
				return
			}
			if !isSys || deadline != nil {
				u.kill(CauseSignal)
				return
			}
			_ = u.ctl.send(message{Op: opSignal, Signal: int(sig)})
			deadline = time.After(signalGrace)
		}
	}
}

// starting reports that the task does not run yet.
func (u *run) starting() bool {
	select {
	case <-u.running:
		return false
	default:
		return true
	}
}

// taskEnded turns the wait status into cause and exit code. A task that ended with
// its sandbox, for no reason of ours, is an error.
func (u *run) taskEnded(ws unix.WaitStatus, lost string, res *Result) error {
	switch cause := u.causeSet(); {
	case cause == CauseTimeout:
		res.Cause, res.ExitCode = CauseTimeout, ExitTimeout
	case cause == CauseOOM, u.cg.oomKilled():
		res.Cause, res.ExitCode = CauseOOM, ExitOOM
	case u.early.Load() != 0:
		res.Cause, res.ExitCode = CauseSignal, 128+int(u.early.Load())
	case u.causeSet() == CauseError:
		return refusef("sandbox: a process that the task's code ran in was killed; hint: see whether the host ran out of memory (dmesg)")
	case lost != "" && u.causeSet() == "":
		return refusef("sandbox: its %s was killed, or failed; hint: see whether the host ran out of memory (dmesg)", lost)
	case ws.Signaled():
		res.Cause, res.ExitCode = CauseSignal, 128+int(ws.Signal())
	default:
		res.Cause, res.ExitCode = CauseExit, ws.ExitStatus()
	}
	return nil
}

func (u *run) helperError(m message, res *Result) error {
	switch cause := u.causeSet(); {
	case cause == CauseTimeout:
		res.Cause, res.ExitCode = CauseTimeout, ExitTimeout
		return nil
	case cause == CauseOOM, u.cg.oomKilled():
		res.Cause, res.ExitCode = CauseOOM, ExitOOM
		return nil
	case m.Code != 0:
		what := "not found"
		if m.Code == ExitNotExecutable {
			what = "cannot be executed"
		}
		return &Error{m.Code, fmt.Errorf("command %q %s in the sandbox (%s)", u.t.Argv[0], what, m.Err)}
	}
	return refusef("sandbox: %s: %s", m.Step, m.Err)
}

// helperDied explains the end of the control socket.
func (u *run) helperDied(err error) error {
	_ = u.cmd.Process.Kill()
	<-u.exited
	cause := u.causeSet()
	switch {
	case cause == CauseTimeout:
		return &Error{ExitTimeout, errors.New("timeout; the sandbox did not answer and was killed")}
	case cause == CauseOOM, u.cg.oomKilled():
		return &Error{ExitOOM, errors.New("out of memory; the sandbox was killed")}
	case errors.Is(err, io.EOF):
		return refusef("sandbox: %w", errHelperKilled)
	}
	return refusef("sandbox: helper: %w", err)
}

// collect reads the artefacts out of the dead sandbox and lets the helper go.
func (u *run) collect(files []*os.File, res *Result) error {
	defer closeFiles(files...)
	if len(files) != 2 {
		return refusef("sandbox: %d result folders instead of 2", len(files))
	}
	var err error
	res.Artifacts, err = collectArtifacts(files[0], files[1], u.t.Artifacts, u.t.ArtifactsDir, u.limits.Disk)
	if serr := u.ctl.send(message{Op: opDone}); serr != nil {
		_ = u.cmd.Process.Kill()
	}
	select {
	case <-u.exited:
		u.orderly = true
	case <-time.After(killGrace):
		_ = u.cmd.Process.Kill()
		<-u.exited
	}
	if err != nil {
		res.Detail = err.Error()
		return &Error{ExitWarder, err}
	}
	return nil
}

// finish destroys what is left, takes the credentials back and writes run.end.
// It runs once, whatever happened before.
func (u *run) finish(ctx context.Context, res *Result, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	u.applyError(res, cause)
	u.reap()
	if u.net != nil {
		u.net.close()
	}
	var errs []error
	if u.pr != nil {
		errs = append(errs, u.pr.Close(ctx))
		res.Denied = u.pr.Denials()
	}
	if u.out != nil {
		res.Stdout, res.Truncated = u.out.bytes()
		var cut bool
		res.Stderr, cut = u.errs.bytes()
		res.Truncated = res.Truncated || cut
		errs = append(errs, u.out.failure("stdout"), u.errs.failure("stderr"))
	}
	res.NotEnforced, res.Network = u.notEnforced, u.network
	if u.sess != nil {
		res.Credentials = credentialRecords(u.sess.End(ctx))
	}
	u.trace("revoked")
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), recordTimeout) // whatever Vault has left of the other
	defer cancel()
	errs = append(errs, u.recordEnd(ctx, res))
	if u.host != nil {
		errs = append(errs, u.host.removeCgroups(u.t.Run.ID, killGrace))
	}
	if u.state != nil {
		errs = append(errs, u.state.end())
	}
	errs = append(errs, u.image.Close())
	u.trace("ended")
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	if res.ExitCode == 0 { // a failure of ours must not look like success
		res.ExitCode, res.Cause, res.Detail = ExitWarder, CauseError, err.Error()
	}
	return &Error{ExitWarder, err}
}

func (u *run) applyError(res *Result, err error) {
	if err == nil {
		return
	}
	var e *Error
	if errors.As(err, &e) {
		res.ExitCode = e.Code
	}
	switch res.ExitCode {
	case ExitTimeout:
		res.Cause = CauseTimeout
	case ExitOOM:
		res.Cause = CauseOOM
	default:
		res.Cause = CauseError
	}
	res.Detail = err.Error()
	if sig := u.early.Load(); sig != 0 && res.ExitCode == ExitWarder {
		res.Cause, res.ExitCode, res.Detail = CauseSignal, 128+int(sig), "ended by a signal before the task was started"
	}
}

// reap makes sure that no process of the run is left and its output is drained.
func (u *run) reap() {
	closeFiles(u.feed, u.inputs)
	if u.cmd == nil {
		return
	}
	_ = u.cmd.Process.Kill()
	<-u.exited
	_ = u.ctl.f.Close()
	if !u.orderly { // else the helper has seen sentry and gofer end
		killTree(u.t.Run.ID, u.ident.uidsInUse())
	}
	if u.t.Terminal != nil && !u.attached {
		close(u.out.done) // it never had a terminal to read from
	}
	for _, s := range []*stream{u.out, u.errs} {
		select {
		case <-s.done:
		case <-time.After(drainTimeout):
		}
	}
	closeFiles(u.stdin, u.console)
}

func (s identitySet) uidsInUse() []uint32 {
	if s.slots > 0 {
		return s.hostIDs(s.slot)
	}
	return []uint32{uint32(os.Getuid())}
}

// openLog waits for the log, once.
func (u *run) openLog(ctx context.Context) error {
	if u.audit == nil {
		u.audit, u.readyErr = u.Ready(ctx)
	}
	return u.readyErr
}

func (u *run) recordStart(ctx context.Context) error {
	u.recorded = true
	ident := u.t.Run
	limits := u.limits.record(u.notEnforced)
	if u.Proxy != nil && u.Proxy.Bandwidth() > 0 {
		limits["bandwidth"] = u.Proxy.Bandwidth()
	}
	err := u.audit.Append(ctx, &audit.Record{
		Event: audit.EventRunStart, Run: &ident,
		RunStart: &audit.RunStart{
			Argv: u.t.Argv, EnvNames: envNames(u.environment()), Inputs: u.copied,
			Limits: limits, Image: u.imageRef(), NoDigest: ident.ImageDigest == "",
		},
	}).Wait(ctx)
	return errors.Join(err, u.recordNetwork(ctx))
}

func (u *run) recordEnd(ctx context.Context, res *Result) error {
	ident := u.t.Run
	if u.readyErr != nil {
		return nil // said already; there is no log to write to
	}
	if err := u.openLog(ctx); err != nil {
		if strings.Contains(res.Detail, err.Error()) {
			return nil // it is what ended the run
		}
		return err
	}
	if !u.recorded {
		if err := u.recordStart(ctx); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	if u.net != nil {
		drops := u.net.drops.snapshot()
		if n := u.net.names.refused(); n > 0 {
			drops["names"] = n
		}
		if len(drops) > 0 {
			u.audit.Append(ctx, &audit.Record{Event: audit.EventDrop, Run: &ident, Drop: &audit.Drop{Dropped: drops}})
		}
	}
	code := res.ExitCode
	end := &audit.RunEnd{Cause: res.Cause, ExitCode: &code, Artifacts: res.Artifacts, Credentials: res.Credentials}
	if u.out != nil {
		end.Stdout, end.Stderr = u.out.record(), u.errs.record()
	}
	err := u.audit.Append(ctx, &audit.Record{Event: audit.EventRunEnd, Run: &ident, RunEnd: end, Detail: res.Detail}).Wait(ctx)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

func credentialRecords(outs []broker.Outcome) []audit.Credential {
	var recs []audit.Credential
	for _, o := range outs {
		c := audit.Credential{Name: o.Name, Kind: o.Kind, LeaseID: o.LeaseID, Accessor: o.Accessor, Status: o.Status, Detail: o.Detail}
		if !o.Expires.IsZero() {
			c.Expires = o.Expires.UTC().Format(time.RFC3339)
		}
		recs = append(recs, c)
	}
	return recs
}
