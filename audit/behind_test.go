package audit

import (
	"errors"
	"syscall"
	"testing"
)

// Under durable: all too, the end of what was reserved does not wait for the disk; it
// is there with what does.
func TestTheEndOfARequestIsWrittenBehind(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys})
	g.must(t, g.reserved("q1"))
	fsys.set(func(_ int, op, _ string) error {
		if op == "fdatasync" {
			return syscall.EIO
		}
		return nil
	})
	if err := g.AppendBehind(t.Context(), g.completed("q1")).Wait(t.Context()); err != nil {
		t.Errorf("AppendBehind with a disk that does not sync: %v", err)
	}
	if err := g.Append(t.Context(), g.reserved("q2")).Wait(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Errorf("Append with a disk that does not sync: %v, want EIO", err)
	}
	fsys.set(nil)
	g.must(t, g.reserved("q3"), g.completed("q3"))
	g.die(t)
	stages := map[string]string{}
	for _, r := range records(t, copyDir(t, g.dir), Filter{}) {
		if r.Request != nil {
			stages[r.Request.ID] = r.Stage
		}
	}
	if stages["q1"] != StageCompleted || stages["q3"] != StageCompleted {
		t.Errorf("the log ends with %v", stages)
	}
}
