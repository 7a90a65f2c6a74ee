package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestE2ENoCoreFile: a crash of the process that holds credentials leaves no core
// file, nor does one of its helper.
func TestE2ENoCoreFile(t *testing.T) { // I2
	l := newLab(t)
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	inFolder := !strings.HasPrefix(string(pattern), "|") && !strings.HasPrefix(string(pattern), "/")
	// Another program in the same place does leave one, where the host has them in
	// the working folder.
	unlimited := unix.Rlimit{Cur: 64 << 20, Max: 64 << 20}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &was); err != nil {
		t.Fatal(err)
	}
	mine := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: min(unlimited.Cur, was.Max), Max: was.Max}) == nil && was.Max > 1<<20
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_CORE, &was) }()
	before, _ := filepath.Glob(filepath.Join(l.dir, "*"))
	cores := func() []string { // by whatever name the host gives them
		all, _ := filepath.Glob(filepath.Join(l.dir, "*"))
		return slices.DeleteFunc(all, func(p string) bool {
			st, err := os.Stat(p)
			return err != nil || st.IsDir() || slices.Contains(before, p) || strings.HasPrefix(filepath.Base(p), "trace")
		})
	}
	crash := exec.CommandContext(t.Context(), "python3", "-c", "import os; os.abort()")
	crash.Dir = l.dir
	_ = crash.Run()
	if control := cores(); inFolder && mine && len(control) != 1 {
		t.Errorf("control: a program that aborts leaves %v", control)
	}
	for _, p := range cores() {
		_ = os.Remove(p)
	}

	trace := filepath.Join(l.dir, "trace")
	cmd := l.command(t.Context(), "run", "--trace", trace, "--timeout", "60s", "--", "/bin/sh", "-c", "curl -sS https://api.allowed.test/v1/x; exec sleep 600")
	cmd.Env = append(cmd.Env, "GOTRACEBACK=crash")
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := followTrace(t, trace, "started")
	l.until(func() bool { return len(l.up.seen()) > 0 })
	for _, pid := range []int{p.PID, followTrace(t, trace, "spawned").HelperPID} {
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, core, _ := strings.Cut(string(limits), "Max core file size")
		core, _, _ = strings.Cut(core, "\n")
		if f := strings.Fields(core); len(f) < 2 || f[0] != "1" && f[0] != "0" || f[1] != "1" && f[1] != "0" {
			t.Errorf("the limit of process %d is %q", pid, core)
		}
		if filter, err := os.ReadFile(fmt.Sprintf("/proc/%d/coredump_filter", pid)); err == nil && strings.Trim(string(filter), "0\n") != "" {
			t.Errorf("the filter of process %d is %q", pid, filter)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	waitGone(t, p.Run)
	if !strings.Contains(errs.String(), "SIGABRT") {
		t.Errorf("control: it did not crash: %s", errs.String())
	}
	if left := cores(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if strings.Contains(errs.String(), canary) {
		t.Error("the crash prints the credential")
	}
	l.mustHold(l.sh("true"), 0, "") // and takes away what is left
	l.noCanaryOnDisk()
}
