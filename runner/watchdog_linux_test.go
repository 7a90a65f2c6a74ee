package runner

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watched is a run whose helper is this test: its orders arrive at the other end.
func watched(t *testing.T, memory int64) (*run, *control) {
	t.Helper()
	ours, theirs, err := controlPair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	cmd := exec.Command("sleep", "600") // in the helper's place
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	u := &run{ctl: &control{f: ours}, cmd: cmd, exited: make(chan struct{}), limits: Limits{Memory: memory}}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return u, &control{f: theirs}
}

// TestTheWatchdogEndsARunThatPassesItsMemory_I9_F124: by the memory that the sentry
// holds for the task, and with the cause by which an OOM is told from a 137.
func TestTheWatchdogEndsARunThatPassesItsMemory_I9_F124(t *testing.T) {
	const size = 48 << 20
	fd, err := unix.MemfdCreate("task", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "task")
	defer f.Close()
	before, _ := sentryMemory("/proc", os.Getpid())
	if err := f.Truncate(1 << 40); err != nil { // its length is no memory
		t.Fatal(err)
	}
	if task, _ := sentryMemory("/proc", os.Getpid()); task != before {
		t.Errorf("%d bytes before anything was written", task-before)
	}
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		t.Fatal(err)
	}
	task, own := sentryMemory("/proc", os.Getpid())
	if task < before+size || own <= 0 {
		t.Fatalf("the task has %d bytes, the process %d", task, own)
	}
	u, helper := watched(t, task-1)
	done := make(chan struct{})
	go func() { u.watchMemory(os.Getpid(), nil); close(done) }()
	m, _, err := helper.recv()
	if err != nil || m.Op != opKill || u.causeSet() != CauseOOM {
		t.Errorf("order %q, cause %q, %v", m.Op, u.causeSet(), err)
	}
	close(u.exited)
	<-done
}

// A run within its limit is looked at again and again, and left alone.
func TestTheWatchdogLeavesARunWithinItsMemoryAlone(t *testing.T) {
	u, helper := watched(t, 1<<40)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { u.watchMemory(os.Getpid(), stop); close(done) }()
	time.Sleep(4 * watchdogInterval) // some looks
	close(stop)
	<-done
	_ = u.ctl.f.Close()
	if m, _, err := helper.recv(); err == nil || u.causeSet() != "" {
		t.Errorf("order %q, cause %q", m.Op, u.causeSet())
	}
}

// Over its limit is a task by what it has, or with what the sentry takes on top.
func TestOverMemory(t *testing.T) {
	l := Limits{Memory: 100 << 20}
	for _, c := range []struct {
		task, own int64
		over      bool
	}{
		{100 << 20, 0, false},
		{100<<20 + 1, 0, true},
		{100 << 20, memoryOverhead, false},
		{100 << 20, memoryOverhead + 1, true},
		{0, 100<<20 + memoryOverhead, false},
		{0, 100<<20 + memoryOverhead + 1, true},
	} {
		if got := l.over(c.task, c.own); got != c.over {
			t.Errorf("%d and %d bytes: %v", c.task, c.own, got)
		}
	}
}
