package proxy

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"warder/policies"
)

// A panic in a step, an upstream that resets and a client that leaves end one
// exchange, with a record, and nothing else.
func TestOneExchangeFails_F099(t *testing.T) {
	var hurt atomic.Bool
	reset := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/reset":
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			if tcp, ok := c.(interface{ SetLinger(int) error }); ok {
				tcp.SetLinger(0)
			}
			c.Close()
		case "/half":
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		default:
			io.WriteString(w, "hello")
		}
	}
	broken := policy(func(in *policies.Input) policies.Decision {
		if hurt.Load() {
			panic("a step")
		}
		return byHost(in)
	})
	onWays(t, reset, []setting{broken}, func(t *testing.T, w way, e *env) {
		hurt.Store(true)
		for range 2 {
			r, rec, sent := e.probe(w, "plain.allowed.test", attempt{method: "GET", target: "/"})
			if r.Response == nil || r.StatusCode != 500 || r.reason() != reasonInternalError || rec.Reason != reasonInternalError || rec.Verdict != verdictError || sent != "" {
				t.Errorf("%v %q, record %s", r.Response, r.body, rec.Reason)
			}
		}
		if n := e.p.panics.Load(); n != 2 {
			t.Errorf("%d panics counted", n)
		}
		hurt.Store(false)
		r, rec, _ := e.probe(w, "plain.allowed.test", attempt{method: "GET", target: "/reset"})
		if r.Response == nil || r.StatusCode != 502 || rec.Reason != "upstream-protocol" {
			t.Errorf("reset: %v, record %s", r.Response, rec.Reason)
		}
		_, rec, _ = e.probe(w, "plain.allowed.test", attempt{method: "GET", target: "/half"})
		if rec.Reason != "upstream-protocol" || rec.Verdict != verdictError {
			t.Errorf("half: record %s", rec.Reason)
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/control"})
	})
}

// Panics on goroutines that are not a handler's: while the body is sent, while the
// answer is passed on, in a tunnel.
func TestPanicsOfOtherGoroutines_F099(t *testing.T) {
	t.Run("tunnel", func(t *testing.T) {
		e := newEnv(t, nil, byConnection(policies.Tunnel))
		e.run.dialer.used = func(context.Context, string, override) { panic("dial") }
		c, s := pair(t)
		send(t, c, "\x00")
		e.run.ServeConn(s, dest("plain.allowed.test", 443))
		io.Copy(io.Discard, c)
		if rec := e.tape.completed(t, 1)[0]; rec.Verdict != verdictError || rec.Reason != reasonInternalError {
			t.Errorf("record %+v", rec)
		}
	})
	t.Run("certificate", func(t *testing.T) {
		e := newEnv(t, nil)
		now := e.run.minter.clock
		e.run.minter.clock = func() time.Time { panic("clock") }
		c, s := pair(t)
		e.run.ServeConn(s, dest("plain.allowed.test", 443))
		if err := tls.Client(c, e.clientTLS("plain.allowed.test")).Handshake(); err == nil {
			t.Error("the handshake was completed")
		}
		if rec := e.tape.completed(t, 1)[0]; rec.Verdict == verdictAllow || rec.Request.Host != "plain.allowed.test" {
			t.Errorf("record %+v", rec)
		}
		if e.p.panics.Load() == 0 {
			t.Error("not counted")
		}
		e.run.minter.clock = now
		if r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test")); r.StatusCode != 200 { // it lives on
			t.Error(r.Status)
		}
	})
}

// What a run can make us remember has an end: names, denials, certificates.
func TestManyNamesInBoundedMemory_F103(t *testing.T) {
	e := newEnv(t, nil, withLimits(Limits{MaxDenials: 50}), policy(func(in *policies.Input) policies.Decision {
		return policies.Decision{Verdict: policies.Deny, Reason: reasonNoRule}
	}))
	const names = 3000
	c := e.explicit()
	go func() {
		for i := range names {
			fmt.Fprintf(c, "GET http://%d.evil.test/ HTTP/1.1\r\nHost: %d.evil.test\r\n\r\n", i, i)
		}
		c.(*net.TCPConn).CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, c); err != nil || n < names*100 {
		t.Fatalf("%d bytes, %v", n, err)
	}
	e.tape.completed(t, names)
	for i := range leafsPerRun + 100 { // a handshake for each
		if _, err := e.run.minter.leaf(fmt.Sprintf("%d.evil.test", i)); err != nil {
			t.Fatal(err)
		}
	}
	e.run.mu.Lock()
	defer e.run.mu.Unlock()
	if len(e.run.denials) != 50 || len(e.run.transports)+len(e.run.grpc)+len(e.run.overrides)+len(e.run.used) != 0 || e.run.minter.lru.Len() > leafsPerRun {
		t.Errorf("%d denials, %d pools, %d overrides, %d counts, %d certificates", len(e.run.denials), len(e.run.transports), len(e.run.overrides), len(e.run.used), e.run.minter.lru.Len())
	}
}

// A small coded answer that becomes a huge one is searched as it comes.
func TestABombIsStreamed_F103(t *testing.T) {
	const size = 24 << 20
	e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.CopyN(z, zeros{}, size)
		io.WriteString(z, canary)
		z.Close()
	})
	c := e.tls("api.allowed.test")
	c.SetDeadline(time.Time{}) // it takes as long as the machine needs
	send(t, c, "GET / HTTP/1.1\r\nHost: api.allowed.test\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n")
	before := liveHeap()
	buf := make([]byte, 1<<20)
	total, most, tail := 0, uint64(0), ""
	for i := 0; ; i++ {
		n, err := c.Read(buf)
		total += n
		tail = (tail + string(buf[max(0, n-200):n]))
		tail = tail[max(0, len(tail)-200):]
		if i%64 == 0 {
			most = max(most, liveHeap())
		}
		if err != nil {
			break
		}
	}
	if total < size || strings.Contains(tail, canary) || !strings.Contains(tail, "****") {
		t.Errorf("%d bytes, the end %q", total, tail)
	}
	if most > before+12<<20 {
		t.Errorf("%d bytes of memory, %d before", most, before)
	}
}

// liveHeap is what a collection found in use: garbage that is made since does not
// count, however long it takes until we look.
func liveHeap() uint64 {
	runtime.GC()
	sample := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}

// An answer that takes longer than every other limit arrives; only its own limit
// ends it.
func TestSlowAnswers_F104(t *testing.T) {
	short := withLimits(Limits{
		FirstByteTimeout: time.Second, HandshakeTimeout: 5 * time.Second, HeaderTimeout: time.Second,
		IdleTimeout: 100 * time.Millisecond, DialTimeout: 5 * time.Second, UpstreamHeaderTimeout: time.Minute,
	})
	slow := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		time.Sleep(1200 * time.Millisecond) // longer than the limits that must not count
		io.WriteString(w, "at last")
	}
	onWays(t, slow, []setting{short}, func(t *testing.T, w way, e *env) {
		if w.name != "plain" && w.name != "intercepted" && w.name != "HTTP/2" {
			return // the others end in these
		}
		if r, rec, _ := e.probe(w, "plain.allowed.test", attempt{method: "POST", target: "/", body: "x"}); r.Response == nil || r.StatusCode != 200 || r.body != "at last" || rec.Reason != "" {
			t.Errorf("%v %q, record %s", r.Response, r.body, rec.Reason)
		}
	})
	onWays(t, slow, []setting{withLimits(Limits{UpstreamHeaderTimeout: 50 * time.Millisecond})}, func(t *testing.T, w way, e *env) {
		if r, rec, _ := e.probe(w, "plain.allowed.test", attempt{method: "POST", target: "/", body: "x"}); r.Response == nil || r.StatusCode != 504 || rec.Reason != "upstream-timeout" {
			t.Errorf("%v %q, record %s", r.Response, r.body, rec.Reason)
		}
	})
}

// No question of DNS before an allow, by any way.
func TestNoQuestionForADeniedName_F108(t *testing.T) {
	onEveryWay(t, nil, func(t *testing.T, w way, e *env) {
		var asked atomic.Int64
		e.run.dialer.up.hosts = map[string]override{}
		e.run.dialer.lookup = func(context.Context, string) ([]netip.Addr, error) {
			asked.Add(1)
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
		e.denied(w, strings.Repeat("0a", 30)+".evil.test", attempt{method: "GET", target: "/"}, 403, reasonNoRule)
		if n := asked.Load(); n != 0 {
			t.Errorf("%d questions", n)
		}
		e.probe(w, "plain.allowed.test", attempt{method: "GET", target: "/"}) // positive control
		if asked.Load() == 0 {
			t.Error("the allowed name was not asked for either")
		}
	})
}

// Trailers go both ways, but for those that would route or authenticate.
func TestTrailersBothWays_F061(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-T, Set-Cookie")
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d %q %q", n, r.Trailer.Get("X-Sum"), r.Trailer.Get("Authorization"))
		w.Header().Set("X-T", "end")
	}
	for _, w := range ways() {
		if w.h2 {
			continue // TestHTTP2StreamsAndTrailers
		}
		t.Run(w.name, func(t *testing.T) {
			var set []setting
			target := "/"
			if !w.tls {
				set = append(set, plainUpstream)
			}
			if w.name == "absolute form" {
				target = "http://plain.allowed.test/"
			}
			e := newEnv(t, h, set...)
			r := ask(t, e.open(w, "plain.allowed.test"), "POST "+target+" HTTP/1.1\r\nHost: plain.allowed.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Authorization\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 42\r\nAuthorization: stolen\r\n\r\n")
			if r.body != `3 "42" ""` || r.Trailer.Get("X-T") != "end" {
				t.Errorf("%q %v", r.body, r.Trailer)
			}
			if strings.Contains(e.up.bytes(), "stolen") {
				t.Errorf("upstream saw %q", e.up.bytes())
			}
		})
	}
}
