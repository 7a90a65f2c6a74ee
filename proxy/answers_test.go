package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warder/audit"
)

// verbatim is an upstream that sends an answer byte by byte as it is given, and
// keeps its connection.
func verbatim(answer func(r *http.Request) string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		for err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
			if _, err = io.WriteString(c, answer(r)); err != nil {
				return
			}
			r, err = http.ReadRequest(rw.Reader)
		}
	}
}

func plainAnswer(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// Answers that are followed by what nobody asked for. One request, one answer: the
// next one on the same connection, of HTTP/1 and of HTTP/2, gets its own.
func TestWhatFollowsAnAnswerIsNoAnswer_I5(t *testing.T) {
	catchStandardLog(t) // net/http tells there what it finds; the command has none
	hidden := plainAnswer("SMUGGLED")
	odd := map[string]struct {
		method, answer string
		status         int
	}{
		"HEAD with a body":                {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello" + hidden, 200},
		"HEAD in chunks":                  {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + hidden, 200},
		"HEAD without a length":           {"HEAD", "HTTP/1.1 200 OK\r\n\r\n" + hidden, 200},
		"204 with a length":               {"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n" + "hello" + hidden, 204},
		"204 that is longer than nothing": {"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n" + hidden, 204},
		"204 in chunks":                   {"GET", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + hidden, 204},
		"304 with a body":                 {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\nhello" + hidden, 304},
		"304 in chunks":                   {"GET", "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + hidden, 304},
		"205 with a body":                 {"GET", "HTTP/1.1 205 Reset Content\r\nContent-Length: 5\r\n\r\nhello" + hidden, 205},
		"more than the length":            {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello" + hidden, 200},
		"more than the chunks":            {"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + hidden, 200},
		"length and chunks":               {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 500\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n" + hidden, 200},
		"two lengths":                     {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello" + hidden, 502},
		"a broken field":                  {"GET", "HTTP/1.1 200 OK\r\nX-A: b\rSet-Cookie: c\r\nContent-Length: 5\r\n\r\nhello" + hidden, 502},
		"101 without being asked":         {"GET", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + hidden, 502},
		"101 with a length":               {"POST", "HTTP/1.1 101 Switching Protocols\r\nContent-Length: 5\r\n\r\nhello" + hidden, 502},
		"interim with a length":           {"GET", "HTTP/1.1 103 Early Hints\r\nContent-Length: 8\r\nTransfer-Encoding: chunked\r\n\r\n" + plainAnswer("hello") + hidden, 200},
	}
	for name, c := range odd {
		h := verbatim(func(r *http.Request) string {
			if r.URL.Path == "/odd" {
				return c.answer
			}
			return plainAnswer("own of " + r.URL.Path)
		})
		for _, w := range ways() {
			if w.name != "intercepted" && w.name != "HTTP/2" && w.name != "plain" {
				continue // what answers is the same on the others
			}
			t.Run(name+", "+w.name, func(t *testing.T) {
				var set []setting
				if !w.tls {
					set = append(set, plainUpstream)
				}
				e := newEnv(t, h, set...)
				ask := e.onOne(w, "plain.allowed.test")
				for i := range 3 {
					r, fields := ask(c.method, "/odd")
					if r.StatusCode != c.status || strings.Contains(r.body+fields, "SMUGGLED") {
						t.Fatalf("the odd one: %v %q", r.Response, r.body)
					}
					if c.status == 204 && strings.Contains(strings.ToLower(fields), "content-length") || strings.Count(strings.ToLower(fields), "transfer-encoding") > 1 {
						t.Errorf("the odd one has %s", fields)
					}
					for j := range 3 {
						path := fmt.Sprintf("/%d/%d", i, j)
						if r, _ := ask("GET", path); r.StatusCode != 200 || r.body != "own of "+path {
							t.Fatalf("after it: %v %q", r.Response, r.body)
						}
					}
				}
				for i, rec := range e.tape.completed(t, 12) {
					if (rec.Response == nil || rec.Response.Status != 200) && i%4 != 0 {
						t.Errorf("record %s", dump([]audit.Record{rec}))
					}
				}
				if n := strings.Count(e.up.bytes(), " /odd HTTP/1.1"); n != 3 {
					t.Errorf("it was asked %d times", n)
				}
			})
		}
	}
}

// onOne asks again and again on one connection; the fields come as text.
func (e *env) onOne(w way, host string) func(method, path string) (reply, string) {
	if w.h2 {
		r, stream := e.rawH2(host), uint32(1)
		return func(method, path string) (reply, string) {
			r.headers(stream, ":method", method, ":scheme", "https", ":path", path, ":authority", host)
			out := r.reply(stream)
			if out.Response == nil {
				e.t.Fatalf("no answer to %s", path)
			}
			stream += 2
			return out, fmt.Sprint(out.Header)
		}
	}
	c := e.open(w, host)
	br := bufio.NewReader(c)
	return func(method, path string) (reply, string) {
		send(e.t, c, method+" "+path+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		r := readReply(e.t, br, method)
		for r.StatusCode < 200 {
			if r.Header.Get("Content-Length")+r.Header.Get("Transfer-Encoding") != "" || len(r.TransferEncoding) > 0 {
				e.t.Errorf("an interim answer has %v", r.Header)
			}
			r = readReply(e.t, br, method)
		}
		if r.err != nil {
			e.t.Fatal(r.err)
		}
		if r.Close {
			c = e.open(w, host)
			br = bufio.NewReader(c)
		}
		return r, fmt.Sprint(r.Header, len(r.TransferEncoding))
	}
}

// The same where many requests at once take each connection the moment it is free.
func TestWhatFollowsAnAnswerIsNoAnswerUnderLoad_I5(t *testing.T) {
	catchStandardLog(t)
	e := newEnv(t, verbatim(func(r *http.Request) string {
		if r.Method == http.MethodHead {
			return "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + plainAnswer("SMUGGLED")
		}
		return plainAnswer("own of "+r.URL.Path) + plainAnswer("SMUGGLED")
	}), plainUpstream)
	var wg sync.WaitGroup
	var own atomic.Int64
	for worker := range 8 {
		c := e.plain("plain.allowed.test")
		wg.Go(func() {
			br := bufio.NewReader(c)
			for i := range 60 {
				method, want := "GET", fmt.Sprintf("own of /%d/%d", worker, i)
				if i%2 == 0 {
					method, want = "HEAD", ""
				}
				_, _ = io.WriteString(c, fmt.Sprintf("%s /%d/%d HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n", method, worker, i))
				resp, err := http.ReadResponse(br, &http.Request{Method: method})
				if err != nil {
					t.Errorf("%s: %v", want, err)
					return
				}
				b, err := io.ReadAll(resp.Body)
				switch {
				case err == nil && resp.StatusCode == 200 && string(b) == want:
					own.Add(1)
				case err != nil || resp.StatusCode != 502 || strings.Contains(string(b), "SMUGGLED"): // each connection that it got was spoilt
					t.Errorf("want %q: %d %q %v", want, resp.StatusCode, b, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if own.Load() < 400 {
		t.Errorf("only %d of 480 got their answer", own.Load())
	}
}

// What came before anything was asked is not the answer (a connection that is used
// again), and the request goes to another one.
func TestASettledConnectionHoldsNothing_I5(t *testing.T) {
	client, far := pair(t)
	c := &upstreamConn{Conn: client}
	c.use.Store(1)
	done, settled := make(chan struct{}), make(chan struct{})
	go func() { c.settle(done); close(settled) }()
	select {
	case <-settled:
		t.Fatal("settled while somebody may still hold bytes")
	case <-time.After(20 * time.Millisecond): // time enough for it to be wrong
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 100))
		failed <- err
	}()
	<-settled
	c.use.Store(2)
	send(t, far, "HTTP/1.1 200 OK\r\n\r\n")
	if err := <-failed; err != errUnasked {
		t.Errorf("unasked bytes: %v", err)
	}
	// Once something was asked they are the answer.
	send(t, c, "GET / HTTP/1.1\r\n\r\n")
	send(t, far, "HTTP/1.1 204 No Content\r\n\r\n")
	if n, err := c.Read(make([]byte, 100)); n == 0 || err != nil {
		t.Errorf("the answer: %d %v", n, err)
	}
	// It does not wait for one that was closed, nor for a request that was given up.
	c.Close()
	c.settle(done)
	close(done)
	(&upstreamConn{Conn: client}).settle(done)
}

// Interim answers of one exchange are bounded together, whoever gets them.
func TestInterimAnswersAreBounded_I9(t *testing.T) {
	for _, host := range []string{"plain.allowed.test", "api.allowed.test"} { // the latter's are not passed on
		sent := make(chan int, 100)
		e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			n, most := 0, 20
			if r.URL.Path == "/flood" {
				most = 100_000
			}
			for ; n < most && err == nil; n++ {
				_, err = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </"+strings.Repeat("a", 100)+">\r\n\r\n")
			}
			sent <- n
			_, _ = io.WriteString(c, plainAnswer("hello"))
		})
		for _, w := range ways() {
			if w.name != "intercepted" && w.name != "HTTP/2" {
				continue
			}
			ask := e.onOne(w, host)
			if r, _ := ask("GET", "/few"); r.StatusCode != 200 || r.body != "hello" {
				t.Errorf("%s: a few: %v %q", w.name, r.Response, r.body)
			}
			<-sent
			r, _ := ask("GET", "/flood")
			if r.StatusCode != 502 || r.reason() != reasonUpstreamProtocol {
				t.Errorf("%s: flood: %v %q", w.name, r.Response, r.body)
			}
			if n := <-sent; n >= 100_000 {
				t.Errorf("%s: all %d were taken", w.name, n)
			}
			if r, _ := ask("GET", "/few"); r.StatusCode != 200 {
				t.Errorf("%s: after it: %v", w.name, r.Response)
			}
			<-sent
		}
		if rec := e.tape.completed(t, 6)[1]; rec.Reason != reasonUpstreamProtocol || rec.Verdict != verdictError || rec.Request.Attempts != 1 {
			t.Errorf("record %s", dump([]audit.Record{rec}))
		}
	}
}
