package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// roles are the host processes of a run, by what they are started as.
func roles(id string) map[string]int {
	out := map[string]int{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		if pid, err := strconv.Atoi(filepath.Base(d)); err == nil && bytes.Contains(b, []byte(id)) {
			name, _, _ := strings.Cut(string(b), "\x00")
			out[name] = pid
		}
	}
	return out
}

// statusField is one line of /proc/PID/status (proc(5)).
func statusField(t *testing.T, pid, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(rest)
		}
	}
	t.Fatalf("no %s in the status of %s", name, pid)
	return ""
}

// TestE2ESentryAndGoferAreConfined: what faces the task has a filter of system
// calls, no network, and no id of the host that means anything.
func TestE2ESentryAndGoferAreConfined(t *testing.T) { // I1, I9
	l := newLab(t)
	wait, p := l.startWaiting("confined")
	defer func() { _ = syscall.Kill(p.PID, syscall.SIGKILL); wait(); waitGone(t, p.Run) }()
	got := roles(p.Run)
	filters := func(pid string) int {
		n, err := strconv.Atoi(statusField(t, pid, "Seccomp_filters"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, name := range []string{"runsc-sandbox", "runsc-gofer"} {
		if got[name] == 0 {
			t.Fatalf("no %s among %v", name, got)
		}
		pid := strconv.Itoa(got[name])
		if filters(pid) <= filters("self") || statusField(t, pid, "Seccomp") != "2" {
			t.Errorf("%s has no filter of system calls", name)
		}
		ours, err1 := os.Readlink("/proc/self/ns/net")
		theirs, err2 := os.Readlink(filepath.Join("/proc", pid, "ns/net"))
		if err1 != nil || err2 != nil || ours == theirs {
			t.Errorf("%s is in the host's network: %s %v %v", name, theirs, err1, err2)
		}
		uid := strings.Fields(statusField(t, pid, "Uid"))[1]
		if os.Geteuid() == 0 && uid == "0" || os.Geteuid() != 0 && uid != fmt.Sprint(os.Geteuid()) {
			t.Errorf("%s runs as %s", name, uid)
		}
	}
	if pid := strconv.Itoa(got["warder-helper"]); filters(pid) != filters("self") {
		t.Errorf("control: the helper, which has no filter of ours, has %d", filters(pid))
	}
}

// TestE2EOneTrustLevelInside_F119: nothing inside becomes another user, so no check
// between users of one sandbox is relied on.
func TestE2EOneTrustLevelInside_F119(t *testing.T) {
	l := newLab(t)
	l.write("become.py", `
import os
def attempt(what, f):
    try: f(); print("became:", what)
    except OSError: pass
for uid in (0, 1, 1000, 1001, 65534):
    if uid != os.getuid():
        attempt("user %d" % uid, lambda: os.setuid(uid))
        attempt("effective %d" % uid, lambda: os.seteuid(uid))
        attempt("group %d" % uid, lambda: os.setgid(uid))
    attempt("groups", lambda: os.setgroups([uid, 7]))
for line in open("/proc/self/status"):
    if line.startswith(("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")) and int(line.split()[1], 16): print("has", line)
    if line.startswith("NoNewPrivs") and line.split()[1] != "1": print("may gain privileges")
open("/proc/self/environ").read(1)
print("tried")
`)
	for _, user := range labUsers() {
		o := l.warder("run", "--user", user, "--input", "become.py", "--", "python3", "/workspace/become.py")
		if o.stdout != "tried\n" {
			t.Errorf("%s: %s%s", user, o.stdout, o.stderr)
		}
	}
}
