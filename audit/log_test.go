package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/identity"
)

// The line of the fixed format, byte for byte: tools outside this repository read it.
// F160: target, identity, rule, policy, lease, sizes, status and times are all there.
func TestF160TheFormatOfALine(t *testing.T) {
	clock := func() time.Time { return time.Date(2026, 11, 29, 17, 0, 0, 1, time.UTC) }
	g := start(t, Options{FS: &faulty{}, Clock: clock})
	r := g.completed("q1")
	r.ID, r.Run = "id-1", &identity.Run{ID: "r-1", Task: "t", Agent: "a", User: "u", Labels: map[string]string{"k": "v"}, ImageDigest: "sha256:i"}
	r.Request.QueryKeys, r.Request.HeaderNames, r.Request.Protocol, r.Request.Attempts = []string{"page"}, []string{"accept"}, "http/1.1", 1
	r.Dst = &Dst{IP: "192.0.2.1", Port: 443, TLSVersion: "1.3", CertSHA256: "cc"}
	r.Credential = &Credential{Name: "github-read", Kind: "kv", LeaseID: "l", Accessor: "h", VaultRequestID: "v", Expires: "2026-11-29T18:00:00Z"}
	r.Timing = &Timing{Decide: 21, Grant: 3, Upstream: 41000, Total: 41200}
	g.must(t, r)
	g.close(t)
	line := string(records(t, g.dir, Filter{})[0].Line())
	want := `{"schema":"warder.audit/v1","id":"id-1","time":"2026-11-29T17:00:00.000000001Z","seq":0,"stream":"` + g.stream() +
		`","event":"request","stage":"completed","run":{"id":"r-1","task":"t","agent":"a","user":"u","labels":{"k":"v"},"image_digest":"sha256:i"}` +
		`,"request":{"id":"q1","method":"GET","scheme":"https","host":"api.allowed.test","port":443,"path":"/repos/acme/x/issues","query_keys":["page"],"protocol":"http/1.1","header_names":["accept"],"bytes":0,"attempts":1}` +
		`,"dst":{"ip":"192.0.2.1","port":443,"tls_version":"1.3","cert_sha256":"cc"},"mode":"intercepted","verdict":"allow","rule":"github-read"` +
		`,"policy":{"revision":"rev-1","digest":"sha256:aa","decision_id":"d-q1","mode":"enforce"}` +
		`,"credential":{"name":"github-read","kind":"kv","lease_id":"l","accessor":"h","vault_request_id":"v","expires":"2026-11-29T18:00:00Z"}` +
		`,"response":{"status":200,"bytes":12,"scrubbed":0},"timing_us":{"decide":21,"grant":3,"upstream":41000,"total":41200}` +
		`,"prev":"` + zeroHash + `"`
	if body, hash, _ := strings.Cut(line, hashKey); body != want || hash != hexSum([]byte(want))+`"}` {
		t.Errorf("the line is\n%s, want\n%s", line, want)
	}
}

// F162: the open segment is removed, moved or replaced under the writer. It is noticed
// before the next record is acknowledged, put back whole, and told in the log.
func TestF162TheSegmentIsTakenAway(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, segment string){
		"removed": func(t *testing.T, segment string) { no(t, os.Remove(segment)) },
		"moved":   func(t *testing.T, segment string) { no(t, os.Rename(segment, filepath.Join(t.TempDir(), "moved"))) },
		"a link to /dev/null": func(t *testing.T, segment string) {
			no(t, os.Remove(segment))
			no(t, os.Symlink("/dev/null", segment))
		},
		"another file": func(t *testing.T, segment string) {
			no(t, os.Remove(segment))
			no(t, os.WriteFile(segment, []byte("{}\n"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, Options{FS: &faulty{}})
			g.must(t, g.reserved("q1"))
			take(t, g.segment(1))
			g.must(t, g.reserved("q2"))
			wantVerdict(t, g.dir, VerdictComplete) // already whole when it is acknowledged
			g.must(t, g.completed("q1"), g.completed("q2"))
			take(t, g.segment(1))
			g.tickNow(t) // without a record, the clock notices it
			wantVerdict(t, g.dir, VerdictComplete)
			g.close(t)
			rep := wantVerdict(t, g.dir, VerdictComplete)
			if rep.Records != 6 {
				t.Errorf("%d records, want 4 and 2 anomalies", rep.Records)
			}
			anomalies := 0
			for _, r := range records(t, g.dir, Filter{}) {
				if r.Event == EventAnomaly && strings.Contains(r.Detail, "removed or replaced") {
					anomalies++
				}
			}
			if anomalies != 2 || len(g.warnings()) == 0 {
				t.Errorf("%d anomalies, warnings %v", anomalies, g.warnings())
			}
		})
	}
}

func no(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// F162: without its directory the stream refuses, says why, and goes on when it is back.
func TestF162TheDirectoryIsTakenAway(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.must(t, g.reserved("q1"))
	away := g.dir + ".away"
	no(t, os.Rename(g.dir, away))
	if err := g.Append(t.Context(), g.reserved("q2")).Wait(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the directory: %v", err)
	}
	if err := g.Healthy(); err == nil || !strings.Contains(err.Error(), g.dir) {
		t.Errorf("Healthy without the directory: %v", err)
	}
	no(t, os.Rename(away, g.dir))
	g.must(t, g.completed("q1"))
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
}

// F162: files of the log that are links are refused.
func TestF162LinksAreRefused(t *testing.T) {
	for _, name := range []string{registryFile, filepath.Join(keysDir, signingKey)} {
		g := start(t, Options{FS: &faulty{}})
		g.close(t)
		path, target := filepath.Join(g.dir, name), filepath.Join(t.TempDir(), "target")
		no(t, os.Rename(path, target))
		no(t, os.Symlink(target, path))
		if l, err := Open(t.Context(), Options{Dir: g.dir}); err == nil {
			t.Errorf("%s is a link, and Open takes it", name)
			no(t, l.Close(t.Context()))
		}
	}
}

// F163: a disk that does not answer holds no caller back until the memory kept for it
// is full; then Append waits, as long as its context says.
func TestF163ASlowDiskBlocksOnlyBehindABound(t *testing.T) {
	release := make(chan struct{})
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, Durable: DurableAll})
	fsys.set(func(_ int, op, _ string) error {
		if op == "fdatasync" {
			<-release
		}
		return nil
	})
	var waiting []*Future
	ctx, cancel := context.WithCancel(t.Context())
	full := make(chan struct{})
	go func() {
		for !waitsForMemory(g) {
			time.Sleep(time.Millisecond) // nothing tells that a caller has begun to wait
		}
		cancel()
		close(full)
	}()
	for i := 0; ; i++ {
		f := g.Append(ctx, wide(g, fmt.Sprint("w", i)))
		waiting = append(waiting, f)
		if ctx.Err() != nil {
			break
		}
	}
	<-full
	if n := len(waiting); n < maxQueue/(2*4500) || n > maxQueue/4000 {
		t.Errorf("%d records of 4 kB were taken before Append waited", n)
	}
	last := waiting[len(waiting)-1]
	if err := last.Wait(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("the one that waited: %v", err)
	}
	close(release)
	for _, f := range waiting[:len(waiting)-1] {
		no(t, f.Wait(t.Context()))
	}
	g.must(t, &Record{Event: EventRunEnd, Run: g.run, RunEnd: &RunEnd{}})
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
}

// waitsForMemory says whether no wide record finds room.
func waitsForMemory(g *rig) bool {
	if g.sem.TryAcquire(4500) {
		g.sem.Release(4500)
		return false
	}
	return true
}

// A record is never lost because its caller's context has ended.
func TestAnEndedContextLosesNoRecord(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := g.Append(ctx, g.reserved("q1"))
	no(t, f.Wait(t.Context()))
	g.close(t)
	if rep := wantVerdict(t, g.dir, VerdictComplete); rep.Records != 2 {
		t.Errorf("%d records", rep.Records)
	}
}

// F167: a long stream is many segments of bounded size, one chain, one tree.
func TestF167RotationKeepsTheChain(t *testing.T) {
	g := start(t, Options{FS: &faulty{}, SegmentSize: small})
	g.requests(t, 60)
	g.close(t)
	rep := wantVerdict(t, g.dir, VerdictComplete)
	numbers, _, err := segments(filepath.Join(g.dir, streamsDir, g.stream()))
	no(t, err)
	if len(numbers) < 10 || rep.Records != 120 {
		t.Fatalf("%d segments, %d records", len(numbers), rep.Records)
	}
	for _, n := range numbers {
		st, err := os.Stat(g.segment(n))
		no(t, err)
		if st.Size() > small {
			t.Errorf("segment %d has %d bytes", n, st.Size())
		}
	}
}

// F168: sequence numbers have 64 bits, in the line and back.
func TestF168SequenceBeyond32Bits(t *testing.T) {
	for _, seq := range []uint64{0, 1<<31 - 1, 1 << 31, 1 << 32, 1<<53 + 1, 1<<64 - 1} {
		line := lineOf(seq)
		p, why := parseLine(line[:len(line)-1])
		var r Record
		if why != "" || p.seq != seq || decode(line[:len(line)-1], p, &r) != "" || r.Seq != seq {
			t.Errorf("%d came back as %d and %d (%s)", seq, p.seq, r.Seq, why)
		}
	}
}

// F168: parallel callers get one order without gaps, and readers beside them see a log
// that is right at every moment.
func TestF168ParallelWritersAndReaders(t *testing.T) {
	g := start(t, Options{SegmentSize: 64 << 10})
	const callers, each = 16, 30
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("q%d-%d", c, i)
				if err := g.Append(t.Context(), g.reserved(id)).Wait(t.Context()); err != nil {
					t.Error(err)
					return
				}
				g.Append(t.Context(), g.completed(id))
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for looks := 0; ; looks++ {
		rep := wantVerdict(t, g.dir, VerdictComplete)
		if len(rep.OpenStreams) != 1 {
			t.Errorf("open streams: %v", rep.OpenStreams)
		}
		select {
		case <-done:
		default:
			continue
		}
		break
	}
	g.close(t)
	if rep := wantVerdict(t, g.dir, VerdictComplete); rep.Records != 2*callers*each {
		t.Errorf("%d records, want %d", rep.Records, 2*callers*each)
	}
	for i, r := range records(t, g.dir, Filter{}) {
		if r.Seq != uint64(i) {
			t.Fatalf("record %d has seq %d", i, r.Seq)
		}
	}
}

// F169: what only a monitoring policy let through looks different from an allow.
func TestF169MonitorModeIsTold(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	r := g.completed("q1")
	r.Would, r.Reason, r.Rule = "deny", "no-rule", ""
	g.must(t, r)
	g.close(t)
	back := records(t, g.dir, Filter{})[0]
	if back.Would != "deny" || !strings.Contains(Sentence(back), "enforcing would deny") {
		t.Errorf("%s: %s", back.Line(), Sentence(back))
	}
}

func TestCloseClosesWhatIsOpen(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.must(t, &Record{Event: EventRunStart, Run: g.run, RunStart: &RunStart{}}, g.reserved("q1"), g.reserved("q2"), g.completed("q1"))
	g.close(t)
	g.close(t) // once more does nothing
	var got []string
	for _, r := range records(t, g.dir, Filter{})[4:] {
		got = append(got, r.Event+" "+r.Stage)
	}
	if fmt.Sprint(got) != "[request interrupted run.end ]" {
		t.Errorf("closing lines: %v", got)
	}
	wantVerdict(t, g.dir, VerdictComplete)
	if err := g.Healthy(); !errors.Is(err, ErrClosed) {
		t.Errorf("Healthy after Close: %v", err)
	}
}

// A sealed stream with a reservation that nothing closes is no complete log.
func TestAnUnclosedReservationIsAGap(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.must(t, g.reserved("q1"))
	no(t, g.ask(t.Context(), false, func() error { g.c.pending = newPending(); return nil }))
	g.close(t)
	rep := wantVerdict(t, g.dir, VerdictGap)
	if !strings.Contains(rep.Findings[0].What, "q1") {
		t.Errorf("%+v", rep.Findings)
	}
}

func TestOpenRefuses(t *testing.T) {
	open := t.TempDir() + "/audit"
	no(t, os.Mkdir(open, 0o700))
	no(t, os.Chmod(open, 0o777))
	for name, o := range map[string]Options{
		"no directory":            {},
		"an unknown durability":   {Dir: t.TempDir(), Durable: "none"},
		"a folder open to others": {Dir: open},
	} {
		if l, err := Open(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
			no(t, l.Close(t.Context()))
		}
	}
}

func TestFilesArePrivate(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.requests(t, 1)
	g.close(t)
	err := filepath.Walk(g.dir, func(name string, st os.FileInfo, err error) error {
		no(t, err)
		want := os.FileMode(0o600)
		switch {
		case st.IsDir():
			want = 0o700
		case strings.HasSuffix(name, publicExt):
			want = 0o644
		}
		if st.Mode().Perm()&^want != 0 {
			t.Errorf("%s has mode %o, want at most %o", name, st.Mode().Perm(), want)
		}
		return nil
	})
	no(t, err)
}

// Starts at the same time recover each dead stream once.
func TestStartsAtTheSameTimeRecoverOnce(t *testing.T) {
	dir := t.TempDir() + "/audit"
	for range 3 {
		g := start(t, Options{Dir: dir, FS: &faulty{}})
		g.must(t, g.reserved("q"))
		g.die(t)
		if dir != g.dir {
			t.Fatal(g.dir)
		}
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			l, err := Open(t.Context(), Options{Dir: dir, FS: &faulty{}})
			if err != nil {
				t.Error(err)
				return
			}
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	rep := wantVerdict(t, dir, VerdictComplete)
	if rep.Records != 6 || len(rep.OpenStreams) > 0 {
		t.Errorf("%+v", rep)
	}
}

// Each system call of a recovery fails in turn; the start after that makes it whole.
func TestEverySystemCallOfARecoveryFailsInTurn(t *testing.T) {
	g := start(t, Options{FS: &faulty{}, SegmentSize: small})
	g.must(t, wide(g, "a"), g.reserved("q1"))
	name := g.segment(1)
	g.die(t)
	edit(t, name, func(b []byte) []byte { // a tear, so that it is cut off as well
		end := len(strings.TrimRight(string(b), "\x00"))
		return append(b[:end:end], append([]byte(lineHead+"0"), b[end:len(b)-100]...)...)
	})
	trace := &faulty{}
	first := copyDir(t, g.dir)
	start(t, Options{Dir: first, FS: trace}).close(t)
	if rep := wantVerdict(t, first, VerdictComplete); rep.Records != 4 || len(rep.OpenStreams) != 0 {
		t.Fatalf("without a fault: %+v", rep)
	}
	for i, call := range trace.calls {
		dir := copyDir(t, g.dir)
		fsys := &faulty{hook: func(n int, _, _ string) error {
			if n == i {
				return errors.New("it fails")
			}
			return nil
		}}
		if l, err := Open(t.Context(), Options{Dir: dir, FS: fsys}); err == nil {
			_ = l.Close(t.Context())
		}
		if err := judge(t, dir, []string{"a"}); err != nil {
			t.Errorf("%d %s: %v", i, call, err)
		}
	}
}
