package proxy

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warder/internal/identity"
)

func TestListener(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var opened, closed atomic.Int64
	done := make(chan error, 1)
	o := ListenOptions{
		Clients: []Client{{Name: "ci", Token: sha256.Sum256([]byte("tok-CANARY-ci"))}, {Name: "dev", Token: sha256.Sum256([]byte("tok-CANARY-dev"))}},
		Open: func(_ context.Context, client Client) (*Run, error) {
			opened.Add(1)
			return e.p.NewRun(RunOptions{Run: identity.Run{ID: "r-" + client.Name}, Offered: []string{"api"}})
		},
		Close: func(context.Context, string, *Run) { closed.Add(1) },
	}
	go func() { done <- e.p.ServeListener(ctx, ln, o) }()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		t.Cleanup(func() { c.Close() })
		return c
	}
	auth := func(raw, field string) string {
		return strings.Replace(raw, "\r\n\r\n", "\r\nProxy-Authorization: "+field+"\r\n\r\n", 1)
	}
	abs := get("http://plain.allowed.test/", "plain.allowed.test")
	for _, field := range []string{"", "Bearer wrong", "Basic !!", "Bearer ", "Basic Og=="} {
		raw := abs
		if field != "" {
			raw = auth(abs, field)
		}
		r := ask(t, dial(), raw)
		if r.StatusCode != 407 || r.reason() != "unauthenticated" || r.Header.Get("Proxy-Authenticate") == "" {
			t.Errorf("%q: %d %q", field, r.StatusCode, r.body)
		}
	}
	if r := ask(t, dial(), auth("CONNECT plain.allowed.test:80 HTTP/1.1\r\nHost: plain.allowed.test:80\r\n\r\n", "Bearer wrong")); r.StatusCode != 407 {
		t.Errorf("CONNECT: %d", r.StatusCode)
	}
	for _, rec := range e.tape.completed(t, 6) {
		if rec.Reason != "unauthenticated" || rec.Run != nil {
			t.Errorf("record %s", dump(e.tape.recs))
		}
	}
	if e.up.connections() != 0 || opened.Load() != 0 {
		t.Error("an unknown client reached something")
	}
	// Concurrent first uses of one client are one run.
	var wg sync.WaitGroup
	for range 8 {
		c := dial()
		wg.Go(func() {
			if r := ask(t, c, auth(abs, "Bearer tok-CANARY-ci")); r.StatusCode != 200 {
				t.Errorf("%d %q", r.StatusCode, r.body)
			}
		})
	}
	wg.Wait()
	c := dial()
	send(t, c, auth("CONNECT plain.allowed.test:80 HTTP/1.1\r\nHost: plain.allowed.test:80\r\n\r\n", "Basic eDp0b2stQ0FOQVJZLWRldg=="))
	br := bufio.NewReader(c)
	if resp, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v %v", resp, err)
	}
	send(t, c, get("/", "plain.allowed.test"))
	if r := readReply(t, br, "GET"); r.StatusCode != 200 {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
	if opened.Load() != 2 {
		t.Errorf("%d runs", opened.Load())
	}
	recs := e.tape.completed(t, 15)
	if recs[6].Run.ID != "r-ci" || recs[14].Run.ID != "r-dev" {
		t.Errorf("records %s", dump(recs))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if closed.Load() != 2 {
		t.Errorf("%d runs were closed", closed.Load())
	}
	if _, err := br.ReadByte(); err == nil || isTimeout(err) {
		t.Error("a tunnel outlived the listener")
	}
	if strings.Contains(e.logs.String()+e.up.bytes()+dump(e.tape.recs), "tok-CANARY") {
		t.Error("a token is in the log, the record or at the upstream")
	}
}

func TestListenerWithoutClientsIsForLoopbackOnly(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	o := ListenOptions{
		Open: func(_ context.Context, client Client) (*Run, error) {
			return e.p.NewRun(RunOptions{Run: identity.Run{ID: "r-anonymous" + client.Name}})
		},
		Close:   func(context.Context, string, *Run) {},
		IdleEnd: 20 * time.Millisecond,
	}
	all, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	if err := e.p.ServeListener(t.Context(), all, o); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("%v", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	o.Close = func(context.Context, string, *Run) { close(ended) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.p.ServeListener(ctx, ln, o) }()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if r := ask(t, c, get("http://plain.allowed.test/", "plain.allowed.test")); r.StatusCode != 200 {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
	c.Close()
	<-ended // for idleness
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The end of one client's run may wait for its credentials: it holds up neither the ends
// of others nor, longer than EndTime, the end of the listener.
func TestTheEndOfARunHoldsUpNoOther_I7(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tokens := map[string]string{"slow": "tok-slow", "quick": "tok-quick"}
	var clients []Client
	for name, token := range tokens {
		clients = append(clients, Client{Name: name, Token: sha256.Sum256([]byte(token))})
	}
	quick, slow, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- e.p.ServeListener(ctx, ln, ListenOptions{
			Clients: clients, IdleEnd: 20 * time.Millisecond, EndTime: 2 * time.Second,
			Open: func(_ context.Context, client Client) (*Run, error) {
				return e.p.NewRun(RunOptions{Run: identity.Run{ID: "r-" + client.Name}})
			},
			Close: func(ctx context.Context, client string, _ *Run) {
				if client == "quick" {
					close(quick)
					return
				}
				close(slow)
				<-ctx.Done() // as when Vault does not answer
				close(ended)
			},
		})
	}()
	use := func(name string) {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		auth := "plain.allowed.test\r\nProxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+tokens[name]))
		if r := ask(t, c, get("http://plain.allowed.test/", auth)); r.StatusCode != 200 {
			t.Errorf("%s: %d %q", name, r.StatusCode, r.body)
		}
	}
	use("slow")
	<-slow
	use("quick")
	<-quick // for idleness
	select {
	case <-ended:
		t.Error("it ended only after the other")
	default:
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// flaky fails to accept now and then, as a listener does without descriptors.
type flaky struct {
	net.Listener
	left atomic.Int64
}

type lackOfDescriptors struct{ error }

func (lackOfDescriptors) Temporary() bool { return true }
func (lackOfDescriptors) Timeout() bool   { return false }

func (f *flaky) Accept() (net.Conn, error) {
	if f.left.Add(-1) >= 0 {
		return nil, lackOfDescriptors{errors.New("too many open files")}
	}
	return f.Listener.Accept()
}

func TestAcceptSurvivesALackOfDescriptors_F100(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := &flaky{Listener: in}
	ln.left.Store(3)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- e.p.ServeListener(ctx, ln, ListenOptions{
			Open: func(context.Context, Client) (*Run, error) {
				return e.p.NewRun(RunOptions{Run: identity.Run{ID: "r-a"}})
			},
			Close: func(context.Context, string, *Run) {},
		})
	}()
	c, err := net.Dial("tcp", in.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if r := ask(t, c, get("http://plain.allowed.test/", "plain.allowed.test")); r.StatusCode != 200 || ln.left.Load() >= 0 {
		t.Errorf("%d, %d failures left", r.StatusCode, ln.left.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
