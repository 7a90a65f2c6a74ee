package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warder/audit"
	"warder/policies"
)

// engineOf compiles a policy.
func engineOf(t testing.TB, text string) *policies.Engine {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/egress.rego", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := policies.Load(policies.Options{Dir: dir, EvalTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	e.Prepare()
	return e
}

// reloaded is a policy in force that can be replaced.
type reloaded struct {
	engine atomic.Pointer[policies.Engine]
}

func (r *reloaded) with(e *policies.Engine) setting {
	return func(_ *env, o *Options, _ *RunOptions) {
		r.engine.Store(e)
		o.Policy = func() Decider { return r.engine.Load() }
	}
}

const (
	allPaths  = "package warder.egress\n\nallow contains {\"rule\": \"streams\"} if input.request.host == \"plain.allowed.test\"\n"
	openPaths = "package warder.egress\n\nallow contains {\"rule\": \"streams\"} if {\n\tinput.request.host == \"plain.allowed.test\"\n\tstartswith(input.request.path, \"/open\")\n}\n"
)

// ticking answers with a stream that does not end, an echo for WebSocket.
func ticking(t testing.TB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			wsUpstream(t)(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := 0; r.Context().Err() == nil; i++ {
			if _, err := fmt.Fprintf(w, "data: %d\n", i); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// lines reads n more lines and returns the error that prevented it.
func lines(br *bufio.Reader, n int) error {
	for range n {
		if _, err := br.ReadString('\n'); err != nil {
			return err
		}
	}
	return nil
}

// cutOff reads until the stream ends. A client's own deadline is no end.
func cutOff(t *testing.T, what string, r io.Reader) {
	t.Helper()
	_, err := io.Copy(io.Discard, r)
	if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: still open: %v", what, err)
	}
}

func event(t *testing.T, c net.Conn, path string) *bufio.Reader {
	t.Helper()
	send(t, c, get(path, "plain.allowed.test"))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v %v", resp, err)
	}
	return bufio.NewReader(resp.Body)
}

// A new policy cuts what it denies and leaves the rest alone, on every way in.
func TestF153OpenStreamsAreJudgedAgain(t *testing.T) {
	for _, way := range []string{"clear text", "intercepted", "CONNECT"} {
		t.Run(way, func(t *testing.T) {
			var policy reloaded
			set := []setting{policy.with(engineOf(t, allPaths))}
			if way == "clear text" {
				set = append(set, plainUpstream)
			}
			e := newEnv(t, ticking(t), set...)
			dial := func() net.Conn {
				switch way {
				case "clear text":
					return e.plain("plain.allowed.test")
				case "CONNECT":
					return e.tunnel("plain.allowed.test")
				}
				return e.tls("plain.allowed.test")
			}
			closed, open := event(t, dial(), "/closed"), event(t, dial(), "/open")
			if err := errors.Join(lines(closed, 3), lines(open, 3)); err != nil {
				t.Fatal(err)
			}
			policy.engine.Store(engineOf(t, openPaths))
			e.p.PolicyChanged()
			cutOff(t, "closed", closed)
			if err := lines(open, 20); err != nil {
				t.Errorf("the stream that is allowed: %v", err)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Request.Path != "/closed" || rec.Verdict != verdictDeny || rec.Reason != reasonNoRule || rec.Detail != cutByPolicy || rec.Policy.Revision != policy.engine.Load().Revision() {
				t.Errorf("record %s", dump([]audit.Record{rec}))
			}
		})
	}
}

func TestF153WebSocketsAreJudgedAgain(t *testing.T) {
	var policy reloaded
	e := newEnv(t, ticking(t), policy.with(engineOf(t, allPaths)))
	dial := func(path string) (net.Conn, *bufio.Reader) {
		c := e.tls("plain.allowed.test")
		send(t, c, strings.Replace(wsRequest, "/ws", path, 1))
		br := bufio.NewReader(c)
		if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != 101 {
			t.Fatalf("%v %v", resp, err)
		}
		if _, err := br.ReadString('|'); err != nil {
			t.Fatal(err)
		}
		return c, br
	}
	_, closed := dial("/closed")
	c, open := dial("/open")
	policy.engine.Store(engineOf(t, openPaths))
	e.p.PolicyChanged()
	cutOff(t, "closed", closed)
	send(t, c, "still here\n")
	if err := lines(open, 1); err != nil {
		t.Errorf("the WebSocket that is allowed: %v", err)
	}
	if rec := e.tape.completed(t, 1)[0]; rec.Request.Path != "/closed" || rec.Reason != reasonNoRule || rec.Response.Status != 101 {
		t.Errorf("record %s", dump([]audit.Record{rec}))
	}
}

// One connection of HTTP/2 has both streams: one ends, the connection lives.
func TestF153HTTP2StreamsAreJudgedAgain(t *testing.T) {
	var policy reloaded
	e := newEnv(t, ticking(t), policy.with(engineOf(t, allPaths)))
	cc, _ := e.h2("plain.allowed.test")
	stream := func(path string) *bufio.Reader {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://plain.allowed.test"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := cc.RoundTrip(req)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %v", resp, err)
		}
		return bufio.NewReader(resp.Body)
	}
	closed, open := stream("/closed"), stream("/open")
	policy.engine.Store(engineOf(t, openPaths))
	e.p.PolicyChanged()
	cutOff(t, "closed", closed)
	if err := lines(open, 20); err != nil {
		t.Errorf("the stream that is allowed: %v", err)
	}
	if err := lines(stream("/open/2"), 1); err != nil {
		t.Errorf("the connection: %v", err)
	}
}

func TestF153OpaqueConnectionsAreJudgedAgain(t *testing.T) {
	const both = "package warder.egress\n\n%s contains {\"rule\": \"whole\"} if input.request.host in {\"plain.allowed.test\", \"other.allowed.test\"}\n"
	for _, kind := range []string{"passthrough", "tunnel"} {
		t.Run(kind, func(t *testing.T) {
			var policy reloaded
			text := fmt.Sprintf(both, kind)
			e := newEnv(t, ticking(t), policy.with(engineOf(t, text)))
			dial := func(host string) *bufio.Reader {
				c, s := pair(t)
				e.run.ServeConn(s, dest(host, 443))
				tc := tls.Client(c, &tls.Config{RootCAs: e.up.pool, ServerName: host})
				send(t, tc, get("/", host))
				resp, err := http.ReadResponse(bufio.NewReader(tc), nil)
				if err != nil {
					t.Fatal(err)
				}
				return bufio.NewReader(resp.Body)
			}
			closed, open := dial("plain.allowed.test"), dial("other.allowed.test")
			policy.engine.Store(engineOf(t, strings.Replace(text, `"plain.allowed.test", `, "", 1)))
			e.p.PolicyChanged()
			cutOff(t, "closed", closed)
			if err := lines(open, 20); err != nil {
				t.Errorf("the connection that is allowed: %v", err)
			}
			if rec := e.tape.completed(t, 1)[0]; rec.Mode != kind || rec.Request.Host != "plain.allowed.test" || rec.Verdict != verdictDeny {
				t.Errorf("record %s", dump([]audit.Record{rec}))
			}
		})
	}
}

// Nobody reads, nobody answers: an end comes all the same.
func TestF153WhatStandsStillIsCutToo(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"an upstream that does not answer": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"a client that does not send":      func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) },
		"a client that does not read": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var policy reloaded
			arrived := make(chan struct{})
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) { close(arrived); h(w, r) }, policy.with(engineOf(t, allPaths)))
			c := e.tls("plain.allowed.test")
			if strings.HasSuffix(name, "send") {
				send(t, c, "POST /closed HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Length: 10\r\n\r\nx")
			} else {
				send(t, c, get("/closed", "plain.allowed.test"))
			}
			<-arrived
			policy.engine.Store(engineOf(t, openPaths))
			e.p.PolicyChanged()
			if rec := e.tape.completed(t, 1)[0]; rec.Reason != reasonNoRule || rec.Verdict != verdictDeny {
				t.Errorf("record %s", dump([]audit.Record{rec}))
			}
			cutOff(t, name, c)
		})
	}
}

// What is allowed by another rule, with another credential, is not what was sent.
func TestAnotherCredentialEndsAStream(t *testing.T) {
	with := "package warder.egress\n\nallow contains {\"rule\": \"a\", \"credential\": \"api\"} if input.request.host == \"api.allowed.test\"\n"
	for name, c := range map[string]struct {
		after string
		cut   bool
	}{
		"none":     {strings.Replace(with, `, "credential": "api"`, "", 1), true},
		"the same": {strings.Replace(with, `"a"`, `"b"`, 1), false},
		"an ask":   {with + "\nask contains {\"rule\": \"q\"} if true\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			var policy reloaded
			e := newEnv(t, ticking(t), policy.with(engineOf(t, with)))
			conn := e.tls("api.allowed.test")
			send(t, conn, get("/", "api.allowed.test"))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("%v %v", resp, err)
			}
			policy.engine.Store(engineOf(t, c.after))
			e.p.PolicyChanged()
			if c.cut {
				cutOff(t, name, resp.Body)
			} else if err := lines(bufio.NewReader(resp.Body), 20); err != nil {
				t.Error(err)
			}
		})
	}
}

// A policy replaced every 100 ms (here: without a pause) under load: each request is
// judged by one of them as a whole, and none fails because of it.
func TestF153ReloadUnderLoad(t *testing.T) {
	// In either, both rules carry the same number; a mixture would name two.
	version := func(n int) *policies.Engine {
		return engineOf(t, strings.ReplaceAll("package warder.egress\n\nallow contains {\"rule\": \"a-N\"} if input.request.host == \"plain.allowed.test\"\n\n"+
			"allow contains {\"rule\": \"b-N\"} if input.request.method == \"GET\"\n\nask contains {\"rule\": \"q-N\"} if input.request.path == \"/ask\"\n", "N", fmt.Sprint(n)))
	}
	engines := []*policies.Engine{version(1), version(2), version(3)}
	ofRevision := map[string]string{}
	for i, e := range engines {
		ofRevision[e.Revision()] = fmt.Sprintf("a-%d", i+1)
	}
	var policy reloaded
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, "ok")
	}, policy.with(engines[0]))
	done := make(chan struct{})
	var reloads sync.WaitGroup
	swaps := 0
	reloads.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(2 * time.Millisecond):
				swaps++
				policy.engine.Store(engines[swaps%len(engines)])
				e.p.PolicyChanged()
			}
		}
	})
	const clients, each = 8, 60
	var load sync.WaitGroup
	for range clients {
		c := e.tls("plain.allowed.test")
		load.Go(func() {
			br := bufio.NewReader(c)
			for range each {
				io.WriteString(c, get("/", "plain.allowed.test"))
				resp, err := http.ReadResponse(br, nil)
				if err != nil || resp.StatusCode != 200 {
					t.Errorf("%v %v", resp, err)
					return
				}
				io.Copy(io.Discard, resp.Body)
			}
		})
	}
	load.Wait()
	close(done)
	reloads.Wait()
	seen := map[string]int{}
	for _, rec := range e.tape.completed(t, clients*each) {
		if want := ofRevision[rec.Policy.Revision]; want == "" || rec.Rule != want {
			t.Errorf("rule %s by revision %s, whose rule is %q", rec.Rule, rec.Policy.Revision, want)
		}
		seen[rec.Policy.Revision]++
	}
	if len(seen) != len(engines) || swaps < 10 {
		t.Errorf("%d reloads; judged by %v", swaps, seen)
	}
}

// A request that begins after PolicyChanged has returned is not let through by the
// policy before it.
func TestF153NothingIsAllowedAfterTheSwitch(t *testing.T) {
	var policy reloaded
	var switched atomic.Bool
	e := newEnv(t, nil, policy.with(engineOf(t, allPaths)))
	var wg sync.WaitGroup
	for range 8 {
		c := e.tls("plain.allowed.test")
		wg.Go(func() {
			br := bufio.NewReader(c)
			for range 100_000 {
				after := switched.Load()
				io.WriteString(c, get("/closed", "plain.allowed.test"))
				resp, err := http.ReadResponse(br, nil)
				if err != nil {
					return // cut in mid-answer
				}
				io.Copy(io.Discard, resp.Body)
				if after && resp.StatusCode != 403 {
					t.Errorf("answered %d after the switch", resp.StatusCode)
				}
				if resp.StatusCode == 403 {
					return
				}
			}
			t.Error("never denied")
		})
	}
	e.tape.atLeast(t, 100)
	policy.engine.Store(engineOf(t, openPaths))
	e.p.PolicyChanged()
	switched.Store(true)
	wg.Wait()
	if r := ask(t, e.tls("plain.allowed.test"), get("/closed", "plain.allowed.test")); r.StatusCode != 403 {
		t.Errorf("the next request: %d", r.StatusCode)
	}
}

// The switch happens while the older policy judges: it is not seen by PolicyChanged.
func TestF153APolicyThatComesWhileAnotherJudges(t *testing.T) {
	judging, judge := make(chan struct{}), make(chan struct{})
	older := &rules{fn: func(in *policies.Input) policies.Decision {
		judging <- struct{}{}
		<-judge
		return byHost(in)
	}}
	newer := &rules{fn: func(*policies.Input) policies.Decision {
		return policies.Decision{Verdict: policies.Deny, Reason: reasonNoRule}
	}}
	var now atomic.Pointer[rules]
	now.Store(older)
	e := newEnv(t, nil, func(_ *env, o *Options, _ *RunOptions) { o.Policy = func() Decider { return now.Load() } })
	c := e.tls("plain.allowed.test")
	send(t, c, get("/", "plain.allowed.test"))
	<-judging
	now.Store(newer)
	e.p.PolicyChanged()
	close(judge)
	if r := readReply(t, bufio.NewReader(c), "GET"); r.StatusCode != 403 || e.up.connections() != 0 {
		t.Errorf("%d, %d connections to the upstream", r.StatusCode, e.up.connections())
	}
}

// stuckRecorder never has a reservation on the disk.
type stuckRecorder struct {
	*tape
	waiting chan struct{}
}

func (s *stuckRecorder) Append(ctx context.Context, r *audit.Record) *audit.Future {
	if r.Stage != audit.StageReserved {
		return s.tape.Append(ctx, r)
	}
	s.note(r)
	close(s.waiting)
	<-ctx.Done()
	return audit.Failed(ctx.Err())
}

// A request that the new policy stops while it waits for its record is denied by
// that policy: it is not the log's fault.
func TestARequestThatWaitsForItsRecordIsDeniedByTheNewPolicy(t *testing.T) {
	var policy reloaded
	stuck := &stuckRecorder{waiting: make(chan struct{})}
	e := newEnv(t, nil, policy.with(engineOf(t, allPaths)), func(e *env, o *Options, _ *RunOptions) {
		stuck.tape = e.tape
		o.Audit = stuck
	})
	c := e.tls("plain.allowed.test")
	send(t, c, get("/shut", "plain.allowed.test"))
	<-stuck.waiting
	policy.engine.Store(engineOf(t, openPaths))
	e.p.PolicyChanged()
	if r := readReply(t, bufio.NewReader(c), "GET"); r.StatusCode != 403 || r.reason() != "no-rule" {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
	if rec := e.tape.completed(t, 1)[0]; rec.Verdict != "deny" || rec.Reason != "no-rule" {
		t.Errorf("record %s %s", rec.Verdict, rec.Reason)
	}
}
