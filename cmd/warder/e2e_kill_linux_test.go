package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"warder/audit"
	"warder/runner"
)

// lastPhase is the newest phase of a trace.
func lastPhase(t *testing.T, path string) runner.Phase {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var last runner.Phase
	for _, line := range bytes.Split(bytes.TrimSpace(b), []byte("\n")) {
		if err := json.Unmarshal(line, &last); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// processesOf are the host processes that carry the run's id.
func processesOf(id string) []string {
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		if bytes.Contains(b, []byte(id)) && !bytes.HasPrefix(b, []byte("warder\x00")) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}

func mounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for _, line := range strings.Split(string(b), "\n") {
		if !strings.Contains(line, " - nsfs ") { // namespaces that others name (ip-netns(8)); a run has none
			ours = append(ours, line)
		}
	}
	return strings.Join(ours, "\n")
}

// cgroupsOf are the cgroup folders of the run, wherever the host has them.
func cgroupsOf(id string) []string {
	var out []string
	for _, depth := range []string{"*", "*/*", "*/*/*", "*/*/*/*"} {
		m, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", depth, "warder-"+id))
		out = append(out, m...)
	}
	return out
}

// waitGone waits up to 5 s for the run's processes to end.
func waitGone(t *testing.T, id string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for len(processesOf(id)) > 0 {
		if time.Now().After(deadline) {
			t.Errorf("after 5 s: %v", processesOf(id))
			return
		}
		time.Sleep(5 * time.Millisecond) // waiting for the kernel
	}
}

// killable is the task of the kill tests: it needs a lease, then waits.
const killable = askAPI + `; echo ready; exec sleep 600`

// hit starts runs and kills the process that victim names once the trace shows
// want, until a kill found the run exactly in that phase.
func hit(t *testing.T, l *lab, want, script string, victim func(runner.Phase) int, flags ...string) (*exec.Cmd, runner.Phase, *bytes.Buffer) {
	t.Helper()
	for try := range 200 {
		trace := filepath.Join(l.dir, fmt.Sprintf("trace-%s-%d", want, try))
		args := append([]string{"run", "--trace", trace, "--timeout", "60s"}, flags...)
		cmd := l.command(t.Context(), append(args, "--", "/bin/sh", "-c", script)...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := followTrace(t, trace, want)
		if p.HelperPID == 0 {
			p.HelperPID = followTrace(t, trace, "spawned").HelperPID
		}
		pid := victim(p)
		killed := pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil // it may just be gone: then another try
		_ = cmd.Wait()
		if pid != p.PID {
			if killed {
				return cmd, p, &errs
			}
			continue
		}
		// A run that has just ended has no state file any more: it was not hit before its end.
		// After it, only the signal tells.
		_, gone := os.Stat(filepath.Join(l.dir, "state/runs", p.Run+".jsonl"))
		died := cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled()
		if last := lastPhase(t, trace); died && last.Name == want && (gone == nil) == (want != "ended") {
			return cmd, p, &errs
		}
	}
	t.Fatalf("the phase %q was never hit", want)
	return nil, runner.Phase{}, nil
}

// TestE2EKillNineOfWarder: whatever the phase, nothing is left after one more
// start, and the child token is revoked.
func TestE2EKillNineOfWarder(t *testing.T) { // I7, I8, F121, F142, F166
	before := mounts(t)
	for _, c := range []struct{ phase, script string }{
		{"spawned", killable}, {"created", killable}, {"started", killable}, {"lease.issue", killable}, {"exited", askAPI}, {"revoked", askAPI}, {"ended", askAPI},
	} {
		t.Run(c.phase, func(t *testing.T) {
			l, v := vaultLab(t)
			_, p, _ := hit(t, l, c.phase, c.script, func(p runner.Phase) int { return p.PID })
			waitGone(t, p.Run)
			if now := mounts(t); now != before {
				t.Errorf("mounts changed:\n%s", now)
			}
			held, err := filepath.Glob(filepath.Join(l.dir, "state/runs", p.Run+".jsonl"))
			if err != nil || (len(held) == 1) != (c.phase != "ended") {
				t.Errorf("control: state files of the dead run: %v %v", held, err)
			}
			if c.phase == "ended" { // all was taken back before: nothing waits for the next start
				if left := cgroupsOf(p.Run); len(left) != 0 {
					t.Errorf("after its end: %v", left)
				}
				l.mustHaveRevoked(v)
			}
			l.mustHold(l.sh("true"), 0, "")
			if left, _ := filepath.Glob(filepath.Join(l.dir, "state/runs/*.jsonl")); len(left) != 0 {
				t.Errorf("after one more start: %v", left)
			}
			if left := cgroupsOf(p.Run); len(left) != 0 {
				t.Errorf("after one more start: %v", left)
			}
			acc := l.accessors()
			if len(acc) == 0 && c.phase != "spawned" && c.phase != "created" && c.phase != "started" {
				t.Error("the log names no child token")
			}
			l.mustHaveRevoked(v)
			l.mustTellTheEnd(p.Run, c.phase)
			l.mustBeComplete()
		})
	}
}

// mustTellTheEnd: a run that began has an end in the log, and no request is open.
func (l *lab) mustTellTheEnd(id, phase string) {
	l.t.Helper()
	var start, end, reserved, closed int
	for _, r := range l.records(func(r *audit.Record) bool { return r.Run != nil && r.Run.ID == id }) {
		switch {
		case r.Event == audit.EventRunStart:
			start++
		case r.Event == audit.EventRunEnd:
			end++
		case r.Stage == audit.StageReserved:
			reserved++
		case r.Event == audit.EventRequest && reserved > 0:
			closed++
		}
	}
	if start != end || reserved != closed {
		l.t.Errorf("%s: %d starts, %d ends, %d reserved, %d closed", phase, start, end, reserved, closed)
	}
}

// TestE2EKillNineOfTheRest_F121: warder lives, so nothing at all is left when it ends,
// and it says what was killed.
func TestE2EKillNineOfTheRest_F121(t *testing.T) { // I7, I8, F121
	before := mounts(t)
	named := func(name string) func(runner.Phase) int {
		return func(p runner.Phase) int { return roles(p.Run)[name] }
	}
	helper := func(p runner.Phase) int { return p.HelperPID }
	for _, c := range []struct {
		phase, name string
		victim      func(runner.Phase) int
	}{
		{"spawned", "helper", helper},
		{"created", "helper", helper},
		{"started", "helper", helper},
		{"lease.issue", "helper", helper},
		{"created", "sentry", named("runsc-sandbox")},
		{"started", "sentry", named("runsc-sandbox")},
		{"lease.issue", "sentry", named("runsc-sandbox")},
		{"created", "gofer", named("runsc-gofer")},
		{"started", "gofer", named("runsc-gofer")},
		{"lease.issue", "gofer", named("runsc-gofer")},
	} {
		t.Run(c.name+" when "+c.phase, func(t *testing.T) {
			l, v := vaultLab(t)
			cmd, p, errs := hit(t, l, c.phase, killable, c.victim)
			if cmd.ProcessState.ExitCode() != runner.ExitWarder || !strings.Contains(errs.String(), "warder: run "+p.Run+": sandbox:") {
				t.Errorf("exit %d: %s", cmd.ProcessState.ExitCode(), errs.String())
			}
			if c.phase != "created" && !strings.Contains(errs.String(), c.name) {
				t.Errorf("%s is not named: %s", c.name, errs.String())
			}
			waitGone(t, p.Run)
			if now := mounts(t); now != before {
				t.Error("mounts changed")
			}
			if left, _ := filepath.Glob(filepath.Join(l.dir, "state/runs/*.jsonl")); len(left) != 0 {
				t.Errorf("state files: %v", left)
			}
			if left := cgroupsOf(p.Run); len(left) != 0 {
				t.Errorf("cgroups: %v", left)
			}
			l.mustHaveRevoked(v)
			ends := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunEnd && r.Run.ID == p.Run })
			if len(ends) != 1 || ends[0].Cause != runner.CauseError || !strings.Contains(ends[0].Detail, "sandbox:") {
				t.Errorf("the log says of the end: %+v", ends)
			}
			l.mustTellTheEnd(p.Run, c.phase)
			l.mustBeComplete()
		})
	}
}

// TestE2ETwentyRunsWhileFiveAreKilled: the sweeps of those that start never
// touch a run that lives.
func TestE2ETwentyRunsWhileFiveAreKilled(t *testing.T) { // I9
	l := newLab(t)
	var wg sync.WaitGroup
	victims := map[int]string{1: "spawned", 5: "created", 9: "started", 13: "started", 17: "created"}
	ids := make([]string, 20)
	for i := range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			trace := filepath.Join(l.dir, fmt.Sprintf("trace-%d", i))
			cmd := l.command(t.Context(), "run", "--trace", trace, "--timeout", "60s", "--", "/bin/sh", "-c", "sleep 2; cat /workspace/* 2>/dev/null; echo mine-$((i+1))")
			cmd.Args = append(cmd.Args[:2], append([]string{"--label", fmt.Sprintf("n=%d", i)}, cmd.Args[2:]...)...)
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond) // spread the starts
			if err := cmd.Start(); err != nil {
				t.Error(err)
				return
			}
			phase, killed := victims[i]
			if killed {
				p := followTrace(t, trace, phase)
				ids[i] = p.Run
				_ = syscall.Kill(p.PID, syscall.SIGKILL)
			}
			err := cmd.Wait()
			if !killed && (err != nil || out.String() != "mine-1\n") {
				t.Errorf("run %d: %v, %q, %s", i, err, out.String(), errs.String())
			}
		}()
	}
	wg.Wait()
	for i := range victims {
		waitGone(t, ids[i])
	}
	l.mustHold(l.sh("true"), 0, "")
	if left, _ := filepath.Glob(filepath.Join(l.dir, "state/runs/*.jsonl")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	l.mustBeComplete()
}
