package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"warder/runner"
)

// startWaiting starts a run that waits, and returns it when its task runs.
func (l *lab) startWaiting(name string) (wait func() int, p runner.Phase) {
	l.t.Helper()
	trace := filepath.Join(l.dir, "trace-"+name)
	cmd := l.command(l.t.Context(), "run", "--trace", trace, "--timeout", "60m", "--", "sleep", "3600")
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	p = followTrace(l.t, trace, "started")
	return func() int { _ = cmd.Wait(); return cmd.ProcessState.ExitCode() }, p
}

func (l *lab) ps() map[string]runner.RunInfo {
	l.t.Helper()
	o := l.warder("ps", "-o", "json")
	var list []runner.RunInfo
	if err := json.Unmarshal([]byte(o.stdout), &list); err != nil || o.code != 0 {
		l.t.Fatalf("exit %d: %v\n%s%s", o.code, err, o.stdout, o.stderr)
	}
	out := map[string]runner.RunInfo{}
	for _, r := range list {
		out[r.ID] = r
	}
	return out
}

func TestE2EPsRmGc_F122(t *testing.T) { // I7, I8
	l := newLab(t)
	waitLive, live := l.startWaiting("live")
	waitDead, dead := l.startWaiting("dead")
	_ = syscall.Kill(dead.PID, syscall.SIGKILL)
	waitDead()
	waitGone(t, dead.Run)
	runs := l.ps()
	if !runs[live.Run].Live || runs[dead.Run].Live || len(runs) != 2 || runs[live.Run].Started.IsZero() {
		t.Errorf("ps: %+v", runs)
	}
	l.mustHold(l.warder("gc"), 0, dead.Run)
	if runs := l.ps(); len(runs) != 1 || !runs[live.Run].Live {
		t.Errorf("after gc: %+v", runs)
	}
	for _, bad := range []string{"../x", "r-x", dead.Run} {
		l.mustHold(l.warder("rm", bad), 1, "no such run")
	}
	l.mustHold(l.warder("rm", live.Run), 0, live.Run)
	if code := waitLive(); code != runner.ExitWarder {
		t.Errorf("the owner of a removed run exits with %d", code)
	}
	if runs := l.ps(); len(runs) != 0 || len(processesOf(live.Run)) != 0 {
		t.Errorf("after rm: %+v, %v", runs, processesOf(live.Run))
	}
	l.mustBeComplete()
}

func TestE2EDoctor(t *testing.T) {
	l := newLab(t)
	o := l.warder("doctor", "-o", "json")
	var checks []runner.Check
	if err := json.Unmarshal([]byte(o.stdout), &checks); err != nil || o.code != 0 {
		t.Fatalf("exit %d: %v\n%s%s", o.code, err, o.stdout, o.stderr)
	}
	seen := map[string]string{}
	for _, c := range checks {
		seen[c.Name] = c.Status
		if c.Status != runner.CheckOK && c.Fix == "" {
			t.Errorf("%s: no fix: %+v", c.Name, c)
		}
	}
	for _, want := range []string{"binary", "kernel", "user namespaces", "seccomp", "open files", "disk", "clock", "configuration", "policy", "sandbox", "network"} {
		if seen[want] != runner.CheckOK {
			t.Errorf("%s: %q", want, seen[want])
		}
	}
	l.write("policies/api.rego", "package warder.egress\n\nallow contains\n")
	o = l.warder("doctor")
	if o.code != 2 || !strings.Contains(o.stdout, "api.rego:") || !strings.Contains(o.stdout, "fix: warder policy check") {
		t.Errorf("a broken policy: exit %d\n%s", o.code, o.stdout)
	}
	if err := os.Remove(filepath.Join(l.dir, "policies/api.rego")); err != nil {
		t.Fatal(err)
	}
}
