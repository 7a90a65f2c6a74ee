package audit

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"warder/internal/identity"
)

func benchLog(b *testing.B) *rig {
	b.Helper()
	g := &rig{dir: filepath.Join(b.TempDir(), "audit"), run: &identity.Run{ID: identity.NewRunID()}}
	l, err := Open(b.Context(), Options{Dir: g.dir})
	if err != nil {
		b.Fatal(err)
	}
	g.Log = l
	b.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return g
}

// BenchmarkAppend is the time of a record that nobody waits for.
func BenchmarkAppend(b *testing.B) {
	g := benchLog(b)
	r := g.completed("q")
	var last *Future
	b.ReportAllocs()
	for b.Loop() {
		last = g.Append(b.Context(), r)
	}
	if err := last.Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkDurable is the time of a record that each of n callers waits for.
func BenchmarkDurable(b *testing.B) {
	for _, callers := range []int{1, 32, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			g := benchLog(b)
			r := g.completed("q")
			b.SetParallelism(max(callers/2, 1)) // times GOMAXPROCS
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := g.Append(b.Context(), r).Wait(b.Context()); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkVerify is the time of a record when a log is verified.
func BenchmarkVerify(b *testing.B) {
	g := benchLog(b)
	r := g.completed("q")
	const records = 20_000
	for range records - 1 {
		g.Append(b.Context(), r)
	}
	if err := g.Append(b.Context(), r).Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		rep, err := Verify(b.Context(), g.dir, VerifyOptions{})
		if err != nil || rep.Verdict != VerdictComplete || rep.Records != records {
			b.Fatalf("%v, %+v", err, rep)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*records), "ns/record")
}

// BenchmarkChain is the time of a record when only its chain and tree are.
func BenchmarkChain(b *testing.B) {
	prev := firstPrev
	line := appendLine(nil, frame{id: identity.AppendID(nil), at: lineTime, stream: identity.NewID()}, &prev, mustBody(b))
	c := newChain("s")
	c.find = func(string, int, uint64, string) {}
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		c.take(line[:len(line)-1])
	}
}

func mustBody(b *testing.B) []byte {
	b.Helper()
	g := &rig{run: &identity.Run{ID: identity.NewRunID()}}
	body, err := encodeBody(g.completed("q"))
	if err != nil {
		b.Fatal(err)
	}
	return body
}
