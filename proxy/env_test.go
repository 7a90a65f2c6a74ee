package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/audit"
	"warder/broker"
	"warder/internal/config"
	"warder/internal/identity"
	"warder/policies"
)

const canary = "S3CR3T-CANARY-0123456789"

// tape is the real log, with a copy of what was given to it.
type tape struct {
	*audit.Log
	mu   sync.Mutex
	recs []audit.Record
	more chan struct{}
}

func (t *tape) note(r *audit.Record) {
	c := *r
	if r.Request != nil {
		q := *r.Request
		c.Request = &q
	}
	t.mu.Lock()
	t.recs = append(t.recs, c)
	close(t.more)
	t.more = make(chan struct{})
	t.mu.Unlock()
}

func (t *tape) Append(ctx context.Context, r *audit.Record) *audit.Future {
	t.note(r)
	return t.Log.Append(ctx, r)
}

func (t *tape) AppendRelaxed(ctx context.Context, r *audit.Record) *audit.Future {
	t.note(r)
	return t.Log.AppendRelaxed(ctx, r)
}

func (t *tape) AppendBehind(ctx context.Context, r *audit.Record) *audit.Future {
	t.note(r)
	return t.Log.AppendBehind(ctx, r)
}

// wait returns the records once ok holds for them.
func (t *tape) wait(tb testing.TB, ok func([]audit.Record) bool) []audit.Record {
	tb.Helper()
	limit := time.After(10 * time.Second)
	for {
		t.mu.Lock()
		recs, more := append([]audit.Record(nil), t.recs...), t.more
		t.mu.Unlock()
		if ok(recs) {
			return recs
		}
		select {
		case <-more:
		case <-limit:
			tb.Fatalf("the records never came; there are %s", dump(recs))
		}
	}
}

func dump(recs []audit.Record) string {
	b, _ := json.MarshalIndent(recs, "", " ")
	return string(b)
}

// completed waits for n completed request records and returns them.
func (t *tape) completed(tb testing.TB, n int) []audit.Record {
	tb.Helper()
	var got []audit.Record
	t.wait(tb, func(recs []audit.Record) bool {
		got = got[:0]
		for _, r := range recs {
			if r.Event == audit.EventRequest && r.Stage == audit.StageCompleted {
				got = append(got, r)
			}
		}
		return len(got) >= n
	})
	if len(got) != n {
		tb.Fatalf("want %d completed records, there are %s", n, dump(got))
	}
	return got
}

func (t *tape) count(stage string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, r := range t.recs {
		if r.Event == audit.EventRequest && r.Stage == stage {
			n++
		}
	}
	return n
}

// rules is a policy in Go.
type rules struct {
	mu   sync.Mutex
	fn   func(*policies.Input) policies.Decision
	need policies.Needs
	seen []policies.Input
}

func (p *rules) Decide(_ context.Context, in *policies.Input) policies.Decision {
	p.mu.Lock()
	p.seen = append(p.seen, *in)
	fn := p.fn
	p.mu.Unlock()
	d := fn(in)
	d.ID, d.Revision, d.Mode = identity.NewID(), "rev-1", orElse(d.Mode, "enforce")
	return d
}

func orElse(s, alt string) string {
	if s == "" {
		return alt
	}
	return s
}

func (p *rules) Needs() policies.Needs { return p.need }

func (p *rules) NeedsBody(context.Context, *policies.Input) bool { return p.need.Body }

func (p *rules) inputs() []policies.Input {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]policies.Input(nil), p.seen...)
}

// byHost is the usual policy of the tests: api.allowed.test with a credential,
// plain.allowed.test without, everything else by no rule.
func byHost(in *policies.Input) policies.Decision {
	d := policies.Decision{Verdict: policies.Allow, Rule: "rule-" + in.Request.Host}
	switch in.Request.Host {
	case "api.allowed.test":
		if in.Request.Scheme == "https" {
			d.Credential = "api"
		}
	case "plain.allowed.test", "other.allowed.test":
	default:
		return policies.Decision{Reason: reasonNoRule, Verdict: policies.Deny}
	}
	return d
}

// upstream is a recording server for every test name, with TLS and without.
type upstream struct {
	pool    *x509.CertPool
	cert    tls.Certificate
	caFile  string
	tls     string // address
	plain   string
	handler http.HandlerFunc

	mu    sync.Mutex
	raw   []*bytes.Buffer // bytes received per connection, after TLS
	conns int
}

type rawConn struct {
	net.Conn
	up  *upstream
	buf *bytes.Buffer
}

func (c *rawConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.up.mu.Lock()
	c.buf.Write(p[:n])
	c.up.mu.Unlock()
	return n, err
}

type rawListener struct {
	net.Listener
	up *upstream
}

func (l rawListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	buf := new(bytes.Buffer)
	l.up.mu.Lock()
	l.up.raw = append(l.up.raw, buf)
	l.up.conns++
	l.up.mu.Unlock()
	return &rawConn{c, l.up, buf}, nil
}

func (u *upstream) bytes() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all strings.Builder
	for _, b := range u.raw {
		all.Write(b.Bytes())
	}
	return all.String()
}

func (u *upstream) connections() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.conns
}

var testNames = []string{"api.allowed.test", "plain.allowed.test", "other.allowed.test", "evil.test", "wrong.test"}

func newUpstream(t testing.TB, h http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{pool: x509.NewCertPool(), handler: h}
	cert, caPEM := serverCert(t, time.Now().Add(time.Hour), testNames[:4]...)
	u.cert = cert
	u.pool.AppendCertsFromPEM(caPEM)
	u.caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(u.caFile, caPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	serve := func(wrap func(net.Listener) net.Listener) string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second}
		go s.Serve(rawListener{wrap(ln), u})
		t.Cleanup(func() { s.Close() })
		return ln.Addr().String()
	}
	u.plain = serve(func(l net.Listener) net.Listener { return l })
	u.tls = serve(func(l net.Listener) net.Listener {
		return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})
	})
	return u
}

func serverCert(t testing.TB, end time.Time, names ...string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leafCert := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: end, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, leafCert, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	pemCA := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pemCA
}

// env is a proxy with one run, a policy and an upstream.
type env struct {
	t      testing.TB
	up     *upstream
	policy *rules
	tape   *tape
	p      *Proxy
	run    *Run
	logs   *lockedBuffer
	opts   Options

	auditDir string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type setting func(*env, *Options, *RunOptions)

func ok200(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }

func newEnv(t testing.TB, h http.HandlerFunc, settings ...setting) *env {
	t.Helper()
	if h == nil {
		h = ok200
	}
	e := &env{t: t, up: newUpstream(t, h), policy: &rules{fn: byHost}, logs: &lockedBuffer{}}
	e.auditDir = filepath.Join(t.TempDir(), "audit")
	lg, err := audit.Open(t.Context(), audit.Options{Dir: e.auditDir, SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	e.tape = &tape{Log: lg, more: make(chan struct{})}
	hosts := map[string]string{}
	for _, n := range testNames {
		hosts[n] = e.up.tls
	}
	o := Options{
		Policy: func() Decider { return e.policy }, Audit: e.tape,
		Upstream: config.Upstream{Hosts: hosts, CAFiles: []string{e.up.caFile}, AllowAddresses: []string{e.up.tls, e.up.plain}},
		Log:      slog.New(slog.NewTextHandler(e.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	ro := RunOptions{Run: identity.Run{ID: identity.NewRunID()}, Offered: []string{"api"}}
	for _, s := range settings {
		s(e, &o, &ro)
	}
	if e.p, err = New(o); err != nil {
		t.Fatal(err)
	}
	if ro.Granter == nil {
		ro.Granter = testSession(t, ro.Run, config.Inject{Header: "Authorization", Format: "Bearer {value}"})
	}
	if e.run, err = e.p.NewRun(ro); err != nil {
		t.Fatal(err)
	}
	e.opts = o
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := e.p.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := lg.Close(ctx); err != nil {
			t.Errorf("close log: %v", err)
		}
		if strings.Contains(e.logs.String(), canary) {
			t.Error("the canary is in the log")
		}
	})
	return e
}

// testSession is a real broker session whose credential "api" is bound to
// api.allowed.test.
func testSession(t testing.TB, run identity.Run, in config.Inject) *broker.Session {
	t.Helper()
	b, err := broker.New(broker.Options{
		Credentials: map[string]config.Credential{"api": {
			Source: config.Source{Local: &config.LocalSource{Env: "API_TOKEN"}}, Inject: in, Hosts: []string{"api.allowed.test"},
		}},
		Getenv: func(string) (string, bool) { return canary, true },
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.Begin(run, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.End(context.Background()); b.Close(context.Background()) })
	return s
}

// plainUpstream maps the names to the clear-text server.
func plainUpstream(e *env, o *Options, _ *RunOptions) {
	hosts := map[string]string{}
	for _, n := range testNames {
		hosts[n] = e.up.plain
	}
	o.Upstream.Hosts = hosts
}

func withLimits(l Limits) setting { return func(_ *env, o *Options, _ *RunOptions) { o.Limits = l } }

// client gives both ends of a loopback connection.
func pair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	client.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { client.Close() })
	return client, server
}

func dest(name string, port uint16) Destination {
	return Destination{Name: name, Addr: poolAddr(port)}
}

func poolAddr(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("100.64.7.7"), port)
}

func (e *env) plain(name string) net.Conn {
	c, s := pair(e.t)
	e.run.ServeConn(s, dest(name, 80))
	return c
}

func (e *env) explicit() net.Conn {
	c, s := pair(e.t)
	e.run.ServeExplicit(s)
	return c
}

func (e *env) clientTLS(name string) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(e.run.CACertPEM())
	return &tls.Config{RootCAs: pool, ServerName: name}
}

func (e *env) tls(name string) *tls.Conn {
	e.t.Helper()
	c, s := pair(e.t)
	e.run.ServeConn(s, dest(name, 443))
	tc := tls.Client(c, e.clientTLS(name))
	if err := tc.Handshake(); err != nil {
		e.t.Fatalf("handshake: %v", err)
	}
	return tc
}

func (e *env) tunnel(name string) *tls.Conn {
	e.t.Helper()
	c := e.explicit()
	send(e.t, c, "CONNECT "+name+":443 HTTP/1.1\r\nHost: "+name+":443\r\n\r\n")
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"})
	if err != nil || resp.StatusCode != 200 {
		e.t.Fatalf("CONNECT: %v %v", resp, err)
	}
	tc := tls.Client(c, e.clientTLS(name))
	if err := tc.Handshake(); err != nil {
		e.t.Fatalf("handshake: %v", err)
	}
	return tc
}

func send(t testing.TB, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatalf("send: %v", err)
	}
}

type reply struct {
	*http.Response
	body string
	err  error // while reading the body
}

func (r reply) reason() string {
	var d struct {
		Reason string `json:"reason"`
	}
	_ = json.Unmarshal([]byte(r.body), &d)
	return d.Reason
}

// readReply reads one whole answer; method matters for HEAD.
func readReply(t testing.TB, br *bufio.Reader, method string) reply {
	t.Helper()
	resp, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	return reply{resp, string(b), err}
}

// ask sends raw bytes and reads one answer.
func ask(t testing.TB, c net.Conn, raw string) reply {
	t.Helper()
	send(t, c, raw)
	method, _, _ := strings.Cut(raw, " ")
	return readReply(t, bufio.NewReader(c), method)
}

func get(path, host string) string { return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }

// atLeast waits for at least n completed requests.
func (t *tape) atLeast(tb testing.TB, n int) {
	tb.Helper()
	for {
		t.mu.Lock()
		more := t.more
		t.mu.Unlock()
		if t.count(audit.StageCompleted) >= n {
			return
		}
		select {
		case <-more:
		case <-time.After(20 * time.Second):
			tb.Fatal("too few requests")
		}
	}
}
