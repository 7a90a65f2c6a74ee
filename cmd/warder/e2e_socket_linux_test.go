package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/audit"
	"warder/runner"
)

// behindSocket is a lab whose runs have the fallback in place of a network card.
func behindSocket(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	l.write("warder.yaml", l.read("warder.yaml")+"sandbox: {network: socket}\n")
	return l
}

// TestE2EBehindTheSocket_F131: requests are judged, given their credential and
// recorded as ever, and the task's end is its own.
func TestE2EBehindTheSocket_F131(t *testing.T) {
	l := behindSocket(t)
	r, o := l.json(`curl -sS https://api.allowed.test/v1/x; curl -sS -o /dev/null -w '%{http_code}\n' https://evil.test/; python3 -c '
import urllib.request as u
print(u.urlopen("https://api.allowed.test/v1/y").read().decode())'; exit 9`)
	if r.ExitCode != 9 || r.Cause != runner.CauseExit || !strings.Contains(r.Stdout, "answer to GET /v1/x") || !strings.Contains(r.Stdout, "answer to GET /v1/y") || !strings.Contains(r.Stdout, "403\n") {
		t.Fatalf("%+v\n%s", r, o.stderr)
	}
	if strings.Contains(o.stdout+o.stderr, canary) || len(l.up.seen()) != 2 || l.up.seen()[0].authorization != "Bearer "+canary {
		t.Errorf("the upstream saw %+v", l.up.seen())
	}
	var allowed, denied, said int
	for _, r := range l.records(nil) {
		switch {
		case r.Event == audit.EventRequest && r.Stage == audit.StageCompleted && r.Verdict == "allow":
			allowed++
		case r.Event == audit.EventRequest && r.Reason == "no-rule":
			denied++
		case r.Event == audit.EventOverride && r.Override.Setting == "sandbox.network":
			said++
		}
	}
	if allowed != 2 || denied != 1 || said != 1 || !strings.Contains(o.stdout, `"network":"socket"`) {
		t.Errorf("the log has %d allowed, %d denied and says it %d times; the result: %s", allowed, denied, said, o.stdout)
	}
	for script, want := range map[string]struct {
		code  int
		cause string
	}{
		"kill -9 $$": {137, runner.CauseSignal}, "kill -15 $$": {143, runner.CauseSignal}, "exec /nowhere": {127, runner.CauseExit}, "exit 255": {255, runner.CauseExit},
	} {
		if r, _ := l.json(script); r.ExitCode != want.code || r.Cause != want.cause {
			t.Errorf("%s: %d, %s", script, r.ExitCode, r.Cause)
		}
	}
	l.mustHold(l.warder("run", "--", "no-such-command"), 127, `"no-such-command" not found`)
	l.mustHold(l.warder("run", "--", "/etc/passwd"), 126, "cannot be executed")
	l.mustHold(l.warder("doctor"), 0, "a Unix socket, as configured")
	l.mustBeComplete()
}

// TestE2EBehindTheSocketNothingElse_I1_F130_F131: there is no other way out, and no
// other socket of the host, for any user.
func TestE2EBehindTheSocketNothingElse_I1_F130_F131(t *testing.T) {
	l := behindSocket(t)
	l.write("escape.py", escape)
	s := startListeners(t)
	abstract, err := net.Listen("unix", fmt.Sprintf("@warder-test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	go func() {
		for {
			c, err := abstract.Accept()
			if err != nil {
				return
			}
			s.note("unix")
			c.Close()
		}
	}()
	l.write("sockets.py", `
import os, socket, stat, sys
for name in ["\0" + sys.argv[1][1:]] + sys.argv[2:]:
  s = socket.socket(socket.AF_UNIX)
  try: s.connect(name); print("connected", name.strip("\0"))
  except OSError: pass
for root, _, files in os.walk("/"):
  if root.startswith(("/proc", "/sys", "/usr")): continue
  for f in files:
    if stat.S_ISSOCK(os.lstat(os.path.join(root, f)).st_mode): print("socket", os.path.join(root, f))
`)
	for _, user := range labUsers() {
		o := l.warder("run", "--user", user, "--timeout", "2m", "--input", "escape.py", "--", "python3", "/workspace/escape.py", strings.Join(s.addrs, ","),
			fmt.Sprint(s.udp["4"]), fmt.Sprint(s.udp["6"]), fmt.Sprint(s.tcp["4"]), fmt.Sprint(s.tcp["6"]))
		if o.code != 0 || !strings.Contains(o.stdout, "tried ") || strings.Contains(o.stdout, "bound to a host address") || strings.Contains(o.stdout, "tcp connected") {
			t.Fatalf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
		}
		o = l.warder("run", "--user", user, "--input", "sockets.py", "--", "python3", "/workspace/sockets.py", abstract.Addr().String(), "/run/sock", "/run/console.sock", "/.warder/sock")
		if o.code != 0 || o.stdout != "connected /.warder/sock\nsocket /.warder/sock\n" {
			t.Errorf("sockets inside: exit %d\n%s%s", o.code, o.stdout, o.stderr)
		}
	}
	if got := s.counts(); len(got) != 0 {
		t.Errorf("arrived at the host: %v", got)
	}
	c, err := net.Dial("unix", abstract.Addr().String())
	if err != nil {
		t.Fatal("control: ", err)
	}
	c.Close()
	controlListeners(t, s)
	// A folder could show sockets of the host.
	folder := rootFolder(t)
	l.mustHold(l.warder("run", "--image", "dir:"+folder, "--", "/bin/sh", "-c", "echo ran"), 125, "may hold sockets of the host")
	l.mustBeComplete()
}

// TestE2ESocketsOfTheHostAreOutOfReach_F130: a socket that a root file system shows
// cannot be connected to, and the task has no descriptor but its three.
func TestE2ESocketsOfTheHostAreOutOfReach_F130(t *testing.T) { // I1
	l := newLab(t)
	folder := rootFolder(t)
	if err := os.MkdirAll(filepath.Join(folder, "srv"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "srv/s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	s := &listeners{got: map[string]int{}}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.note("unix")
			c.Close()
		}
	}()
	l.write("sockets.py", `
import os, socket, stat
print("is a socket:", stat.S_ISSOCK(os.stat("/srv/s").st_mode))
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
  s = socket.socket(socket.AF_UNIX, kind)
  try: s.connect("/srv/s"); print("connected")
  except OSError: pass
  s.close()
print([f for f in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + f)])
`)
	o := l.warder("run", "--image", "dir:"+folder, "--input", "sockets.py", "--", "python3", "/workspace/sockets.py")
	if o.code != 0 || o.stdout != "is a socket: True\n['0', '1', '2']\n" {
		t.Errorf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
	}
	if got := s.counts(); len(got) != 0 {
		t.Errorf("arrived: %v", got)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal("control: ", err)
	}
	c.Close()
}
