package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warder/audit"
	"warder/broker"
	"warder/internal/identity"
	"warder/policies"
)

// panicker panics where it is told to.
type panicker struct{ Granter }

func (panicker) Grant(context.Context, string, broker.Target) (*broker.Grant, error) {
	panic("grant " + canary[:6])
}

func TestPanicsAreAnsweredRecordedAndSurvived_I10_F099(t *testing.T) {
	for name, c := range map[string]struct {
		set    setting
		status int
	}{
		"policy":  {policy(func(*policies.Input) policies.Decision { panic("policy") }), 500},
		"granter": {func(_ *env, _ *Options, ro *RunOptions) { ro.Granter = panicker{} }, 500},
		"lookup":  {nil, 500},
	} {
		t.Run(name, func(t *testing.T) {
			set := []setting{}
			if c.set != nil {
				set = append(set, c.set)
			}
			e := newEnv(t, nil, set...)
			if name == "lookup" { // on the transport's own goroutine
				e.run.dialer.used = func(context.Context, string, override) { panic("lookup") }
			}
			for range 2 {
				r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test"))
				if r.StatusCode != c.status || r.reason() != "internal-error" {
					t.Errorf("answer %d %q", r.StatusCode, r.body)
				}
			}
			for _, rec := range e.tape.completed(t, 2) {
				if rec.Reason != "internal-error" || rec.Verdict != "error" {
					t.Errorf("record %s", dump(e.tape.recs))
				}
			}
			if strings.Contains(e.up.bytes(), "GET") {
				t.Error("something was forwarded")
			}
			if n := e.p.panics.Load(); n != 2 {
				t.Errorf("%d panics counted", n)
			}
		})
	}
}

type brokenGranter struct{ err error }

func (b brokenGranter) Grant(context.Context, string, broker.Target) (*broker.Grant, error) {
	return nil, b.err
}

func TestNoCredentialNoRequest_I3(t *testing.T) {
	for name, c := range map[string]struct {
		g      Granter
		status int
		reason string
		after  string
	}{
		"unavailable": {brokenGranter{&broker.Error{Reason: "credential-unavailable", RetryAfter: 1500 * time.Millisecond, Cause: errors.New("vault secret/path")}}, 503, "credential-unavailable", "2"},
		"binding":     {brokenGranter{&broker.Error{Reason: "credential-binding"}}, 403, "credential-binding", ""},
		"other error": {brokenGranter{io.EOF}, 503, "credential-unavailable", "5"},
		"no grant":    {brokenGranter{}, 503, "credential-unavailable", "5"},
		"odd reason":  {brokenGranter{&broker.Error{Reason: "allow"}}, 503, "credential-unavailable", "5"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil, func(_ *env, _ *Options, ro *RunOptions) { ro.Granter = c.g })
			r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test"))
			if r.StatusCode != c.status || r.reason() != c.reason || r.Header.Get("Retry-After") != c.after || strings.Contains(r.body, "vault secret") {
				t.Errorf("answer %d %v %q", r.StatusCode, r.Header, r.body)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != c.reason || rec.Credential != nil || e.tape.count("reserved") != 1 {
				t.Errorf("record %s", dump(e.tape.recs))
			}
			e.sawNothing(t)
		})
	}
	t.Run("no granter", func(t *testing.T) {
		e := newEnv(t, nil)
		e.run.granter = nil
		if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.reason() != "credential-unavailable" {
			t.Errorf("answer %q", r.body)
		}
	})
}

// order wraps the log and notes what came before what.
type failing struct {
	Recorder
	fail atomic.Bool
	done *audit.Log // closed: its futures fail
}

func (f *failing) Append(ctx context.Context, r *audit.Record) *audit.Future {
	if f.fail.Load() {
		return f.done.Append(ctx, r)
	}
	return f.Recorder.Append(ctx, r)
}

func TestNothingLeavesWithoutARecord_I6(t *testing.T) {
	dead, err := audit.Open(t.Context(), audit.Options{Dir: t.TempDir() + "/a", SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var f *failing
	e := newEnv(t, nil, func(_ *env, o *Options, _ *RunOptions) {
		f = &failing{Recorder: o.Audit, done: dead}
		o.Audit = f
	})
	f.fail.Store(true)
	for _, host := range []string{"plain.allowed.test", "api.allowed.test"} {
		r := ask(t, e.tls(host), get("/", host))
		if r.StatusCode != 503 || r.reason() != "audit-unavailable" || r.Header.Get("Retry-After") == "" {
			t.Errorf("answer %d %q", r.StatusCode, r.body)
		}
	}
	f.fail.Store(false)
	e.sawNothing(t)
	e.run.mu.Lock()
	e.run.last = nil // of the closed log
	e.run.mu.Unlock()
}

func TestReservationStandsBeforeTheFirstByte_I6(t *testing.T) {
	var e *env
	seen := make(chan int, 1)
	e = newEnv(t, func(w http.ResponseWriter, _ *http.Request) { seen <- e.tape.count("reserved") })
	ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test"))
	if n := <-seen; n != 1 {
		t.Errorf("%d reservations when the upstream was reached", n)
	}
}

func TestSilenceAndStrangersAreRecorded_F063_F159(t *testing.T) {
	short := withLimits(Limits{FirstByteTimeout: 50 * time.Millisecond, HandshakeTimeout: 100 * time.Millisecond, HeaderTimeout: 100 * time.Millisecond, IdleTimeout: 50 * time.Millisecond})
	for name, c := range map[string]struct {
		do     func(*testing.T, *env, net.Conn)
		reason string
	}{
		"silence":          {func(*testing.T, *env, net.Conn) {}, "not-tls"},
		"closed at once":   {func(_ *testing.T, _ *env, c net.Conn) { c.Close() }, "bad-request"},
		"binary":           {func(t *testing.T, _ *env, c net.Conn) { send(t, c, "\x00\x01\x02") }, "not-tls"},
		"SSH":              {func(t *testing.T, _ *env, c net.Conn) { send(t, c, "SSH-2.0-x\r\n\r\n") }, "bad-request"},
		"half a head":      {func(t *testing.T, _ *env, c net.Conn) { send(t, c, "GET /half HTTP/1.1\r\nHost: x") }, "bad-request"},
		"half a handshake": {func(t *testing.T, _ *env, c net.Conn) { send(t, c, "\x16\x03\x01\x02\x00\x01") }, "not-tls"},
		"broken handshake": {func(t *testing.T, _ *env, c net.Conn) { send(t, c, "\x16\x03\x01\x00\x05hello") }, "bad-request"},
		"CA not trusted": {func(_ *testing.T, _ *env, c net.Conn) {
			tls.Client(c, &tls.Config{ServerName: "api.allowed.test", RootCAs: x509.NewCertPool()}).Handshake()
		}, "bad-request"},
		"handshake, then quiet": {func(t *testing.T, e *env, c net.Conn) { tls.Client(c, e.clientTLS("api.allowed.test")).Handshake() }, "bad-request"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil, short)
			conn, srv := pair(t)
			e.run.ServeConn(srv, dest("api.allowed.test", 443))
			c.do(t, e, conn)
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != c.reason || rec.Mode != "refused" || rec.Request.Host != "api.allowed.test" || rec.Request.Port != 443 {
				t.Errorf("record %s", dump(e.tape.recs))
			}
			io.Copy(io.Discard, conn) // it is closed
		})
	}
}

func TestEarlyBytesWithCONNECT_F063(t *testing.T) {
	e := newEnv(t, nil)
	pr, pw := net.Pipe()
	defer pr.Close()
	go tls.Client(pw, e.clientTLS("api.allowed.test")).Handshake()
	hello := make([]byte, 16<<10)
	n, err := pr.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	c := e.explicit()
	send(t, c, "CONNECT api.allowed.test:443 HTTP/1.1\r\nHost: api.allowed.test:443\r\n\r\n"+string(hello[:n]))
	br := bufio.NewReader(c)
	if resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v %v", resp, err)
	}
	if b, err := br.Peek(1); err != nil || b[0] != 0x16 {
		t.Errorf("no server hello: %x %v", b, err)
	}
	// Clear text inside CONNECT, sent along.
	e = newEnv(t, nil, plainUpstream)
	c = e.explicit()
	send(t, c, "CONNECT plain.allowed.test:80 HTTP/1.1\r\nHost: plain.allowed.test:80\r\n\r\n"+get("/", "plain.allowed.test"))
	br = bufio.NewReader(c)
	http.ReadResponse(br, &http.Request{Method: "CONNECT"})
	if r := readReply(t, br, "GET"); r.StatusCode != 200 || r.body != "hello" {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
	if rec := e.tape.completed(t, 1)[0]; rec.Mode != "plain" || rec.Request.Port != 80 {
		t.Errorf("record %s", dump(e.tape.recs))
	}
}

func TestTooManyConnections_I9_F107(t *testing.T) {
	e := newEnv(t, nil, withLimits(Limits{MaxConnsPerRun: 2}))
	other, err := e.p.NewRun(RunOptions{Run: identity.Run{ID: identity.NewRunID()}})
	if err != nil {
		t.Fatal(err)
	}
	a, b := e.tls("plain.allowed.test"), e.tls("plain.allowed.test")
	c, s := pair(t)
	e.run.ServeConn(s, dest("plain.allowed.test", 443))
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a third connection: %v", err)
	}
	if rec := e.tape.completed(t, 1)[0]; rec.Reason != "too-many" {
		t.Errorf("record %s", dump(e.tape.recs))
	}
	mine := e.run
	e.run = other // another run is not touched
	if r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test")); r.StatusCode != 200 {
		t.Errorf("answer %d", r.StatusCode)
	}
	e.run = mine
	a.Close()
	e.tape.completed(t, 3)
	ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test"))
	b.Close()
}

func TestReservedName(t *testing.T) {
	e := newEnv(t, nil)
	ask(t, e.tls("evil.test"), get("/x", "evil.test"))
	c := e.plain(reservedHost)
	br := bufio.NewReader(c)
	on := func(method, path string) reply {
		send(t, c, strings.Replace(get(path, reservedHost), "GET", method, 1))
		return readReply(t, br, method)
	}
	var doc struct {
		Run     string
		CA      string
		Denials []Denial
	}
	if r := on("GET", "/"); json.Unmarshal([]byte(r.body), &doc) != nil || doc.Run != e.run.identity() || doc.CA != "/ca.pem" || len(doc.Denials) != 1 || doc.Denials[0].Host != "evil.test" {
		t.Errorf("%q", r.body)
	}
	if r := on("GET", "/ca.pem"); r.body != string(e.run.CACertPEM()) || strings.Contains(r.body, "PRIVATE") {
		t.Errorf("%q", r.body)
	}
	if r := on("GET", "/denials"); !strings.Contains(r.body, `"reason":"no-rule"`) {
		t.Errorf("%q", r.body)
	}
	if r := on("HEAD", "/"); r.StatusCode != 200 || r.body != "" {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
	if r := on("GET", "/nothing"); r.StatusCode != 404 {
		t.Errorf("%d", r.StatusCode)
	}
	if r := on("POST", "/"); r.StatusCode != 405 {
		t.Errorf("%d", r.StatusCode)
	}
	e.tape.completed(t, 7)
	// By TLS and through the proxy too.
	if r := ask(t, e.tls(reservedHost), get("/denials", reservedHost)); r.StatusCode != 200 {
		t.Errorf("%d", r.StatusCode)
	}
	if r := ask(t, e.explicit(), get("http://"+reservedHost+"/ca.pem", reservedHost)); r.StatusCode != 200 {
		t.Errorf("%d", r.StatusCode)
	}
}

func TestLeafCertificates_F091_F092_F093(t *testing.T) {
	e := newEnv(t, nil)
	var wg sync.WaitGroup
	leaves := make([]*tls.Certificate, 50)
	for i := range leaves {
		wg.Go(func() { leaves[i], _ = e.run.minter.leaf("new.test") })
	}
	wg.Wait()
	for _, l := range leaves {
		if l != leaves[0] || len(l.Certificate) != 2 {
			t.Fatal("more than one certificate for one host, or no chain")
		}
	}
	cert, err := x509.ParseCertificate(leaves[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	ca := e.run.ca.cert
	if cert.NotBefore.Before(ca.NotBefore) || cert.NotAfter.After(ca.NotAfter) || cert.NotBefore.After(time.Now().Add(-30*time.Minute)) {
		t.Errorf("leaf from %v to %v", cert.NotBefore, cert.NotAfter)
	}
	again, _ := e.run.minter.leaf("other.test")
	c2, _ := x509.ParseCertificate(again.Certificate[0])
	if c2.SerialNumber.Cmp(cert.SerialNumber) == 0 {
		t.Error("equal serials")
	}
	// Replaced before it ends; the cache is bounded.
	now := time.Now()
	m := newMinter(e.run.ca, e.p.leafKey, func() time.Time { return now })
	first, _ := m.leaf("a.test")
	now = now.Add(leafLife - backdate + time.Minute)
	if second, _ := m.leaf("a.test"); second == first {
		t.Error("a leaf near its end was shown")
	}
	for i := range leafsPerRun + 10 {
		m.keep(&leaf{host: fmt.Sprint(i)})
	}
	if m.lru.Len() != leafsPerRun || len(m.byID) != leafsPerRun {
		t.Errorf("%d and %d leaves kept", m.lru.Len(), len(m.byID))
	}
	other, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(other.der, e.run.ca.der) || strings.Contains(string(other.CertPEM()), "KEY") {
		t.Error("runs share a CA, or its key is shown")
	}
}

func TestAnswersBeforeTheBodyIsRead_F105(t *testing.T) {
	for _, size := range []int{1, 100 << 10, 300 << 10, 1 << 20} {
		for _, framing := range []string{"length", "chunked"} {
			t.Run(fmt.Sprint(size, " ", framing), func(t *testing.T) {
				e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Connection", "close")
					w.WriteHeader(http.StatusRequestEntityTooLarge)
				})
				var wg sync.WaitGroup
				var answered atomic.Int64
				for range 6 {
					c := e.tls("plain.allowed.test")
					wg.Go(func() { answered.Add(sendEarly(t, c, size, framing == "chunked")) })
				}
				wg.Wait()
				e.tape.completed(t, int(answered.Load()))
				if logs := e.logs.String(); strings.Contains(logs, "panic") || strings.Contains(logs, "concurrent") {
					t.Errorf("log: %s", logs)
				}
			})
		}
	}
}

// sendEarly returns how many requests were answered.
func sendEarly(t *testing.T, c net.Conn, size int, chunked bool) int64 {
	defer c.Close()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if chunked {
			fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", size)
			io.CopyN(c, zeros{}, int64(size))
			io.WriteString(c, "\r\n0\r\n\r\n")
			return
		}
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Length: %d\r\n\r\n", size)
		io.CopyN(c, zeros{}, int64(size))
	}()
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	switch {
	case err != nil:
		t.Error(err)
		return 0
	case resp.StatusCode != 413 && resp.StatusCode != 502: // 502 when the upstream resets first
		t.Errorf("answer %d", resp.StatusCode)
	}
	io.Copy(io.Discard, resp.Body)
	if size > maxDrain || resp.StatusCode != 413 {
		return 1
	}
	<-sent // a small body is read to its end: the connection lives on
	io.WriteString(c, get("/", "plain.allowed.test"))
	if _, err := http.ReadResponse(br, nil); err != nil {
		t.Errorf("the connection did not live on: %v", err)
	}
	return 2
}

func TestManyChunksInFixedMemory_F048(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}, plainUpstream)
	c := e.plain("plain.allowed.test")
	go io.WriteString(c, "POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n"+strings.Repeat("1\r\nx\r\n", 100_000)+"0\r\n\r\n")
	if r := readReply(t, bufio.NewReader(c), "POST"); r.body != "100000" {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
	f := frame(io.MultiReader(strings.NewReader("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"), strings.NewReader(strings.Repeat("1\r\nx\r\n", 1_000_000))))
	if _, err := io.Copy(struct{ io.Writer }{io.Discard}, f); err != nil || len(f.buf) > 16<<10 {
		t.Errorf("%d bytes of memory, %v", len(f.buf), err)
	}
}

func TestNothingIsLeftOfClientsThatWentAway_F064(t *testing.T) {
	e := newEnv(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}, plainUpstream, withLimits(Limits{IdleTimeout: 200 * time.Millisecond}))
	clients := sized(t, "WARDER_SOAK_CLIENTS", 600)
	before := runtime.NumGoroutine()
	for i := range clients {
		if i%200 == 199 { // fewer than a run may have at once
			e.tape.atLeast(t, i-100)
		}
		var c net.Conn
		switch i % 3 {
		case 0: // waits for an upstream that never answers
			c = e.plain("plain.allowed.test")
			send(t, c, get("/", "plain.allowed.test"))
		case 1: // a tunnel in which nothing is said
			c = e.explicit()
			send(t, c, "CONNECT plain.allowed.test:80 HTTP/1.1\r\nHost: plain.allowed.test:80\r\n\r\n")
			http.ReadResponse(bufio.NewReader(c), &http.Request{Method: "CONNECT"})
		default: // half a request
			c = e.plain("plain.allowed.test")
			send(t, c, "POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Length: 10\r\n\r\n12345")
		}
		c.Close()
	}
	e.tape.completed(t, clients)
	e.run.mu.Lock()
	left := len(e.run.conns)
	e.run.mu.Unlock()
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before+5 || left > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, were %d; %d connections", runtime.NumGoroutine(), before, left)
		}
		runtime.Gosched()
		e.run.mu.Lock()
		left = len(e.run.conns)
		e.run.mu.Unlock()
	}
}
