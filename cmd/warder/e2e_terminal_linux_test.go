package main

import (
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"warder/audit"
)

// screen is what a person would see: all output of a process on a terminal.
type screen struct {
	mu  sync.Mutex
	all strings.Builder
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Write(b)
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

// TestE2ETerminal: a terminal of its own for the task, with size, resize and keys
// that become signals.
func TestE2ETerminal(t *testing.T) {
	l := newLab(t)
	cmd := l.command(t.Context(), "run", "-i", "-t", "--timeout", "60s", "--", "/bin/sh", "-c",
		`test -t 0 -a -t 1 -a -t 2 && echo "a terminal"; stty size; echo $TERM; trap 'stty size; echo resized' WINCH; trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.1; done`)
	cmd.Env = append(cmd.Env, "TERM=vt100")
	master, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 33, Cols: 77})
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	var s screen
	done := make(chan struct{})
	go func() { defer close(done); _, _ = io.Copy(&s, master) }()
	see := func(what string) {
		t.Helper()
		deadline := time.Now().Add(30 * time.Second)
		for !strings.Contains(s.text(), what) {
			if time.Now().After(deadline) {
				t.Fatalf("%q was never seen:\n%s", what, s.text())
			}
			time.Sleep(5 * time.Millisecond) // waiting for another process's output
		}
	}
	see("ready")
	for _, what := range []string{"a terminal", "33 77", "vt100"} {
		see(what)
	}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 44, Cols: 88}); err != nil {
		t.Fatal(err)
	}
	see("44 88")
	if _, err := master.Write([]byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	see("interrupted")
	_ = cmd.Wait()
	<-done
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit %d:\n%s", code, s.text())
	}
	ends := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunEnd })
	if len(ends) != 1 || ends[0].Stdout.Bytes == 0 || ends[0].Stderr.Bytes != 0 {
		t.Errorf("records: %+v", ends)
	}
	l.mustBeComplete()
}

// TestE2ETerminalWithoutOne: -t works when the caller has no terminal, and a
// command that is not there ends as without -t.
func TestE2ETerminalWithoutOne(t *testing.T) {
	l := newLab(t)
	o := l.warder("run", "-t", "--", "/bin/sh", "-c", "test -t 1 && echo yes")
	if o.code != 0 || o.stdout != "yes\r\n" {
		t.Errorf("exit %d: %q %s", o.code, o.stdout, o.stderr)
	}
	l.mustHold(l.warder("run", "-t", "--", "/no/such"), 127, "/no/such")
	l.mustHold(l.warder("run", "-t", "-o", "json", "--", "true"), 125, "exclude each other")
}
