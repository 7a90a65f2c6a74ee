package audit

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
)

// heldSync holds the next fdatasync of a segment until it is told its outcome.
type heldSync struct {
	began   chan struct{}
	outcome chan error
}

// holdSync has the next fdatasync held, and calls of the kind op after it fail with err.
func holdSync(f *faulty, op string, err error) heldSync {
	h := heldSync{make(chan struct{}), make(chan error)}
	held := false
	f.set(func(_ int, got, _ string) error {
		if got == "fdatasync" && !held {
			held = true
			close(h.began)
			return <-h.outcome
		}
		if held && got == op {
			return err
		}
		return nil
	})
	return h
}

// queued returns once the committer has taken everything that came: it makes lines of
// it before it looks at an fdatasync's outcome.
func (g *rig) queued() {
	for waiting := 1; waiting > 0; runtime.Gosched() {
		g.signal() // it lets a few wait while the disk is at work
		g.Log.mu.Lock()
		waiting = len(g.queue)
		g.Log.mu.Unlock()
	}
}

// What is made while the disk syncs goes with the next fdatasync, in its order.
func TestWhatComesDuringASyncGoesWithTheNext(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys})
	g.must(t, g.reserved("q0"))
	h := holdSync(fsys, "", nil)
	first := g.Append(t.Context(), g.completed("q0"))
	<-h.began
	g.queued()
	var later []*Future
	for i := range 40 {
		later = append(later, g.Append(t.Context(), g.reserved(fmt.Sprint("q", i+1))))
	}
	g.queued()
	h.outcome <- nil
	for i, f := range append([]*Future{first}, later...) {
		if err := f.Wait(t.Context()); err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
	syncs := 0
	for _, call := range fsys.calls {
		if call == "fdatasync 1.jsonl" {
			syncs++
		}
	}
	if syncs > 4 { // of the opening, q0, the held one, and all that came during it
		t.Errorf("%d calls of fdatasync: what came together was not synced together", syncs)
	}
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	for i, r := range records(t, g.dir, Filter{}) {
		if r.Seq != uint64(i) {
			t.Errorf("record %d has seq %d", i, r.Seq)
		}
	}
}

// A failed fdatasync takes what was made after it along: nobody is told that it stands,
// and the chain goes on where it was.
func TestAFailedSyncRefusesWhatCameAfterIt(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys})
	g.must(t, g.reserved("q0"))
	h := holdSync(fsys, "", nil)
	lost := []*Future{g.Append(t.Context(), g.reserved("q1"))}
	<-h.began
	for i := range 8 {
		lost = append(lost, g.Append(t.Context(), g.reserved(fmt.Sprint("lost", i))))
	}
	g.queued()
	h.outcome <- syscall.EIO
	for i, f := range lost {
		if err := f.Wait(t.Context()); !errors.Is(err, syscall.EIO) {
			t.Errorf("record %d: %v, want EIO", i, err)
		}
	}
	g.must(t, g.completed("q0"))
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	for _, r := range records(t, g.dir, Filter{}) {
		if r.Request != nil && r.Request.ID != "q0" {
			t.Errorf("%s was refused, and is in the log", r.Request.ID)
		}
	}
}

// The outcome of a request whose reservation has just been synced is kept when its own
// write fails: it closes something that is in the log.
func TestAnOutcomeBehindItsReservationIsKept(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys})
	h := holdSync(fsys, "write", syscall.ENOSPC)
	reserved := g.Append(t.Context(), g.reserved("q1"))
	<-h.began
	done := g.Append(t.Context(), g.completed("q1"))
	g.queued()
	h.outcome <- nil
	if err := reserved.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := done.Wait(t.Context()); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the outcome: %v, want ENOSPC", err)
	}
	fsys.set(nil)
	g.tickNow(t)
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	rs := records(t, g.dir, Filter{})
	if len(rs) < 2 || rs[0].Stage != StageReserved || rs[1].Stage != StageCompleted || rs[1].Request.ID != "q1" {
		t.Errorf("the log holds %v", rs)
	}
}

// Who waits for the kernel alone does not wait for the disk, also while it is at work.
func TestARelaxedRecordDoesNotWaitForASync(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, Durable: DurableCredentialed})
	if err := g.AppendRelaxed(t.Context(), g.reserved("q0")).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := holdSync(fsys, "", nil)
	durable := g.Append(t.Context(), g.reserved("q1"))
	<-h.began
	fsys.mu.Unlock() // the hook holds it while it waits, and a write asks too
	if err := g.AppendRelaxed(t.Context(), g.reserved("q2")).Wait(t.Context()); err != nil {
		t.Error(err)
	}
	fsys.mu.Lock()
	h.outcome <- nil
	if err := durable.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
}

// After a failed fdatasync the log holds everything up to the last record that was
// answered for, and nothing after it.
func TestAFailedSyncKeepsWhatWasAnsweredFor(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, Durable: DurableCredentialed})
	g.must(t, g.reserved("q0"))
	if err := g.AppendRelaxed(t.Context(), g.reserved("told1")).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := holdSync(fsys, "", nil)
	between := g.Append(t.Context(), g.reserved("between"))
	<-h.began
	fsys.mu.Unlock()
	if err := g.AppendRelaxed(t.Context(), g.reserved("told2")).Wait(t.Context()); err != nil {
		t.Error(err)
	}
	after := g.Append(t.Context(), g.reserved("after"))
	g.queued()
	fsys.mu.Lock()
	h.outcome <- syscall.EIO
	for name, f := range map[string]*Future{"between": between, "after": after} {
		if err := f.Wait(t.Context()); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want EIO", name, err)
		}
	}
	g.must(t, g.completed("q0"))
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	var got []string
	for _, r := range records(t, g.dir, Filter{}) {
		if r.Stage == StageReserved {
			got = append(got, r.Request.ID)
		}
	}
	if fmt.Sprint(got) != "[q0 told1 between told2]" {
		t.Errorf("the log holds the reservations %v", got)
	}
}
