package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"warder/audit"
	"warder/policies"
)

// endSending ends the client's sending side, that of TLS where there is one.
func endSending(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
}

// A client that ends its sending side once its request is out gets its answer, on
// every way of HTTP/1 and whenever the end comes; then the connection is closed.
func TestAHalfClosedClientGetsItsAnswer_F064(t *testing.T) {
	for _, w := range ways() {
		if w.h2 {
			continue // there each stream has an end of its own
		}
		for _, when := range []string{"at once", "while"} {
			t.Run(w.name+" "+when, func(t *testing.T) {
				started, answer := make(chan struct{}, 2), make(chan struct{}, 2)
				var set []setting
				if !w.tls {
					set = append(set, plainUpstream)
				}
				e := newEnv(t, func(rw http.ResponseWriter, r *http.Request) {
					started <- struct{}{}
					select {
					case <-answer:
					case <-r.Context().Done():
					}
					b, _ := io.ReadAll(r.Body)
					rw.Write(append([]byte("got "), b...))
				}, set...)
				target := "/"
				if w.name == "absolute form" {
					target = "http://plain.allowed.test/"
				}
				c := e.open(w, "plain.allowed.test")
				one := "POST " + target + " HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Length: 4\r\n\r\n"
				send(t, c, one+"once"+one+"more")
				if when == "at once" {
					endSending(t, c)
				}
				br := bufio.NewReader(c)
				for i, want := range []string{"got once", "got more"} {
					<-started
					if when == "while" && i == 1 {
						endSending(t, c)
					}
					answer <- struct{}{}
					if r := readReply(t, br, "POST"); r.StatusCode != 200 || r.body != want {
						t.Errorf("%d %q", r.StatusCode, r.body)
					}
				}
				if n, err := io.Copy(io.Discard, br); n != 0 || isTimeout(err) {
					t.Errorf("after the answers: %d bytes, %v", n, err)
				}
				for _, rec := range e.tape.completed(t, 2) {
					if rec.Verdict != verdictAllow || rec.Detail != "" || rec.Response.Status != 200 {
						t.Errorf("record %s", dump([]audit.Record{rec}))
					}
				}
			})
		}
	}
}

// A request that cannot be read does not take the answer from the one before it.
// Each has its own, in order.
func TestABrokenRequestLeavesTheOneBeforeItAlone_F045(t *testing.T) {
	for name, open := range map[string]func(e *env) net.Conn{
		"plain":       func(e *env) net.Conn { return e.plain("plain.allowed.test") },
		"intercepted": func(e *env) net.Conn { return e.tls("plain.allowed.test") },
	} {
		t.Run(name, func(t *testing.T) {
			started, answer := make(chan struct{}), make(chan struct{})
			var set []setting
			if name == "plain" {
				set = append(set, plainUpstream)
			}
			e := newEnv(t, func(rw http.ResponseWriter, r *http.Request) {
				close(started)
				select {
				case <-answer:
					io.WriteString(rw, "hello")
				case <-r.Context().Done():
				}
			}, set...)
			c := open(e)
			send(t, c, get("/", "plain.allowed.test")+"GET /2 HTTP/1..\r\n\r\n")
			<-started
			time.Sleep(50 * time.Millisecond) // so that what follows is looked at; the answer must not depend on it
			close(answer)
			br := bufio.NewReader(c)
			if r := readReply(t, br, "GET"); r.StatusCode != 200 || r.body != "hello" {
				t.Errorf("%d %q", r.StatusCode, r.body)
			}
			if r := readReply(t, br, "GET"); r.StatusCode != 400 || r.reason() != reasonBadRequest {
				t.Errorf("%d %q", r.StatusCode, r.body)
			}
			recs := e.tape.completed(t, 2)
			slices.SortFunc(recs, func(a, b audit.Record) int { return strings.Compare(a.Verdict, b.Verdict) })
			if recs[0].Verdict != verdictAllow || recs[0].Detail != "" || recs[1].Verdict != verdictDeny || recs[1].Reason != reasonBadRequest {
				t.Errorf("records %s", dump(recs))
			}
		})
	}
}

// The oldest way to ask: one line, the end, and the answer is all that comes.
func TestAHalfClosedHTTP10ClientGetsItsAnswer_F064(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	c := e.plain("plain.allowed.test")
	send(t, c, "GET / HTTP/1.0\r\n\r\n")
	endSending(t, c)
	b, err := io.ReadAll(c)
	if err != nil || string(b[max(0, len(b)-5):]) != "hello" {
		t.Errorf("%q %v", b, err)
	}
	e.tape.completed(t, 1)
}

// A denial is given to a half-closed client too.
func TestAHalfClosedClientIsDenied_F064(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	e.policy.fn = func(*policies.Input) policies.Decision {
		return policies.Decision{Verdict: policies.Deny, Reason: reasonDenied}
	}
	c := e.plain("plain.allowed.test")
	send(t, c, get("/", "plain.allowed.test"))
	endSending(t, c)
	r := readReply(t, bufio.NewReader(c), "GET")
	if rec := e.tape.completed(t, 1)[0]; r.StatusCode != 403 || rec.Reason != reasonDenied {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
}

// On TCP a client that has gone looks like one that listens. What it asked for is
// given up, at the upstream too, when nothing was sent to it for the idle limit.
func TestAHalfClosedClientIsGivenUpAfterTheIdleLimit_F064(t *testing.T) {
	gone := make(chan struct{})
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(gone)
	}, plainUpstream, withLimits(Limits{IdleTimeout: 100 * time.Millisecond}))
	c := e.plain("plain.allowed.test")
	send(t, c, get("/", "plain.allowed.test"))
	endSending(t, c)
	r := readReply(t, bufio.NewReader(c), "GET")
	<-gone
	rec := e.tape.completed(t, 1)[0]
	if r.StatusCode != 400 || r.reason() != reasonBadRequest || rec.Verdict != verdictAllow || rec.Detail != "the client went away before the answer" {
		t.Errorf("%d %q, record %s", r.StatusCode, r.body, dump([]audit.Record{rec}))
	}
}

// A stream that goes on is not idle, however long ago the client's side ended.
func TestAHalfClosedClientKeepsItsStream_F064(t *testing.T) {
	const limit = 1500 * time.Millisecond
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		for range 9 { // longer than the limit in all
			io.WriteString(w, "data\n")
			w.(http.Flusher).Flush()
			select {
			case <-time.After(limit / 6):
			case <-r.Context().Done():
				return
			}
		}
	}, plainUpstream, withLimits(Limits{IdleTimeout: limit}))
	c := e.plain("plain.allowed.test")
	send(t, c, get("/", "plain.allowed.test"))
	endSending(t, c)
	if r := readReply(t, bufio.NewReader(c), "GET"); r.err != nil || len(r.body) != 9*len("data\n") {
		t.Errorf("%q %v", r.body, r.err)
	}
	e.tape.completed(t, 1)
}

// Within TLS the end of the connection itself is told from the end of the sending
// side: what was asked for is given up at once.
func TestAClientThatIsGoneWithinTLSIsGivenUp_F064(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, e *env) func(){
		"the connection is closed": func(t *testing.T, e *env) func() {
			c := e.tls("plain.allowed.test")
			send(t, c, get("/", "plain.allowed.test"))
			return func() { c.Close() }
		},
		"without a word": func(t *testing.T, e *env) func() {
			c := e.tls("plain.allowed.test")
			send(t, c, get("/", "plain.allowed.test"))
			return func() { c.NetConn().Close() }
		},
		"after the sending side": func(t *testing.T, e *env) func() {
			c := e.tunnel("plain.allowed.test")
			send(t, c, get("/", "plain.allowed.test"))
			endSending(t, c)
			return func() { c.NetConn().Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			started, gone := make(chan struct{}), make(chan struct{})
			e := newEnv(t, func(_ http.ResponseWriter, r *http.Request) {
				close(started)
				<-r.Context().Done()
				close(gone)
			}, withLimits(Limits{IdleTimeout: time.Hour}))
			stop := end(t, e)
			<-started
			stop()
			<-gone
			if rec := e.tape.completed(t, 1)[0]; rec.Detail != "the client went away before the answer" {
				t.Errorf("record %s", dump([]audit.Record{rec}))
			}
		})
	}
}
