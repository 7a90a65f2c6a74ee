package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/identity"
)

// callersRig is a listener whose clients change.
type callersRig struct {
	*env
	t       *testing.T
	addr    string
	updates chan []Client

	mu     sync.Mutex
	opened []string
	closed []string
}

func newCallersRig(t *testing.T, address string, o ListenOptions) *callersRig {
	t.Helper()
	g := &callersRig{env: newEnv(t, nil, plainUpstream), t: t, updates: make(chan []Client)}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	g.addr = net.JoinHostPort("127.0.0.1", port)
	o.Updates = g.updates
	o.Open = func(_ context.Context, client Client) (*Run, error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.opened = append(g.opened, client.Name)
		return g.p.NewRun(RunOptions{Run: identity.Run{ID: "r-" + client.Name}, Offered: []string{"api"}})
	}
	o.Close = func(_ context.Context, client string, _ *Run) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.closed = append(g.closed, client)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.p.ServeListener(ctx, ln, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return g
}

func byToken(name, token string) Client {
	return Client{Name: name, Token: sha256.Sum256([]byte(token))}
}

// status is that of a request in clear text with a token.
func (g *callersRig) status(token string) int {
	g.t.Helper()
	raw := get("http://plain.allowed.test/", "plain.allowed.test")
	if token != "" {
		raw = strings.Replace(raw, "\r\n\r\n", "\r\nProxy-Authorization: Bearer "+token+"\r\n\r\n", 1)
	}
	return ask(g.t, dialTo(g.t, g.addr), raw).StatusCode
}

// tunnel is an open CONNECT over which a request has passed.
func (g *callersRig) tunnel(token string) net.Conn {
	g.t.Helper()
	c := dialTo(g.t, g.addr)
	send(g.t, c, "CONNECT plain.allowed.test:80 HTTP/1.1\r\nHost: plain.allowed.test:80\r\nProxy-Authorization: Bearer "+token+"\r\n\r\n")
	read(g.t, c, len("HTTP/1.1 200 Connection Established\r\n\r\n"))
	if !g.passes(c) {
		g.t.Fatal("control: nothing passes the tunnel")
	}
	return c
}

func (g *callersRig) passes(c net.Conn) bool {
	g.t.Helper()
	return ask(g.t, c, get("/", "plain.allowed.test")).StatusCode == 200
}

// cut waits until the connection is closed by the other side.
func (g *callersRig) cut(c net.Conn, what string) {
	g.t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || isTimeout(err) {
		g.t.Errorf("%s goes on: %d, %v", what, n, err)
	}
}

func (g *callersRig) names() (opened, closed string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.opened, " "), strings.Join(g.closed, " ")
}

// A client that was taken out is not known from that moment on, and what it has open is
// cut (I5, I7); one that stayed as it was notices nothing.
func TestAClientThatIsTakenOutIsGoneAtOnce_I5_I7(t *testing.T) {
	ci, dev, ops := byToken("ci", "tok-ci"), byToken("dev", "tok-dev"), byToken("ops", "tok-ops")
	g := newCallersRig(t, "127.0.0.1:0", ListenOptions{Clients: []Client{ci, dev}})
	stays, goes := g.tunnel("tok-ci"), g.tunnel("tok-dev")
	if g.status("tok-ops") != 407 {
		t.Error("control: a client that is not in the list yet comes in")
	}
	g.updates <- []Client{ci, ops}
	g.cut(goes, "what the client has open")
	for token, want := range map[string]int{"tok-ci": 200, "tok-ops": 200, "tok-dev": 407, "": 407} {
		if got := g.status(token); got != want {
			t.Errorf("%q: %d, want %d", token, got, want)
		}
	}
	if !g.passes(stays) {
		t.Error("a client that stayed lost its connection")
	}
	if opened, _ := g.names(); opened != "ci dev ops" {
		t.Errorf("runs of %q were begun", opened)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		if _, closed := g.names(); closed == "dev" {
			break
		} else if closed != "" || time.Now().After(deadline) {
			t.Fatalf("ended: %q", closed)
		}
		time.Sleep(time.Millisecond)
	}
}

// One that comes back with another token, or with other grants, is another client: the
// old token opens nothing, and the run that had the old grants is over.
func TestAClientThatChangedBeginsAnew_I5_I7(t *testing.T) {
	g := newCallersRig(t, "127.0.0.1:0", ListenOptions{Clients: []Client{byToken("ci", "tok-old")}})
	c := g.tunnel("tok-old")
	g.updates <- []Client{byToken("ci", "tok-new")}
	g.cut(c, "the connection with the old token")
	if old, now := g.status("tok-old"), g.status("tok-new"); old != 407 || now != 200 {
		t.Errorf("the old token %d, the new one %d", old, now)
	}
	c = g.tunnel("tok-new")
	more := byToken("ci", "tok-new")
	more.Grants = "api"
	g.updates <- []Client{more}
	g.cut(c, "the run with the old grants")
	if got := g.status("tok-new"); got != 200 {
		t.Errorf("%d", got)
	}
	if opened, _ := g.names(); opened != "ci ci ci" {
		t.Errorf("runs of %q were begun", opened)
	}
}

// Who was known by a certificate when the connection began is asked for again at each request.
func TestACertificateThatIsTakenOutOpensNothingOnAnOldConnection_I5(t *testing.T) {
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := serverCert(t, time.Now().Add(time.Hour), "ci")
	sum, err := CertificateOf(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	if err != nil {
		t.Fatal(err)
	}
	g := newCallersRig(t, "127.0.0.1:0", ListenOptions{Clients: []Client{{Name: "ci", Certificate: sum}}, CA: ca})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CertPEM())
	dial := func() *tls.Conn { // TLS 1.2: the server has the certificate when the handshake is over
		c := tls.Client(dialTo(t, g.addr), &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", Certificates: []tls.Certificate{cert}, MaxVersion: tls.VersionTLS12})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	abs := get("http://plain.allowed.test/", "plain.allowed.test")
	used, fresh := dial(), dial()
	for range 2 {
		if r := ask(t, used, abs); r.StatusCode != 200 {
			t.Fatalf("control: %d", r.StatusCode)
		}
	}
	g.updates <- []Client{byToken("ci", "tok-ci")}
	g.cut(used, "a connection that waits for its next request")
	if r := ask(t, fresh, abs); r.StatusCode != 407 || r.reason() != reasonUnauthenticated {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
	if opened, _ := g.names(); opened != "ci" {
		t.Errorf("runs of %q were begun", opened)
	}
}

// A run that cannot begin does not take away that of the one who came under its name since.
func TestARunThatFailsLateLeavesTheNextAlone_I7(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	g := &guest{ready: make(chan struct{})}
	opening, fail := make(chan struct{}), make(chan struct{})
	l := &lobby{p: e.p, runs: map[string]*guest{}, places: newPlaces(10)}
	list := []Client{byToken("ci", "old")}
	l.clients.Store(&list)
	l.o.Open = func(context.Context, Client) (*Run, error) {
		close(opening)
		<-fail
		panic("of the one who opens it") // counts as a failure, and holds nobody up
	}
	done := make(chan error, 1)
	go func() {
		_, err := l.enter(t.Context(), list[0])
		done <- err
	}()
	<-opening
	l.mu.Lock()
	l.runs["ci"] = g // as take and the next caller leave it
	l.mu.Unlock()
	close(fail)
	if err := <-done; err == nil {
		t.Error("a run that did not begin is one")
	}
	if l.runs["ci"] != g {
		t.Error("the next run is lost, and with it the end of its credentials")
	}
}

// Without clients everybody would come in: that is for a loopback address alone.
func TestAnEmptyListIsNotTakenOverOnTheNetwork_I5(t *testing.T) {
	for address, want := range map[string]int{"127.0.0.1:0": 200, "0.0.0.0:0": 407} {
		g := newCallersRig(t, address, ListenOptions{Clients: []Client{byToken("ci", "tok-ci")}})
		if g.status("") != 407 || g.status("tok-ci") != 200 {
			t.Error("control: tokens do not matter")
		}
		g.updates <- nil
		g.updates <- nil // taken once the first is in force
		if got := g.status(""); got != want {
			t.Errorf("%s, nobody: %d, want %d", address, got, want)
		}
	}
}

// What a client asked for ends with its run, although the connection is the listener's:
// nothing that still waits for its verdict, its record or its credential goes out after it.
func TestARequestEndsWithItsClientsRun_I5_I7(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	run, err := e.p.NewRun(RunOptions{Run: identity.Run{ID: "r-ci"}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://plain.allowed.test/", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	x := &exchange{run: run}
	got, done := x.bound(r)
	defer done()
	if got.Context().Err() != nil {
		t.Error("control: it ended before its run")
	}
	if err := run.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-got.Context().Done()
}
