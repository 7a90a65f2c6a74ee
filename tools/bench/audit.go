package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"warder/audit"
	"warder/internal/identity"
)

// auditCell is the median of one way to keep records, with one number of writers.
type auditCell struct {
	Name    string  `json:"name"`
	Writers int     `json:"writers"`
	RPS     float64 `json:"records_per_second"`
	CPUUS   float64 `json:"cpu_us_per_record,omitempty"` // user and system; 0: not measured
	P50US   float64 `json:"p50_us"`
	P99US   float64 `json:"p99_us"`
}

const (
	auditAsync   = "warder, nobody waits"
	auditShort   = "the same, a record of 270 bytes"
	auditHashes  = "SHA-256 of a request's line, twice"
	auditDurable = "warder, durable"
	auditEach    = "one fdatasync a record"
	auditSQLite  = "SQLite, WAL, FULL, batched"
	auditBare    = "bare fdatasync of 4 KiB"
)

// auditWay measures one cell once.
type auditWay struct {
	name    string
	writers int
	measure func(o options, dir string, writers int) (auditCell, error)
}

func benchAudit(o options) ([]auditCell, error) {
	ways := []auditWay{
		{auditAsync, 1, measureAsync(auditRecord())},
		{auditShort, 1, measureAsync(shortRecord())},
		{auditHashes, 1, measureHashes},
		{auditDurable, 1, measureDurable},
		{auditDurable, 32, measureDurable},
		{auditDurable, 256, measureDurable},
		{auditEach, 32, measureEach},
		{auditBare, 1, measureBare},
	}
	if o.sqlite != "" {
		ways = append(ways, auditWay{auditSQLite, 32, measureSQLite})
	}
	samples := make([][]auditCell, len(ways))
	for range max(o.rounds/3, 3) {
		for i, w := range ways {
			dir, err := os.MkdirTemp(o.dir, "audit")
			if err != nil {
				return nil, err
			}
			c, err := w.measure(o, dir, w.writers)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			c.Name, c.Writers = w.name, w.writers
			samples[i] = append(samples[i], c)
			if err := os.RemoveAll(dir); err != nil {
				return nil, err
			}
		}
	}
	cells := make([]auditCell, len(ways))
	for i, s := range samples {
		middle := func(of func(auditCell) float64) float64 {
			v := make([]float64, len(s))
			for i := range s {
				v[i] = of(s[i])
			}
			slices.Sort(v)
			return v[len(v)/2]
		}
		cells[i] = auditCell{
			Name: s[0].Name, Writers: s[0].Writers,
			RPS: middle(func(c auditCell) float64 { return c.RPS }), CPUUS: middle(func(c auditCell) float64 { return c.CPUUS }),
			P50US: middle(func(c auditCell) float64 { return c.P50US }), P99US: middle(func(c auditCell) float64 { return c.P99US }),
		}
	}
	return cells, nil
}

// shortRecord is 270 bytes in JSON without what chains it: a refused request's.
func shortRecord() *audit.Record {
	return &audit.Record{
		Event: audit.EventRequest, Stage: audit.StageCompleted, Run: &identity.Run{ID: identity.NewRunID()},
		Verdict: "deny", Reason: "no-rule", Mode: "refused",
		Request: &audit.Request{ID: identity.NewID(), Method: "GET", Host: "api.example.com", Port: 443},
	}
}

// auditRecord is an ordinary request's, about 1000 bytes as a line: 700 of its own, and
// what makes it one of a chain.
func auditRecord() *audit.Record {
	return &audit.Record{
		Event: audit.EventRequest, Stage: audit.StageCompleted, Run: &identity.Run{ID: identity.NewRunID(), Task: "bench", Agent: "bench"},
		Verdict: "allow", Rule: "github-read", Mode: "intercepted",
		Request: &audit.Request{
			ID: identity.NewID(), Method: "GET", Scheme: "https", Host: "api.allowed.test", Port: 443, Path: "/repos/acme/x/issues",
			QueryKeys: []string{"page"}, Protocol: "http/1.1", HeaderNames: []string{"accept", "user-agent"}, Attempts: 1,
		},
		Policy:   &audit.Policy{Revision: "0123456789ab", Digest: "sha256:0123456789ab", DecisionID: identity.NewID(), Mode: "enforce"},
		Response: &audit.Response{Status: 200, Bytes: 1234}, Timing: &audit.Timing{Decide: 21, Grant: 3, Upstream: 41000, Total: 41200},
	}
}

func selfCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func measureAsync(r *audit.Record) func(options, string, int) (auditCell, error) {
	return func(o options, dir string, _ int) (auditCell, error) {
		ctx := context.Background()
		l, err := audit.Open(ctx, audit.Options{Dir: filepath.Join(dir, "log")})
		if err != nil {
			return auditCell{}, err
		}
		n := 0
		began, cpu := time.Now(), selfCPU()
		var last *audit.Future
		for time.Since(began) < o.duration {
			for range 256 {
				last = l.Append(ctx, r)
			}
			n += 256
		}
		if err := last.Wait(ctx); err != nil {
			return auditCell{}, err
		}
		c := auditCell{RPS: float64(n) / time.Since(began).Seconds(), CPUUS: float64((selfCPU() - cpu).Nanoseconds()) / 1e3 / float64(n)}
		return c, l.Close(ctx)
	}
}

// measureHashes is the part of a record that its format asks for: a line is hashed for
// the chain and for the tree, with the machine's own instructions.
func measureHashes(o options, _ string, _ int) (auditCell, error) {
	line := make([]byte, 1000)
	n := 0
	began, cpu := time.Now(), selfCPU()
	for time.Since(began) < o.duration {
		for range 256 {
			for range 2 {
				sum := sha256.Sum256(line)
				copy(line, sum[:])
			}
		}
		n += 256
	}
	return auditCell{RPS: float64(n) / time.Since(began).Seconds(), CPUUS: float64((selfCPU() - cpu).Nanoseconds()) / 1e3 / float64(n)}, nil
}

func measureDurable(o options, dir string, writers int) (auditCell, error) {
	ctx := context.Background()
	l, err := audit.Open(ctx, audit.Options{Dir: filepath.Join(dir, "log")})
	if err != nil {
		return auditCell{}, err
	}
	r := auditRecord()
	c, err := measureWriters(o.duration, writers, func() error { return l.Append(ctx, r).Wait(ctx) })
	if err != nil {
		return c, err
	}
	return c, l.Close(ctx)
}

// measureEach writes and syncs every record by itself, as a simple log does.
func measureEach(o options, dir string, writers int) (auditCell, error) {
	f, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return auditCell{}, err
	}
	defer f.Close()
	line := slices.Repeat([]byte("r"), 700)
	var mu sync.Mutex
	return measureWriters(o.duration, writers, func() error {
		mu.Lock()
		defer mu.Unlock()
		if _, err := f.Write(line); err != nil {
			return err
		}
		return syscall.Fdatasync(int(f.Fd()))
	})
}

// measureBare is what the disk takes for one group.
func measureBare(o options, dir string, _ int) (auditCell, error) {
	f, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return auditCell{}, err
	}
	defer f.Close()
	const size = 64 << 20
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		return auditCell{}, err
	}
	block := make([]byte, 4096)
	at := int64(0)
	return measureWriters(o.duration, 1, func() error {
		if _, err := f.WriteAt(block, at); err != nil {
			return err
		}
		at = (at + 4096) % size
		return syscall.Fdatasync(int(f.Fd()))
	})
}

func measureSQLite(o options, dir string, writers int) (auditCell, error) {
	cmd := exec.Command(o.sqlite, "-dir", dir, "-writers", strconv.Itoa(writers), "-duration", o.duration.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return auditCell{}, err
	}
	var c auditCell
	return c, json.Unmarshal(out, &c)
}

// measureWriters has each writer do it again and again.
func measureWriters(d time.Duration, writers int, do func() error) (auditCell, error) {
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	var wg sync.WaitGroup
	began, cpu := time.Now(), selfCPU()
	for range writers {
		wg.Go(func() {
			var own []time.Duration
			for time.Since(began) < d {
				from := time.Now()
				if err := do(); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					return
				}
				own = append(own, time.Since(from))
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	if failed != nil || len(all) == 0 {
		return auditCell{}, fmt.Errorf("no record was written: %w", failed)
	}
	c := auditCell{RPS: float64(len(all)) / time.Since(began).Seconds(), CPUUS: float64((selfCPU() - cpu).Nanoseconds()) / 1e3 / float64(len(all))}
	slices.Sort(all)
	c.P50US, c.P99US = float64(all[len(all)/2].Microseconds()), float64(all[len(all)*99/100].Microseconds())
	return c, nil
}

func auditRatios(cells []auditCell) []ratio {
	find := func(name string, writers int) auditCell {
		for _, c := range cells {
			if c.Name == name && c.Writers == writers {
				return c
			}
		}
		return auditCell{}
	}
	durable := find(auditDurable, 32)
	if durable.RPS == 0 {
		return nil
	}
	out := []ratio{
		bound("audit: CPU us of a request's record that nobody waits for", find(auditAsync, 1).CPUUS, "<=", 2),
		bound("audit: the same, a record of 270 bytes", find(auditShort, 1).CPUUS, "<=", 2),
		bound("audit: CPU us of the two hashes of a request's line", find(auditHashes, 1).CPUUS, "", 0),
		bound("audit: thousand durable records/s, 32 writers", durable.RPS/1e3, ">=", 20),
		bound("audit: p99 of a durable record, 32 writers, to a bare fdatasync's", durable.P99US/find(auditBare, 1).P99US, "<=", 2),
		bound("audit: durable records/s, 32 writers, to one fdatasync a record", durable.RPS/find(auditEach, 32).RPS, "", 0),
	}
	if s := find(auditSQLite, 32); s.RPS > 0 {
		out = append(out, bound("audit: durable records/s, 32 writers, to SQLite", durable.RPS/s.RPS, "", 0))
	}
	return out
}
