package audit

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// soakRecords makes TestSoakALongLog write and verify that many records.
const soakRecords = "WARDER_SOAK_RECORDS"

// A long log is written and verified in memory that does not grow with it. make test
// takes 20,000 records; make soak, which also wants the rates, a million or more.
func TestSoakALongLog(t *testing.T) {
	n, soak := 20_000, os.Getenv(soakRecords)
	if soak != "" {
		var err error
		if n, err = strconv.Atoi(soak); err != nil {
			t.Fatal(err)
		}
	}
	g := start(t, Options{})
	ctx := t.Context()
	began, cpu := time.Now(), cpuNow(t)
	for i := range n / 2 {
		id := "q" + strconv.Itoa(i)
		g.Append(ctx, g.reserved(id))
		g.Append(ctx, g.completed(id))
	}
	g.close(t)
	rate(t, "written", n, began, cpu)

	before := peak(t)
	began, cpu = time.Now(), cpuNow(t)
	rep, err := Verify(context.Background(), g.dir, VerifyOptions{})
	if err != nil || rep.Verdict != VerdictComplete || rep.Records != uint64(n) {
		t.Fatalf("%v, %+v", err, rep)
	}
	rate(t, "verified", n, began, cpu)
	grown := peak(t) - before
	t.Logf("the peak of memory grew by %d KiB, to %d KiB", grown, before+grown)
	if grown > 64<<10 {
		t.Errorf("memory grew by %d KiB over %d records", grown, n)
	}

	began, cpu = time.Now(), cpuNow(t)
	c := newChain(g.stream())
	c.find = func(kind string, _ int, _ uint64, what string) { t.Error(kind, what) }
	if _, err := c.walk(g.segment(1)[:strings.LastIndexByte(g.segment(1), '/')], false); err != nil || c.records != uint64(n) {
		t.Errorf("%v, %d records", err, c.records)
	}
	rate(t, "chain and tree alone", n, began, cpu)
	runtime.KeepAlive(g)
}

// rate tells how many a second of time, and of one core's work.
func rate(t *testing.T, what string, n int, began time.Time, cpu time.Duration) {
	t.Helper()
	wall, work := time.Since(began), cpuNow(t)-cpu
	t.Logf("%s: %d records, %.0f/s, %.0f/s of a core, %.2f us of CPU each", what, n,
		float64(n)/wall.Seconds(), float64(n)/work.Seconds(), float64(work.Nanoseconds())/1e3/float64(n))
}

func cpuNow(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peak is the most memory that the process has held, in KiB.
func peak(t *testing.T) int64 {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Maxrss
}
