package audit

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bySelf says whether a call of op came from the goroutine that waits for a record.
func bySelf(f *faulty, op string) func() (self, other int) {
	var self, other int
	f.set(func(_ int, got, _ string) error {
		if got == op {
			if strings.Contains(string(debug.Stack()), "(*Future).Wait") {
				self++
			} else {
				other++
			}
		}
		return nil
	})
	return func() (int, int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return self, other
	}
}

// hold keeps the timer of the queue from doing what the rest of the test is about, and
// returns when nobody is at work.
func (g *rig) hold() {
	g.Log.mu.Lock()
	g.linger.Stop()
	g.armed = true
	g.Log.mu.Unlock()
	for idle := false; !idle; runtime.Gosched() {
		g.c.mu.Lock()
		idle = !g.c.busy && !g.told.Load() && len(g.wake) == 0
		g.c.mu.Unlock()
	}
}

// Whoever waits alone, on a quick disk, does the work; on a slow one it would not see its
// context end.
func TestAWaiterWritesAndSyncsItself(t *testing.T) {
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprint("slow=", slow), func(t *testing.T) {
			fsys := &faulty{}
			g := start(t, Options{FS: fsys})
			g.must(t, g.reserved("q0"))
			g.hold()
			calls := bySelf(fsys, "fdatasync")
			var self, other int
			for i := range 20 { // the committer may just be about to sleep, and take one or two
				g.c.slow.Store(slow)
				g.must(t, g.reserved(fmt.Sprint("q1.", i)))
				g.hold()
				self, other = calls()
			}
			if slow && self > 0 || !slow && self < 15 {
				t.Errorf("fdatasync by the waiter %d, by another %d", self, other)
			}
			fsys.set(nil)
			g.close(t)
			wantVerdict(t, g.dir, VerdictComplete)
		})
	}
}

// A record for which the kernel is enough is written by whoever waits for it on any disk,
// since nobody else need be woken; the disk's part is left to others.
func TestAWaiterForTheKernelWritesItself(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, Durable: DurableCredentialed})
	g.must(t, g.reserved("q0"))
	g.hold()
	calls := bySelf(fsys, "write")
	var self, other int
	for i := range 20 { // as above
		g.c.slow.Store(true)
		if err := g.AppendRelaxed(t.Context(), g.reserved(fmt.Sprint("q1.", i))).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.hold()
		self, other = calls()
	}
	if self < 15 {
		t.Errorf("written by the waiter %d, by another %d", self, other)
	}
	g.c.slow.Store(true)
	calls = bySelf(fsys, "fdatasync")
	g.Append(t.Context(), g.reserved("q2"))
	if err := g.AppendRelaxed(t.Context(), g.reserved("q3")).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.must(t, g.reserved("q4"))
	if self, _ := calls(); self != 0 {
		t.Error("it waited for a slow disk")
	}
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
}

// F162: a segment that somebody removed is put back also where records are not waited for
// on the disk, if not before each of them is answered for.
func TestF162RelaxedRecordsFindTheSegmentGoneSoon(t *testing.T) {
	g := start(t, Options{FS: &faulty{}, Durable: DurableCredentialed})
	g.must(t, g.reserved("q0"))
	relaxed := func(id string) {
		if err := g.AppendRelaxed(t.Context(), g.reserved(id)).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	relaxed("q1")
	no(t, os.Remove(g.segment(1)))
	relaxed("q2")
	time.Sleep(lookEvery) // the time is what is tested
	relaxed("q3")
	wantVerdict(t, g.dir, VerdictComplete)
	if n := len(records(t, g.dir, Filter{})); n < 4 {
		t.Errorf("%d records", n)
	}
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
}

// Nobody need wait for a record for it to be written.
func TestWhatNobodyWaitsForIsWrittenSoon(t *testing.T) {
	g := start(t, Options{Durable: DurableCredentialed})
	g.Append(t.Context(), g.reserved("q1"))
	g.AppendRelaxed(t.Context(), g.reserved("q2"))
	g.AppendBehind(t.Context(), g.completed("q1"))
	for limit := time.Now().Add(10 * time.Second); len(records(t, g.dir, Filter{})) < 3; {
		if time.Now().After(limit) {
			t.Fatal("they were not written")
		}
		time.Sleep(time.Millisecond) // nothing tells of a write that nobody waits for
	}
	if lingers > 10*time.Millisecond {
		t.Errorf("it may take %v", lingers)
	}
}

// What is written behind costs no write and no sync of its own.
func TestTheEndOfARequestGoesWithTheNextReservation(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys})
	g.must(t, g.reserved("q1"))
	g.hold()
	before := len(fsys.calls)
	end := g.AppendBehind(t.Context(), g.completed("q1"))
	g.must(t, g.reserved("q2"))
	if err := end.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	var writes, syncs int
	for _, call := range fsys.calls[before:] {
		op, _, _ := strings.Cut(call, " ")
		if op == "write" {
			writes++
		}
		if op == "fdatasync" {
			syncs++
		}
	}
	if writes != 1 || syncs != 1 {
		t.Errorf("%d writes and %d syncs: %q", writes, syncs, fsys.calls[before:])
	}
}

// The log is asked to sync, or closed, while a waiter syncs: it learns the outcome from
// that waiter, and nobody is told of success when there was none.
func TestTheLogIsAskedWhileAWaiterSyncs(t *testing.T) {
	for _, outcome := range []error{nil, syscall.EIO} {
		for _, ask := range []string{"checkpoint", "close"} {
			t.Run(fmt.Sprint(ask, " ", outcome), func(t *testing.T) {
				fsys := &faulty{}
				g := start(t, Options{FS: fsys})
				g.must(t, g.reserved("q0"))
				g.hold()
				g.c.slow.Store(false)
				h := holdSync(fsys, "", nil)
				first, asked := make(chan error, 1), make(chan error, 1)
				go func() { first <- g.Append(t.Context(), g.reserved("q1")).Wait(t.Context()) }()
				<-h.began
				go func() {
					if ask == "close" {
						asked <- g.Close(t.Context())
					} else {
						asked <- g.Checkpoint(t.Context())
					}
				}()
				select {
				case err := <-asked:
					t.Fatalf("%s ended before the disk did: %v", ask, err)
				case <-time.After(20 * time.Millisecond):
				}
				h.outcome <- outcome
				if err := <-first; !errors.Is(err, outcome) {
					t.Errorf("the waiter was told %v", err)
				}
				<-asked // it may say the disk's error once
				g.close(t)
				rep := wantVerdict(t, g.dir, VerdictComplete)
				found := false
				for _, r := range records(t, g.dir, Filter{}) {
					found = found || r.Request != nil && r.Request.ID == "q1"
				}
				if found != (outcome == nil) {
					t.Errorf("q1 is in the log: %v; %+v", found, rep)
				}
			})
		}
	}
}

// A busy stream is signed for, and synced, no less often than an idle one.
func TestABusyStreamIsLookedAtToo(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, Durable: DurableCredentialed})
	g.must(t, g.reserved("q0"))
	before := len(fsys.calls)
	limit := time.Now().Add(30 * time.Second)
	for i := 0; ; i++ {
		if err := g.AppendRelaxed(t.Context(), g.reserved(fmt.Sprint("r", i))).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		fsys.mu.Lock()
		synced := strings.Contains(strings.Join(fsys.calls[before:], "\n"), "fdatasync")
		fsys.mu.Unlock()
		g.c.mu.Lock()
		looked := g.c.ticks > 0
		g.c.mu.Unlock()
		if synced && looked {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("relaxed records keep coming: synced %v, the stream looked at %v", synced, looked)
		}
		time.Sleep(20 * time.Millisecond) // a trickle: records that come faster are synced for their size
	}
}

// A fault of ours in the writer ends writing, not the process, nor the requests in whose
// goroutines it may happen: they are refused, and the next start recovers what there is.
func TestAFaultOfTheWriterRefusesAll_I10(t *testing.T) {
	for _, slow := range []bool{false, true} {
		t.Run(fmt.Sprint("slow=", slow), func(t *testing.T) {
			fsys := &faulty{}
			g := start(t, Options{FS: fsys})
			g.must(t, g.reserved("q0"))
			g.hold()
			g.c.slow.Store(slow)
			fsys.set(func(_ int, op, _ string) error {
				if op == "write" {
					panic("CANARY-of-a-panic")
				}
				return nil
			})
			early := g.Append(t.Context(), g.reserved("q1"))
			for _, id := range []string{"q2", "q3"} {
				if err := g.Append(t.Context(), g.reserved(id)).Wait(t.Context()); err == nil || strings.Contains(err.Error(), "CANARY") {
					t.Errorf("%s: %v", id, err)
				}
				fsys.set(nil) // the disk is as good as ever
			}
			if err := early.Wait(t.Context()); err == nil {
				t.Error("what waited with it is taken for durable")
			}
			for what, err := range map[string]error{"Healthy": g.Healthy(), "Checkpoint": g.Checkpoint(t.Context()), "Close": g.Close(t.Context())} {
				if err == nil {
					t.Errorf("%s says nothing", what)
				}
			}
			if !g.sem.TryAcquire(maxQueue) {
				t.Error("refused records keep the queue's room")
			}
			if got := strings.Join(g.warnings(), "\n"); !strings.Contains(got, "takeIn") || strings.Contains(got, "CANARY") {
				t.Errorf("the operator reads %q", got)
			}
			start(t, Options{Dir: g.dir}).close(t)
			wantVerdict(t, g.dir, VerdictComplete)
		})
	}
}

// What the disk is at work for is answered for too, without waiting for the disk.
func TestAFaultOfTheWriterRefusesWhatIsUnderWay_I10(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, Durable: DurableCredentialed})
	if err := g.AppendRelaxed(t.Context(), g.reserved("q0")).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := heldSync{make(chan struct{}), make(chan error)}
	fsys.set(func(_ int, op, _ string) error {
		select {
		case <-h.began:
			if op == "write" {
				panic("CANARY-of-a-panic")
			}
		default:
			if op == "fdatasync" {
				close(h.began)
				return <-h.outcome
			}
		}
		return nil
	})
	under := g.Append(t.Context(), g.reserved("q1"))
	<-h.began
	fsys.mu.Unlock() // the hook holds it while it waits, and a write asks too
	if err := g.AppendRelaxed(t.Context(), g.reserved("q2")).Wait(t.Context()); err == nil {
		t.Error("control: the write that panicked succeeded")
	}
	if err := under.Wait(t.Context()); err == nil {
		t.Error("what the disk was at work for is taken for durable")
	}
	fsys.mu.Lock()
	h.outcome <- nil
	if err := g.Close(t.Context()); err == nil {
		t.Error("Close says nothing")
	}
	if !g.sem.TryAcquire(maxQueue) {
		t.Error("refused records keep the queue's room")
	}
	fsys.set(nil)
	start(t, Options{Dir: g.dir}).close(t)
	wantVerdict(t, g.dir, VerdictComplete)
}
