package audit

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// deadLog is a log whose writer died with q1 completed and q2 reserved. It returns the
// bytes of the lines and where the last line starts.
func deadLog(t *testing.T) (g *rig, lines []byte, last int) {
	t.Helper()
	g = start(t, Options{SegmentSize: small, FS: &faulty{}})
	g.must(t, g.reserved("q1"), g.completed("q1"), g.reserved("q2"))
	name := g.segment(1)
	g.die(t)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines = bytes.TrimRight(b, "\x00")
	if len(lines) == len(b) {
		t.Fatal("the live segment has no room left at its end: the test shows nothing")
	}
	return g, lines, bytes.LastIndexByte(lines[:len(lines)-1], '\n') + 1
}

// put makes the only segment of the log hold b.
func put(t *testing.T, g *rig, dir string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, streamsDir, g.stream(), "1.jsonl"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Power is lost at every byte of the last batch, with and without the file's size on
// the disk: verify says complete and open before recovery, complete after it, and what
// was acknowledged before is there.
func TestPowerLossAtEveryByteOfTheLastBatch(t *testing.T) {
	g, lines, last := deadLog(t)
	whole := copyDir(t, g.dir)
	registry, err := os.ReadFile(filepath.Join(whole, registryFile))
	if err != nil {
		t.Fatal(err)
	}
	for cut := last; cut <= len(lines); cut++ {
		for _, room := range []int{0, 3 * sector} {
			put(t, g, whole, append(bytes.Clone(lines[:cut]), make([]byte, room)...))
			if err := os.WriteFile(filepath.Join(whole, registryFile), registry, 0o600); err != nil {
				t.Fatal(err)
			}
			remove(filepath.Join(streamsDir, g.stream(), checkpointFile))(t, whole)
			name := fmt.Sprintf("cut at %d of %d, %d NUL bytes", cut, len(lines), room)
			rep := verify(t, whole)
			if rep.Verdict != VerdictComplete || len(rep.OpenStreams) != 1 {
				t.Fatalf("%s: before recovery: %+v", name, rep)
			}
			recoverAll(t, whole)
			rep = verify(t, whole)
			want := uint64(2)
			if cut == len(lines) {
				want = 4 // the reservation, and that its outcome is unknown
			}
			if rep.Verdict != VerdictComplete || len(rep.OpenStreams) != 0 || rep.Records != want {
				t.Fatalf("%s: after recovery: %+v", name, rep)
			}
		}
	}
}

// recoverAll closes the dead streams of dir, without opening one.
func recoverAll(t *testing.T, dir string) {
	t.Helper()
	o := Options{Dir: dir, FS: &faulty{}}
	if err := o.complete(); err != nil {
		t.Fatal(err)
	}
	r, err := lockRegistry(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	dead := claimDead(&o, r)
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range dead {
		if err := recoverStream(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A disk writes the sectors of a batch in any order.
func TestPowerLossOfSectorsInAnyOrder(t *testing.T) {
	g, lines, last := deadLog(t)
	dir := copyDir(t, g.dir)
	first := (last + sector - 1) / sector * sector // the first sector that is all of the last batch
	holed := bytes.Clone(lines)
	clear(holed[last : first+sector])
	put(t, g, dir, append(holed, make([]byte, sector)...))
	if first+sector >= len(lines) {
		t.Fatal("the last line has no second sector: the test shows nothing")
	}
	wantVerdict(t, dir, VerdictComplete)
	recoverAll(t, dir)
	if rep := wantVerdict(t, dir, VerdictComplete); rep.Records != 2 {
		t.Errorf("%d records, want the 2 before the hole", rep.Records)
	}
}

// What a loss of power cannot do is no tear: recovery leaves it for an auditor to see.
func TestDamageIsNotTakenForATear(t *testing.T) {
	g, lines, last := deadLog(t)
	for name, spoil := range map[string]func(b []byte) []byte{
		"flip in the first line": func(b []byte) []byte { b[100] ^= 1; return b },
		"flip in the last line":  func(b []byte) []byte { b[last+100] ^= 1; return b },
		"NUL byte inside a line": func(b []byte) []byte { b[last+100] = 0; return b },
		"NUL bytes to the end of a sector": func(b []byte) []byte {
			from := last + 100
			border := (from + sector - 1) / sector * sector
			if from%sector == 0 || border >= len(b)-1 {
				t.Fatal("the last line does not cross a sector's border here")
			}
			clear(b[from:border])
			return b
		},
		"text after the last line":          func(b []byte) []byte { return append(b, "and more"...) },
		"a line cut in the middle":          func(b []byte) []byte { return append(b[:last-40:last-40], b[last:]...) },
		"the first line gone":               func(b []byte) []byte { return b[bytes.IndexByte(b, '\n')+1:] },
		"another line behind NUL bytes":     func(b []byte) []byte { return append(append(b, 0, 0, 0), b[last:]...) },
		"a finished line that is no record": func(b []byte) []byte { return append(b, "{}\n"...) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyDir(t, g.dir)
			spoilt := append(spoil(bytes.Clone(lines)), make([]byte, sector)...)
			put(t, g, dir, spoilt)
			if rep := verify(t, dir); rep.Verdict == VerdictComplete {
				t.Errorf("before the next start: %+v", rep)
			}
			next := start(t, Options{Dir: dir, FS: &faulty{}})
			next.close(t)
			rep := verify(t, dir)
			if rep.Verdict == VerdictComplete || len(rep.OpenStreams) != 1 {
				t.Errorf("after the next start: %+v", rep)
			}
			left, err := os.ReadFile(filepath.Join(dir, streamsDir, g.stream(), "1.jsonl"))
			if err != nil || !bytes.Equal(left, spoilt) {
				t.Errorf("recovery changed a damaged stream (%v)", err)
			}
			if len(next.warnings()) == 0 {
				t.Error("nothing was said of the damaged stream")
			}
		})
	}
}

// A stream cut behind its checkpoint is not sealed as if it were whole.
func TestRecoveryDoesNotSealOverACut(t *testing.T) {
	g := start(t, Options{SegmentSize: small, FS: &faulty{}})
	g.must(t, g.reserved("q1"), g.completed("q1"))
	if err := g.Checkpoint(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := g.segment(1)
	g.die(t)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	put(t, g, g.dir, b[:bytes.IndexByte(b, '\n')+1])
	wantVerdict(t, g.dir, VerdictTruncated)
	start(t, Options{Dir: g.dir, FS: &faulty{}}).close(t)
	if rep := wantVerdict(t, g.dir, VerdictTruncated); len(rep.OpenStreams) != 1 {
		t.Errorf("open streams: %v", rep.OpenStreams)
	}
}

// The interrupted line carries who, what and by which policy; a run gets its end.
func TestRecoveryClosesWhatWasOpen(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.must(t, &Record{Event: EventRunStart, Run: g.run, RunStart: &RunStart{Argv: []string{"true"}}}, g.reserved("q1"))
	g.die(t)
	if rep := wantVerdict(t, g.dir, VerdictComplete); len(rep.OpenStreams) != 1 {
		t.Fatalf("before recovery: %+v", rep)
	}
	start(t, Options{Dir: g.dir, FS: &faulty{}}).close(t)
	rs := records(t, g.dir, Filter{Stream: g.stream()})
	if len(rs) != 4 {
		t.Fatalf("%d records, want 4", len(rs))
	}
	cut, end := rs[2], rs[3]
	if cut.Stage != StageInterrupted || cut.Request.ID != "q1" || cut.Run.ID != g.run.ID || cut.Policy.Digest != "sha256:aa" || cut.Rule != "github-read" {
		t.Errorf("the closing line is %+v", cut)
	}
	if end.Event != EventRunEnd || end.Cause != StageInterrupted || end.Run.ID != g.run.ID {
		t.Errorf("the run's end is %+v", end)
	}
	wantVerdict(t, g.dir, VerdictComplete)
}

// Only the segment that lines end in may have room behind them.
func TestRoomBehindAnEarlierSegmentIsDamage(t *testing.T) {
	g := start(t, Options{FS: &faulty{}, SegmentSize: small})
	g.must(t, wide(g, "a"), wide(g, "b"), wide(g, "c"))
	first := g.segment(1)
	g.die(t)
	wantVerdict(t, g.dir, VerdictComplete)
	edit(t, first, func(b []byte) []byte { return append(b, make([]byte, sector)...) })
	wantVerdict(t, g.dir, VerdictAltered)
	start(t, Options{Dir: g.dir, FS: &faulty{}}).close(t)
	if rep := wantVerdict(t, g.dir, VerdictAltered); len(rep.OpenStreams) != 1 {
		t.Errorf("open streams: %v", rep.OpenStreams)
	}
}

// A line of the registry that its writer did not finish was never acknowledged: the
// next start takes it off.
func TestATornLineOfTheRegistryIsTakenOff(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.requests(t, 1)
	g.close(t)
	path := filepath.Join(g.dir, registryFile)
	whole, err := os.ReadFile(path)
	no(t, err)
	next := fmt.Sprintf(`{"schema":"%s","seq":%d,"time":"20`, registrySchema, len(split(whole)))
	for cut := 1; cut <= len(next); cut++ {
		no(t, os.WriteFile(path, append(bytes.Clone(whole), next[:cut]...), 0o600))
		wantVerdict(t, g.dir, VerdictComplete)
	}
	again := start(t, Options{Dir: g.dir, FS: &faulty{}})
	again.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	if len(again.warnings()) == 0 {
		t.Error("nothing was said of it")
	}
	no(t, os.WriteFile(path, append(bytes.Clone(whole), "{}"...), 0o600))
	wantVerdict(t, g.dir, VerdictAltered)
}
