package audit

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// Where short records are waited for, their blocks are written beforehand, in pieces that
// grow; a disk that cannot do it loses nothing.
func TestBlocksAreWrittenBeforehand(t *testing.T) {
	for _, outcome := range []error{nil, syscall.EIO} {
		t.Run(fmt.Sprint(outcome), func(t *testing.T) {
			fsys := &faulty{}
			g := start(t, Options{FS: fsys, SegmentSize: 1 << 20})
			fsys.set(func(_ int, op, _ string) error {
				if op == "blank" {
					return outcome
				}
				return nil
			})
			blanked := func() (n int) {
				for _, call := range fsys.calls {
					if strings.HasPrefix(call, "blank ") {
						n++
					}
				}
				return n
			}
			for i := range firstAhead {
				g.must(t, g.reserved(fmt.Sprint("q", i)))
			}
			if n := blanked(); n != 0 {
				t.Errorf("a log of few records blanked %d times", n)
			}
			var at []int
			for i := range 400 {
				before := blanked()
				g.must(t, g.reserved(fmt.Sprint("r", i)))
				if blanked() > before {
					at = append(at, i)
				}
			}
			switch {
			case outcome != nil && len(at) != 1:
				t.Errorf("tried at %v, and should give up", at)
			case outcome == nil && (len(at) < 2 || len(at) > 3 || at[0] != 0):
				t.Errorf("done at %v", at)
			}
			g.close(t)
			if rep := wantVerdict(t, g.dir, VerdictComplete); rep.Records < 400+firstAhead {
				t.Errorf("%d records", rep.Records)
			}
		})
	}
}

// What a write that failed may have left is not blanked over before it is written again,
// and what is blanked holds no line.
func TestNoLineIsBlanked(t *testing.T) {
	fsys := &faulty{}
	g := start(t, Options{FS: fsys, Durable: DurableCredentialed})
	for i := range 300 {
		if i%3 == 0 {
			g.AppendRelaxed(t.Context(), g.reserved(fmt.Sprint("w", i)))
		}
		if i%50 == 20 {
			failing := true
			fsys.set(func(_ int, op, _ string) error {
				if failing && op == "write" {
					failing = false
					return syscall.EIO
				}
				return nil
			})
			if err := g.Append(t.Context(), g.reserved(fmt.Sprint("lost", i))).Wait(t.Context()); err == nil {
				t.Error("control: a write that failed is told as done")
			}
		}
		g.must(t, g.reserved(fmt.Sprint("q", i)))
	}
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	found := map[string]bool{}
	for _, r := range records(t, g.dir, Filter{}) {
		if r.Request != nil {
			found[r.Request.ID] = true
		}
	}
	for i := range 300 {
		if !found[fmt.Sprint("q", i)] {
			t.Errorf("q%d is not in the log", i)
		}
	}
}
