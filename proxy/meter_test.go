package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warder/internal/identity"
	"warder/policies"
)

// meterClock tells a meter the time. A wait does not take any: it sets the clock.
type meterClock struct {
	mu    sync.Mutex
	began time.Time
	at    time.Time
	hold  chan struct{} // not nil: a wait lasts until it is closed, or its ctx ends
	held  chan struct{} // gets a value when a wait begins
}

func (c *meterClock) tell(m *meter) {
	c.began = time.Unix(1e9, 0)
	c.at, m.now, m.wait = c.began, c.now, c.wait
}

func (c *meterClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *meterClock) wait(ctx context.Context, until time.Time) {
	if c.hold != nil {
		c.held <- struct{}{}
		select {
		case <-c.hold:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.Before(until) {
		c.at = until
	}
}

// took is what the waits add up to.
func (c *meterClock) took() time.Duration { return c.now().Sub(c.began) }

func TestMeterHoldsToTheRate(t *testing.T) {
	m, clock := meter{rate: 1000}, &meterClock{}
	clock.tell(&m)
	for range 100 {
		m.pass(t.Context(), 100)
	}
	if took := clock.took(); took != 10*time.Second-meterBurst {
		t.Errorf("10 000 bytes at 1000 a second took %v", took)
	}
	clock.at = clock.at.Add(time.Hour) // a pause saves up one burst and no more
	clock.began = clock.at
	m.pass(t.Context(), 250)
	if took := clock.took(); took != 0 {
		t.Errorf("a burst after a pause took %v", took)
	}
	m.pass(t.Context(), 1000)
	if took := clock.took(); took != time.Second {
		t.Errorf("and what came after it %v", took)
	}
	var free meter
	free.pass(t.Context(), 1<<40)
	if !free.next.IsZero() {
		t.Error("the zero meter counts")
	}
}

// A wait for bandwidth does not outlive what it is for.
func TestAWaitForBandwidthEndsWithItsRun(t *testing.T) {
	m := meter{rate: 1} // a byte a second, by the real clock
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	m.pass(ended, 1<<30)
	if m.next.IsZero() {
		t.Error("control: nothing was counted")
	}
}

// TestBandwidthHoldsBackBodiesAndTunnels_I9: every way for bytes to come or go is
// counted, each byte once, and waits.
func TestBandwidthHoldsBackBodiesAndTunnels_I9(t *testing.T) {
	const size, rate = 60_000, 100_000
	body := strings.Repeat("b", size)
	bytes := func(n int) time.Duration { // what n bytes take after a burst
		return time.Duration(n)*time.Second/rate - meterBurst
	}
	var conns atomic.Int64
	limits := withLimits(Limits{BytesPerSecond: rate})
	start := func(t *testing.T, h http.HandlerFunc, settings ...setting) (*env, *meterClock) {
		e, clock := newEnv(t, h, append(settings, limits)...), &meterClock{}
		clock.tell(&e.run.flow)
		return e, clock
	}
	post := "POST /up HTTP/1.1\r\nHost: plain.allowed.test\r\n"
	t.Run("answers", func(t *testing.T) {
		e, clock := start(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
		if r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test")); r.body != body {
			t.Errorf("%d bytes", len(r.body))
		}
		if took := clock.took(); took != bytes(size) {
			t.Errorf("took %v, want %v", took, bytes(size))
		}
		metrics := fetch(t, e.admin(func() error { return nil }), "/metrics", "localhost").body
		if !strings.Contains(metrics, "warder_bandwidth_wait_seconds_total 0.35\n") {
			t.Errorf("metrics say %q", metrics)
		}
	})
	for kind, request := range map[string]string{
		"a body": post + "Content-Length: 60000\r\n\r\n" + body,
		"chunks": post + "Transfer-Encoding: chunked\r\n\r\nEA60\r\n" + body + "\r\n0\r\n\r\n",
	} {
		t.Run(kind, func(t *testing.T) {
			e, clock := start(t, func(w http.ResponseWriter, r *http.Request) {
				if n, err := io.Copy(io.Discard, r.Body); err != nil || n != size {
					t.Errorf("%d bytes arrived: %v", n, err)
				}
				w.WriteHeader(http.StatusNoContent)
			})
			if r := ask(t, e.tls("plain.allowed.test"), request); r.StatusCode != http.StatusNoContent {
				t.Errorf("status %d", r.StatusCode)
			}
			if took := clock.took(); took != bytes(size) {
				t.Errorf("took %v, want %v", took, bytes(size))
			}
		})
	}
	t.Run("an upgraded connection, both ways", func(t *testing.T) {
		e, clock := start(t, wsUpstream(t), plainUpstream)
		c := e.plain("plain.allowed.test")
		send(t, c, "GET /ws HTTP/1.1\r\nHost: plain.allowed.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
		go io.WriteString(c, body)
		if _, err := io.ReadFull(c, make([]byte, size)); err != nil { // more than the echo's first half
			t.Fatal(err)
		}
		c.Close()
		rec := e.tape.completed(t, 1)[0]
		if n := int(rec.Request.Bytes + rec.Response.Bytes); n < size || clock.took() < bytes(n) {
			t.Errorf("%d bytes took %v, want %v", n, clock.took(), bytes(n))
		}
	})
	t.Run("a tunnel, both ways", func(t *testing.T) {
		e, clock := start(t, nil, byConnection(policies.Tunnel), rawServer(t, &conns))
		c, s := pair(t)
		e.run.ServeConn(s, dest("plain.allowed.test", 25))
		go func() {
			io.WriteString(c, body)
			c.(*net.TCPConn).CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if err != nil || len(got) != size+len("220 ready\r\nbye") {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if took := clock.took(); took != bytes(size+len(got)) {
			t.Errorf("took %v, want %v", took, bytes(size+len(got)))
		}
	})
}

// TestBandwidthOfARunIsItsOwn_I9: while one run waits for its bandwidth, with no end
// in sight, another one is served without a wait.
func TestBandwidthOfARunIsItsOwn_I9(t *testing.T) {
	body := strings.Repeat("b", 60_000)
	e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }, withLimits(Limits{BytesPerSecond: 100_000}))
	waits := &meterClock{hold: make(chan struct{}), held: make(chan struct{}, 100)}
	waits.tell(&e.run.flow)
	greedy := e.tls("plain.allowed.test")
	send(t, greedy, get("/", "plain.allowed.test"))
	<-waits.held

	other, err := e.p.NewRun(RunOptions{Run: identity.Run{ID: identity.NewRunID()}})
	if err != nil {
		t.Fatal(err)
	}
	if other.flow.rate != 100_000 {
		t.Errorf("the other run's rate is %v", other.flow.rate)
	}
	clock, mine := &meterClock{}, e.run
	clock.tell(&other.flow)
	e.run = other
	if r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test")); r.body != body {
		t.Errorf("%d bytes", len(r.body))
	}
	e.run = mine
	if took := clock.took(); took != 350*time.Millisecond {
		t.Errorf("60 000 bytes beside a run that waits took %v", took)
	}
	close(waits.hold)
	if n, err := io.Copy(io.Discard, io.LimitReader(greedy, 60_000)); n != 60_000 {
		t.Errorf("control: the run that waited got %d bytes, %v", n, err)
	}
}
