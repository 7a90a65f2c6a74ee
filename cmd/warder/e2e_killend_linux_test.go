package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"warder/audit"
	"warder/internal/vaulttest"
	"warder/runner"
)

// mustHaveRevoked: no child token that the log names is alive.
func (l *lab) mustHaveRevoked(v *vaulttest.Server) {
	l.t.Helper()
	for _, a := range l.accessors() {
		if alive, _ := v.Alive(l.t, a); alive {
			l.t.Error("a child token is still alive")
		}
	}
}

// TestE2EKillNineOfTheHelperThatHandsOver_F121: the task and its sandbox are gone, and
// the helper only holds what they left while warder reads it: its death changes nothing
// of the result, and nothing is left.
func TestE2EKillNineOfTheHelperThatHandsOver_F121(t *testing.T) { // I7, I8, F121
	before := mounts(t)
	l, v := vaultLab(t)
	const size = 96 << 20
	got := filepath.Join(l.dir, "artifacts/big")
	// The collected file gets its name last: without it, warder still reads.
	victim := func(p runner.Phase) int {
		if _, err := os.Stat(got); os.IsNotExist(err) && !strings.HasPrefix(statusField(t, strconv.Itoa(p.HelperPID), "State"), "Z") {
			return p.HelperPID
		}
		_ = os.Remove(got) // too late: another try
		return 0
	}
	script := askAPI + `; head -c ` + strconv.Itoa(size) + ` /dev/zero >/out/big; exit 7`
	cmd, p, errs := hit(t, l, "exited", script, victim, "--artifact", "/out/big", "--artifacts-dir", "artifacts", "--memory", "1Gi")
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit %d: %s", code, errs.String())
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
	if len(l.accessors()) == 0 {
		t.Error("control: the log names no child token")
	}
	l.mustHaveRevoked(v)
	want := sha256.Sum256(make([]byte, size))
	ends := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunEnd && r.Run.ID == p.Run })
	if len(ends) != 1 || ends[0].Cause != runner.CauseExit || len(ends[0].Artifacts) != 1 || ends[0].Artifacts[0].SHA256 != hex.EncodeToString(want[:]) {
		t.Errorf("the log says of the end: %+v", ends)
	}
	if fi, err := os.Stat(got); err != nil || fi.Size() != size {
		t.Errorf("the artefact: %v %v", fi, err)
	}
	l.mustTellTheEnd(p.Run, "exited")
	l.mustBeComplete()
}
