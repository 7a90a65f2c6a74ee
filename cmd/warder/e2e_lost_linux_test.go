package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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

// TestE2EALostSandboxIsNotTheTasksSignal: a sentry or gofer that the host kills is
// an error of the run's, told from a task that a signal ended; the results that
// were there are collected, and nothing is left.
func TestE2EALostSandboxIsNotTheTasksSignal_I8_F121_F127(t *testing.T) {
	before := mounts(t)
	for what, victim := range map[string]func(runner.Phase) int{
		"sentry": func(p runner.Phase) int { return p.SandboxPID },
		"gofer":  func(p runner.Phase) int { return goferOf(p.Run) },
	} {
		t.Run(what, func(t *testing.T) {
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
			pid := victim(p)
			if pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
				t.Fatalf("no %s to kill", what)
			}
			_ = cmd.Wait()
			var r jsonRun
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatalf("%v: %s%s", err, out.String(), errs.String())
			}
			if r.ExitCode != 125 || r.Cause != "error" || cmd.ProcessState.ExitCode() != 125 || r.Stdout != "said\n" {
				t.Errorf("exit %d, cause %q, output %q", r.ExitCode, r.Cause, r.Stdout)
			}
			if !strings.Contains(r.Detail, what) || !strings.Contains(r.Detail, "hint:") || strings.Count(errs.String(), "\n") != 1 {
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
