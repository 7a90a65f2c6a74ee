package audit

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// small is a segment of few records.
const small = 8 << 10

// wide is a run.start of about 4 kB, so that two of them fill a small segment.
func wide(g *rig, id string) *Record {
	argv := []string{strings.Repeat("x", 4000)}
	return &Record{ID: id, Event: EventRunStart, Run: g.run, RunStart: &RunStart{Argv: argv}}
}

// life opens, writes, rotates, signs and closes; it returns the ids that were
// acknowledged. Failures of single steps are what the test is about.
func life(t *testing.T, dir string, fsys FS) []string {
	g, err := tryStart(t, Options{Dir: dir, FS: fsys, SegmentSize: small})
	if err != nil {
		return nil
	}
	var acked []string
	add := func(id string, r *Record) {
		r.ID = id
		if g.Append(t.Context(), r).Wait(t.Context()) == nil {
			acked = append(acked, id)
		}
	}
	add("a", wide(g, "a"))
	add("b", g.reserved("q1"))
	add("c", wide(g, "c")) // in the next segment
	add("d", g.completed("q1"))
	_ = g.Checkpoint(t.Context())
	add("e", g.reserved("q2"))
	add("f", &Record{Event: EventRunEnd, Run: g.run, RunEnd: &RunEnd{Cause: "exit"}})
	_ = g.Close(t.Context())
	return acked
}

// judge says what is wrong with the log in dir after the next start.
func judge(t *testing.T, dir string, acked []string) error {
	g, err := tryStart(t, Options{Dir: dir, FS: &faulty{}})
	if err != nil {
		return fmt.Errorf("the next start: %w", err)
	}
	g.close(t)
	rep := verify(t, dir)
	if rep.Verdict != VerdictComplete || len(rep.OpenStreams) > 0 {
		return fmt.Errorf("verdict %s, open %v, findings %+v, warnings %v", rep.Verdict, rep.OpenStreams, rep.Findings, g.warnings())
	}
	found := map[string]int{}
	for _, r := range records(t, dir, Filter{}) {
		found[r.ID]++
	}
	for _, id := range acked {
		if found[id] != 1 {
			return fmt.Errorf("acknowledged record %s is there %d times", id, found[id])
		}
	}
	return nil
}

// Each system call of a writer's life fails in turn, once or from then on: nothing
// acknowledged is lost, and the next start makes the log whole.
func TestEverySystemCallFailsInTurn(t *testing.T) {
	trace := &faulty{}
	dir := t.TempDir() + "/audit"
	acked := life(t, dir, trace)
	if len(acked) != 6 {
		t.Fatalf("without a fault %d of 6 records were acknowledged", len(acked))
	}
	if err := judge(t, dir, acked); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, call := range trace.calls {
		op, _, _ := strings.Cut(call, " ")
		kinds[op] = true
	}
	for _, op := range []string{"open", "write", "fdatasync", "truncate", "allocate", "rename", "flock", "lstat", "statx", "mkdir"} {
		if !kinds[op] {
			t.Errorf("the life has no %s: the test does not fail it", op)
		}
	}
	for i, call := range trace.calls {
		for _, fault := range []struct {
			name string
			err  error
			once bool
		}{
			{"EIO once", syscall.EIO, true},
			{"ENOSPC from then on", syscall.ENOSPC, false},
			{"short write once", errShort, true},
		} {
			if errors.Is(fault.err, errShort) && !strings.HasPrefix(call, "write ") {
				continue
			}
			t.Run(fmt.Sprintf("%d %s %s", i, call, fault.name), func(t *testing.T) {
				fsys := &faulty{hook: func(n int, _, _ string) error {
					if n == i || n > i && !fault.once {
						return fault.err
					}
					return nil
				}}
				dir := t.TempDir() + "/audit"
				if err := judge(t, dir, life(t, dir, fsys)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// failing fails one kind of call until it is told otherwise.
func failing(op string, err error) func(int, string, string) error {
	return func(_ int, got, _ string) error {
		if got == op {
			return err
		}
		return nil
	}
}

// I10: a fault of the disk refuses, says why, and the log lives on.
func TestAFailingDiskRefusesSaysWhyAndGoesOnByItself(t *testing.T) {
	for _, op := range []string{"write", "fdatasync"} {
		t.Run(op, func(t *testing.T) {
			fsys := &faulty{}
			g := start(t, Options{FS: fsys})
			g.must(t, g.reserved("q1"))
			fsys.set(failing(op, syscall.ENOSPC))
			err := g.Append(t.Context(), g.reserved("q2")).Wait(t.Context())
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("a reservation on a full disk: %v, want ENOSPC", err)
			}
			if err := g.Healthy(); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("Healthy: %v, want ENOSPC", err)
			}
			done := g.Append(t.Context(), g.completed("q1"))
			if err := done.Wait(t.Context()); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("a completion on a full disk: %v, want ENOSPC", err)
			}
			fsys.set(nil)
			g.tickNow(t)
			if err := g.Healthy(); err != nil {
				t.Fatalf("Healthy once the disk works: %v", err)
			}
			g.must(t, g.reserved("q3"), g.completed("q3"))
			g.close(t)
			wantVerdict(t, g.dir, VerdictComplete)
			var got []string
			for _, r := range records(t, g.dir, Filter{}) {
				if r.Event == EventAnomaly {
					got = append(got, "anomaly")
					if !strings.Contains(r.Detail, "1 records were refused") || !strings.Contains(r.Detail, "no space left") {
						t.Errorf("the anomaly says %q", r.Detail)
					}
					continue
				}
				got = append(got, r.Stage+" "+r.Request.ID)
			}
			want := "[reserved q1 completed q1 anomaly reserved q3 completed q3]"
			if fmt.Sprint(got) != want {
				t.Errorf("the log holds %v, want %s: a completion is kept, a refused reservation is not", got, want)
			}
		})
	}
}

// What a failed batch left in the file is gone before a shorter one takes its place.
func TestAFailedBatchLeavesNothingBehind(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys})
	g.must(t, g.reserved("q1"))
	fsys.set(failing("fdatasync", syscall.EIO))
	if err := g.Append(t.Context(), wide(g, "w")).Wait(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Fatalf("a record on a failing disk: %v", err)
	}
	fsys.set(nil)
	g.must(t, g.completed("q1"))
	wantVerdict(t, g.dir, VerdictComplete)
	g.die(t)
	start(t, Options{Dir: g.dir, FS: fsys}).close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	for _, r := range records(t, g.dir, Filter{}) {
		if r.ID == "w" {
			t.Error("the refused record is in the log")
		}
	}
}

// A full disk stops new requests while there is room for the outcome of old ones.
func TestNoSpaceForANextSegmentKeepsRoomForOutcomes(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, SegmentSize: small})
	g.must(t, g.reserved("q1"))
	fsys.set(failing("allocate", syscall.ENOSPC))
	for i := 0; ; i++ {
		err := g.Append(t.Context(), wide(g, fmt.Sprint("w", i))).Wait(t.Context())
		if errors.Is(err, syscall.ENOSPC) {
			break
		}
		if err != nil || i > 3 {
			t.Fatalf("after %d wide records: %v", i, err)
		}
	}
	if g.Healthy() == nil {
		t.Error("Healthy is nil with no next segment")
	}
	g.must(t, g.completed("q1"), &Record{Event: EventRunEnd, Run: g.run, RunEnd: &RunEnd{Cause: "exit"}})
	fsys.set(nil)
	g.tickNow(t)
	if err := g.Healthy(); err != nil {
		t.Errorf("Healthy with space again: %v", err)
	}
	g.must(t, wide(g, "after"))
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
}

func TestRelaxedRecordsOutliveAFailedSync(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, Durable: DurableCredentialed})
	if err := g.AppendRelaxed(t.Context(), g.reserved("q1")).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	fsys.set(failing("fdatasync", syscall.EIO))
	if err := g.Append(t.Context(), g.reserved("q2")).Wait(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Fatalf("a durable record: %v, want EIO", err)
	}
	fsys.set(nil)
	g.must(t, g.completed("q1"))
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	if rs := records(t, g.dir, Filter{}); rs[0].Request.ID != "q1" || rs[1].Request.ID != "q1" {
		t.Errorf("first records are %v and %v", rs[0].Request, rs[1].Request)
	}
}

// Under "all" nothing is answered before fdatasync, however it was appended.
func TestAllIgnoresRelaxed(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys})
	fsys.set(failing("fdatasync", syscall.EIO))
	if err := g.AppendRelaxed(t.Context(), g.reserved("q1")).Wait(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Errorf("AppendRelaxed under all: %v, want EIO", err)
	}
	fsys.set(nil)
	g.close(t)
}

func TestARelaxedRecordOutlivesItsProcess(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, Durable: DurableCredentialed})
	fsys.set(failing("fdatasync", syscall.EIO)) // it does not wait for one
	if err := g.AppendRelaxed(t.Context(), g.reserved("q1")).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.die(t)
	next := start(t, Options{Dir: g.dir})
	next.close(t)
	rs := records(t, g.dir, Filter{})
	if len(rs) != 2 || rs[0].Request.ID != "q1" || rs[1].Stage != StageInterrupted {
		t.Fatalf("after the death: %v", rs)
	}
}

func TestLittleSpaceIsSaidAhead(t *testing.T) {
	g := start(t, Options{FS: narrow{}, SegmentSize: small})
	g.close(t)
	if said := strings.Join(g.warnings(), "\n"); !strings.Contains(said, "MiB are left") {
		t.Errorf("warnings: %q", said)
	}
	g = start(t, Options{SegmentSize: small})
	g.close(t)
	if said := g.warnings(); len(said) > 0 {
		t.Errorf("with enough space: %q", said)
	}
}

// narrow has ten kibibytes left.
type narrow struct{ osFS }

func (narrow) Free(string) (uint64, error) { return 10 << 10, nil }
