package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"warder/audit"
	"warder/runner"
)

// goferOf is the run's file server on the host, 0 when there is none.
func goferOf(id string) int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		b, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		if bytes.HasPrefix(b, []byte("runsc-gofer\x00")) && bytes.Contains(b, []byte(id)) {
			pid, _ := strconv.Atoi(filepath.Base(d))
			return pid
		}
	}
	return 0
}

// kill ends a process.
func kill(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

// killLate ends a process whose parent hears of it only after what it had open has
// been closed for a while, as on a host that has much to do: ptrace(2) keeps the
// end of a process from its parent until the tracer has seen it.
func killLate(pid int) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // a tracer is a thread; this one ends with its goroutine
		if err := unix.PtraceSeize(pid); err != nil {
			result <- err
			return
		}
		result <- kill(pid)
		time.Sleep(500 * time.Millisecond) // how long the parent is kept from it
		for {
			if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != unix.EINTR {
				return
			}
		}
	}()
	return <-result
}

// TestE2EALostSandboxIsNotTheTasksSignal: a sentry or gofer that the host kills is
// an error of the run's, told from a task that a signal ended; the results that
// were there are collected, and nothing is left.
func TestE2EALostSandboxIsNotTheTasksSignal_I8_F121_F127(t *testing.T) {
	before := mounts(t)
	sentry := func(p runner.Phase) int { return p.SandboxPID }
	gofer := func(p runner.Phase) int { return goferOf(p.Run) }
	for name, c := range map[string]struct {
		what   string
		victim func(runner.Phase) int
		kill   func(int) error
	}{
		"sentry":     {"sentry", sentry, kill},
		"gofer":      {"gofer", gofer, kill},
		"gofer late": {"gofer", gofer, killLate},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			trace := filepath.Join(l.dir, "trace")
			cmd := l.command(t.Context(), "run", "-o", "json", "--trace", trace, "--artifact", "/out", "--", "sh", "-c", "echo kept >/out/kept; echo said; curl -sS -o /dev/null https://"+allowedHost+"/v1/ready; exec sleep 600")
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			p := followTrace(t, trace, "started")
			for deadline := time.Now().Add(time.Minute); len(l.up.seen()) == 0 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond) // until the task says that it is ready
			}
			pid := c.victim(p)
			if pid == 0 {
				t.Fatalf("no %s to kill", c.what)
			}
			if err := c.kill(pid); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			var r jsonRun
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatalf("%v: %s%s", err, out.String(), errs.String())
			}
			if r.ExitCode != 125 || r.Cause != "error" || cmd.ProcessState.ExitCode() != 125 || r.Stdout != "said\n" {
				t.Errorf("exit %d, cause %q, output %q", r.ExitCode, r.Cause, r.Stdout)
			}
			if !strings.Contains(r.Detail, c.what) || !strings.Contains(r.Detail, "hint:") || strings.Count(errs.String(), "\n") != 1 {
				t.Errorf("detail %q, said %q", r.Detail, errs.String())
			}
			if b, err := os.ReadFile(filepath.Join(l.dir, "artifacts/kept")); err != nil || string(b) != "kept\n" {
				t.Errorf("the artefact: %q, %v", b, err)
			}
			waitGone(t, p.Run)
			if now := mounts(t); now != before {
				t.Error("mounts changed")
			}
			if left := append(cgroupsOf(p.Run), globAny(filepath.Join(l.dir, "state/runs/*.jsonl"))...); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			ends := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunEnd })
			if len(ends) != 1 || ends[0].RunEnd.Cause != "error" || *ends[0].RunEnd.ExitCode != 125 || len(ends[0].RunEnd.Artifacts) != 1 {
				t.Errorf("run.end: %+v", ends)
			}
			l.mustBeComplete()
		})
	}
	// The task's own SIGKILL, and that of the process that is its first, are its own.
	l := newLab(t)
	for range 5 { // the answer races with the sandbox's end
		r, o := l.json("echo said; kill -9 $$")
		if r.ExitCode != 137 || r.Cause != "signal" || r.Detail != "" || o.code != 137 || r.Stdout != "said\n" {
			t.Errorf("exit %d, cause %q, %q", r.ExitCode, r.Cause, r.Detail)
		}
		r, _ = l.json("exit 2") // what a sentry that gives up ends with
		if r.ExitCode != 2 || r.Cause != "exit" {
			t.Errorf("exit %d, cause %q, %q", r.ExitCode, r.Cause, r.Detail)
		}
	}
}

func globAny(pattern string) []string {
	names, _ := filepath.Glob(pattern)
	return names
}
