package proxy

import (
	"bufio"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"warder/internal/config"
	"warder/internal/identity"
	"warder/policies"
)

// head returns the first request head that the upstream saw.
func headOf(raw string) string {
	h, _, _ := strings.Cut(raw, "\r\n\r\n")
	return h
}

func TestForwardedBytesAreThoseJudged_I5_F034_F041_F043(t *testing.T) {
	for _, target := range []string{"/o/dir%2Fname?alt=media", "/a%20b+c%3B;d=1", "/v1?x=1&x=2&%61=b;c", "/v1?", "/%C3%BC?a=%2e%2e//", "/?q=" + strings.Repeat("x", 8000)} {
		e := newEnv(t, nil, policy(func(in *policies.Input) policies.Decision {
			d := byHost(in)
			d.EncodedSlash = true
			return d
		}))
		body := "0123456789\r\n\x00\xff binary"
		r := ask(t, e.tls("api.allowed.test"), fmt.Sprintf("POST %s HTTP/1.1\r\nHost: API.allowed.test:443\r\nContent-Length: %d\r\nX-Case: Kept \r\nAccept: */*\r\n\r\n%s", target, len(body), body))
		if r.StatusCode != 200 {
			t.Fatalf("answer %d %q", r.StatusCode, r.body)
		}
		raw := e.up.bytes()
		if !strings.HasPrefix(raw, "POST "+target+" HTTP/1.1\r\nHost: api.allowed.test:443\r\n") || !strings.HasSuffix(raw, "\r\n\r\n"+body) {
			t.Errorf("upstream saw %q", raw)
		}
		lines := strings.Split(headOf(raw), "\r\n")[1:]
		slices.Sort(lines)
		want := []string{"Accept: */*", "Authorization: Bearer " + canary, fmt.Sprintf("Content-Length: %d", len(body)), "Host: api.allowed.test:443", "X-Case: Kept"}
		if !slices.Equal(lines, want) {
			t.Errorf("upstream saw %q", lines)
		}
		if rec := e.tape.completed(t, 1)[0]; rec.Request.Bytes != int64(len(body)) || rec.Response.Bytes != 5 {
			t.Errorf("record %s", dump(e.tape.recs))
		}
	}
}

func TestHeadersOfTheHopStay_F076_F037_F058(t *testing.T) {
	e := newEnv(t, nil)
	raw := "GET / HTTP/1.1\r\nHost: api.allowed.test\r\nConnection: close, X-Hop, Authorization\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nProxy-Authorization: Basic eDp5\r\n" +
		"Proxy-Connection: keep-alive\r\nProxy-X: 1\r\nTE: trailers, gzip\r\nUpgrade: websocketx\r\nX-HTTP-Method-Override: DELETE\r\nX-Method-Override: DELETE\r\n" +
		"X-HTTP-Method: DELETE\r\nX-Forwarded-For: 1.2.3.4\r\nX-Stays: 1\r\nAuthorization: Bearer stolen\r\nauthorization: twice\r\n\r\n"
	if r := ask(t, e.tls("api.allowed.test"), raw); r.StatusCode != 200 {
		t.Fatalf("answer %d %q", r.StatusCode, r.body)
	}
	lines := strings.Split(headOf(e.up.bytes()), "\r\n")
	slices.Sort(lines[1:])
	want := []string{"GET / HTTP/1.1", "Authorization: Bearer " + canary, "Host: api.allowed.test", "Te: trailers", "X-Forwarded-For: 1.2.3.4", "X-Stays: 1"}
	if !slices.Equal(lines, want) {
		t.Errorf("upstream saw %q", lines)
	}
	// What was removed was not judged either.
	seen := e.policy.inputs()[0].Request.Headers
	for _, gone := range []string{"proxy-authorization", "x-http-method-override", "connection", "x-hop", "upgrade"} {
		if _, ok := seen[gone]; ok {
			t.Errorf("policy saw %s", gone)
		}
	}
	if strings.Contains(e.logs.String(), "eDp5") {
		t.Error("Proxy-Authorization is in the log")
	}
}

func TestCredentialReplacesTheClients_I3_F042(t *testing.T) {
	for name, c := range map[string]struct {
		in         config.Inject
		send, want string
	}{
		"header": {config.Inject{Header: "X-Api-Key"}, "GET /a?b=c HTTP/1.1\r\nHost: api.allowed.test\r\nx-api-KEY: stolen\r\nX-Api-Key: again\r\n\r\n", "X-Api-Key: " + canary},
		"basic":  {config.Inject{Basic: &config.Basic{Username: "u"}}, "GET /a?b=c HTTP/1.1\r\nHost: api.allowed.test\r\nAuthorization: Basic c3RvbGVu\r\n\r\n", "Authorization: Basic dTpTM0NSM1QtQ0FOQVJZLTAxMjM0NTY3ODk="},
		"query":  {config.Inject{Query: "key"}, "GET /a?key=stolen&b=c&k%65y=stolen HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n", "GET /a?b=c&key=" + canary + " HTTP/1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) { // F065: everything comes back
				w.Header().Set("X-Echo", r.RequestURI+r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"))
				w.Header().Set("Location", "https://api.allowed.test"+r.RequestURI) // F069
				w.WriteHeader(http.StatusFound)
				r.Header.Write(w)
				io.WriteString(w, r.RequestURI)
			}, func(_ *env, _ *Options, ro *RunOptions) { ro.Granter = testSession(t, ro.Run, c.in) })
			r := ask(t, e.tls("api.allowed.test"), c.send)
			if r.StatusCode != 302 {
				t.Fatalf("answer %d %q", r.StatusCode, r.body)
			}
			if n := strings.Count(e.up.bytes(), c.want); n != 1 || strings.Contains(e.up.bytes(), "stolen") || strings.Contains(e.up.bytes(), "c3RvbGVu") {
				t.Errorf("upstream saw %q", e.up.bytes())
			}
			all := r.body + fmt.Sprint(r.Header)
			if strings.Contains(all, canary) || strings.Contains(all, "dTpTM0NSM1Q") {
				t.Errorf("the client saw %q", all)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Response.Scrubbed < 2 || strings.Contains(dump(e.tape.recs), canary) {
				t.Errorf("record %s", dump(e.tape.recs))
			}
		})
	}
}

func TestRedirectsAreNotFollowed_F068(t *testing.T) {
	var hits atomic.Int64
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		http.Redirect(w, r, "https://evil.test/", http.StatusTemporaryRedirect)
	})
	if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.StatusCode != 307 || r.Header.Get("Location") != "https://evil.test/" {
		t.Errorf("answer %v", r.Response)
	}
	if hits.Load() != 1 {
		t.Errorf("%d requests", hits.Load())
	}
}

func TestCodingsAndRangesOnCredentialedExchanges(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, "value "+r.Header.Get("Authorization"))
			z.Close()
		case "/odd":
			w.Header().Set("Content-Encoding", "x-odd")
			io.WriteString(w, "value")
		default:
			io.WriteString(w, r.Header.Get("Accept-Encoding")+"|"+r.Header.Get("Range"))
		}
	})
	for _, c := range []struct{ host, want string }{
		{"api.allowed.test", "gzip;q=0.5, br|"},
		{"plain.allowed.test", "gzip;q=0.5, deflate, br, lzma|bytes=0-5"},
	} {
		raw := "GET / HTTP/1.1\r\nHost: " + c.host + "\r\nAccept-Encoding: gzip;q=0.5, deflate, br, lzma\r\nRange: bytes=0-5\r\n\r\n"
		if r := ask(t, e.tls(c.host), raw); r.body != c.want {
			t.Errorf("%s: %q", c.host, r.body)
		}
	}
	if r := ask(t, e.tls("api.allowed.test"), get("/gzip", "api.allowed.test")); strings.Contains(r.body, canary) || !strings.HasPrefix(r.body, "value Bearer ") || r.Header.Get("Content-Encoding") != "" {
		t.Errorf("answer %v %q", r.Header, r.body)
	}
	if r := ask(t, e.tls("api.allowed.test"), get("/odd", "api.allowed.test")); r.StatusCode != 502 || r.reason() != "upstream-protocol" {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
}

// A pooled connection that dies after the request was written: the request must
// not be written again, whatever its method.
func TestNothingWrittenIsSentTwice(t *testing.T) {
	for _, raw := range []string{
		get("/", "plain.allowed.test"),
		strings.Replace(get("/", "plain.allowed.test"), "GET", "HEAD", 1),
		strings.Replace(get("/", "plain.allowed.test"), "GET", "OPTIONS", 1),
		"POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nIdempotency-Key: 1\r\nContent-Length: 0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nX-Idempotency-Key: 1\r\nContent-Length: 3\r\n\r\nabc",
		"PUT / HTTP/1.1\r\nHost: plain.allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"DELETE / HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n",
	} {
		t.Run(raw[:6], func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			var requests atomic.Int64
			go func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						br := bufio.NewReader(c)
						for n := 1; ; n++ {
							req, err := http.ReadRequest(br)
							if err != nil {
								return
							}
							io.Copy(io.Discard, req.Body)
							requests.Add(1)
							if n == 2 {
								return // dies with the second request in hand
							}
							io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
						}
					}()
				}
			}()
			e := newEnv(t, nil, plainUpstream, func(_ *env, o *Options, _ *RunOptions) {
				o.Upstream.Hosts["plain.allowed.test"] = ln.Addr().String()
				o.Upstream.AllowAddresses = []string{ln.Addr().String()}
			})
			if r := ask(t, e.plain("plain.allowed.test"), get("/first", "plain.allowed.test")); r.StatusCode != 200 {
				t.Fatalf("answer %d %q", r.StatusCode, r.body)
			}
			r := ask(t, e.plain("plain.allowed.test"), raw)
			if r.StatusCode != 502 {
				t.Errorf("answer %d %q", r.StatusCode, r.body)
			}
			if n := requests.Load(); n != 2 {
				t.Errorf("the upstream got %d requests, want 2", n)
			}
			recs := e.tape.completed(t, 2)
			if recs[1].Request.Attempts != 1 || recs[1].Reason != "upstream-protocol" {
				t.Errorf("record %s", dump(recs))
			}
		})
	}
}

func TestAClosedIdleConnectionIsReplacedWithoutHarm(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	first := ask(t, e.plain("plain.allowed.test"), get("/", "plain.allowed.test"))
	if first.StatusCode != 200 {
		t.Fatal(first.Status)
	}
	e.tape.completed(t, 1)
	tr := e.run.transport("")
	tr.CloseIdleConnections()
	if r := ask(t, e.plain("plain.allowed.test"), get("/", "plain.allowed.test")); r.StatusCode != 200 {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
	if n := e.up.connections(); n != 2 {
		t.Errorf("%d upstream connections", n)
	}
}

func TestPoolsArePartedByRunAndCredential_I3_F082(t *testing.T) {
	e := newEnv(t, nil)
	other, err := e.p.NewRun(RunOptions{Run: identity.Run{ID: identity.NewRunID()}, Offered: []string{"api"}})
	if err != nil {
		t.Fatal(err)
	}
	var without atomic.Bool
	e.policy.fn = func(in *policies.Input) policies.Decision {
		d := byHost(in)
		if without.Load() {
			d.Credential = ""
		}
		return d
	}
	first := *e
	for i, step := range []func(){
		func() {},                       // run A with the credential: connection 1
		func() { without.Store(true) },  // run A without: connection 2
		func() { e.run = other },        // run B: connection 3
		func() { e.run = first.run },    // run A again: reuses 2
		func() { without.Store(false) }, // with the credential again: reuses 1
	} {
		step()
		if r := ask(t, e.tls("api.allowed.test"), get(fmt.Sprintf("/%d", i), "api.allowed.test")); r.StatusCode != 200 {
			t.Fatalf("step %d: %d %q", i, r.StatusCode, r.body)
		}
		e.tape.completed(t, i+1)
	}
	e.run = first.run
	if n := e.up.connections(); n != 3 {
		t.Errorf("%d upstream connections, want 3", n)
	}
}

func TestKeepAlivePoolIsWide(t *testing.T) {
	e := newEnv(t, nil)
	const workers, each = 16, 20
	var wg sync.WaitGroup
	for range workers {
		c := e.tls("plain.allowed.test")
		wg.Go(func() {
			br := bufio.NewReader(c)
			for range each {
				io.WriteString(c, get("/", "plain.allowed.test"))
				resp, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
			}
		})
	}
	wg.Wait()
	if n := e.up.connections(); n > 2*workers {
		t.Errorf("%d upstream connections for %d requests", n, workers*each)
	}
	e.tape.completed(t, workers*each)
}

func TestABrokenAnswerDoesNotLookWhole(t *testing.T) {
	for _, framing := range []string{"chunked", "length"} {
		t.Run(framing, func(t *testing.T) {
			e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
				if framing == "length" {
					w.Header().Set("Content-Length", "100")
				}
				io.WriteString(w, "half")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			})
			r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test"))
			if r.err == nil || r.body != "half" {
				t.Errorf("%q %v", r.body, r.err)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != "upstream-protocol" || rec.Response.Status != 200 || rec.Response.Bytes != 4 {
				t.Errorf("record %s", dump(e.tape.recs))
			}
		})
	}
}

func TestClientGoneCancelsTheUpstream_F064(t *testing.T) {
	started, gone := make(chan struct{}), make(chan struct{})
	e := newEnv(t, func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
		close(gone)
	})
	c := e.tls("plain.allowed.test")
	send(t, c, get("/", "plain.allowed.test"))
	<-started
	c.NetConn().Close()
	<-gone
	e.tape.completed(t, 1)
}

func TestRunCloseCutsWhatIsOpenAndCompletesItsRecord(t *testing.T) {
	started := make(chan struct{})
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "first")
		w.(http.Flusher).Flush()
		close(started)
		<-r.Context().Done()
	})
	c := e.tls("plain.allowed.test")
	send(t, c, get("/", "plain.allowed.test"))
	idle := e.tls("plain.allowed.test") // an idle one, and one that has sent nothing
	mute, s := pair(t)
	e.run.ServeConn(s, dest("plain.allowed.test", 443))
	<-started
	if err := e.run.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{c, idle, mute} {
		if _, err := io.Copy(io.Discard, c); err != nil && isTimeout(err) {
			t.Error("a connection is still open")
		}
	}
	e.tape.completed(t, 3)
	c2, s := pair(t)
	e.run.ServeConn(s, dest("plain.allowed.test", 443))
	if _, err := c2.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a connection after the end: %v", err)
	}
	e.tape.completed(t, 4)
	if err := e.run.Close(t.Context()); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestBodyIsReadAheadOnlyWhenThePolicyNeedsIt(t *testing.T) {
	for _, size := range []int{0, 10, 64, 65, 100000} {
		for _, chunked := range []bool{false, true} {
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				w.Write(b)
			},
				withLimits(Limits{BodyCap: 64}), func(e *env, _ *Options, _ *RunOptions) { e.policy.need.Body = true })
			body := strings.Repeat("b", size)
			raw := fmt.Sprintf("POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Length: %d\r\n\r\n%s", size, body)
			if chunked && size > 0 {
				raw = fmt.Sprintf("POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", size, body)
			}
			r := ask(t, e.tls("plain.allowed.test"), raw)
			if r.StatusCode != 200 || r.body != body {
				t.Errorf("size %d: %d, %d bytes", size, r.StatusCode, len(r.body))
			}
			in := e.policy.inputs()[0].Request
			if !in.BodyRead || len(in.Body) != min(size, 64) || in.BodyTruncated != (size > 64) {
				t.Errorf("size %d: policy saw %d bytes, read %v, truncated %v", size, len(in.Body), in.BodyRead, in.BodyTruncated)
			}
		}
	}
}

func TestTLSSessionsResume(t *testing.T) {
	e := newEnv(t, nil)
	cfg := e.clientTLS("plain.allowed.test")
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	cfg.NextProtos = []string{"http/1.1"}
	for i := range 2 {
		c, s := pair(t)
		e.run.ServeConn(s, dest("plain.allowed.test", 443))
		tc := tls.Client(c, cfg)
		if r := ask(t, tc, get("/", "plain.allowed.test")); r.StatusCode != 200 {
			t.Fatal(r.Status)
		}
		if st := tc.ConnectionState(); st.NegotiatedProtocol != "http/1.1" || st.DidResume != (i == 1) {
			t.Errorf("connection %d: %q, resumed %v", i, st.NegotiatedProtocol, st.DidResume)
		}
		tc.Close()
	}
}

func TestTiming(t *testing.T) {
	e := newEnv(t, nil)
	ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test"))
	rec := e.tape.completed(t, 1)[0]
	if rec.Timing.Total < rec.Timing.Upstream || rec.Timing.Upstream == 0 || rec.Dst.IP != "127.0.0.1" || rec.Dst.TLSVersion == "" || len(rec.Dst.CertSHA256) != 64 {
		t.Errorf("record %s", dump(e.tape.recs))
	}
}

func TestAnErrorThatQuotesTheUpstreamHoldsNoSecret_I2(t *testing.T) {
	for name, say := range map[string]string{
		"status line": "HTTP/1.1 x" + canary + " y\r\n\r\n", "no HTTP": canary + "\r\n\r\n",
		"header": "HTTP/1.1 200 OK\r\nbroken " + canary + "\r\n\r\n", "length": "HTTP/1.1 200 OK\r\nContent-Length: " + canary + "\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(c, say)
				c.Close()
			})
			if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.StatusCode != 502 || strings.Contains(r.body, canary) {
				t.Errorf("answer %d %q", r.StatusCode, r.body)
			}
			rec := e.tape.completed(t, 1)[0]
			if strings.Contains(dump(e.tape.recs), canary) || rec.Detail == "" {
				t.Errorf("record %s", dump(e.tape.recs))
			}
		})
	}
}

// lockedLog catches the standard logger's output.
func catchStandardLog(t *testing.T) *lockedBuffer {
	out := &lockedBuffer{}
	old := log.Writer()
	log.SetOutput(out)
	t.Cleanup(func() { log.SetOutput(old) })
	return out
}

func TestUnaskedBytesOfAnIdleUpstreamAreNotPrinted_I2(t *testing.T) {
	out := catchStandardLog(t)
	speak, spoken := make(chan struct{}), make(chan struct{})
	e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		<-speak
		io.WriteString(c, "HTTP/1.1 500 "+canary+"\r\n\r\n")
		c.Read(make([]byte, 1)) // until the proxy has hung up
		close(spoken)
	})
	if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.body != "ok" {
		t.Fatalf("answer %q", r.body)
	}
	e.tape.completed(t, 1)
	close(speak)
	<-spoken
	if strings.Contains(out.String(), canary) {
		t.Errorf("the standard logger has %q", out.String())
	}
	log.Print("control")
	if !strings.Contains(out.String(), "control") {
		t.Error("the positive control was not caught")
	}
}

// A body that breaks off in its framing is the client's fault: it is answered and
// recorded as that, although the request was on its way (I6, F045).
func TestBrokenFramingOfABodyIsTheClients_F045(t *testing.T) {
	for name, body := range map[string]string{
		"chunk size": "4\r\nabcd\r\nzz\r\nabcd\r\n0\r\n\r\n", "first chunk size": "zz\r\nabcd\r\n0\r\n\r\n", "chunk end": "4\r\nabcdXX0\r\n\r\n", "trailer": "4\r\nabcd\r\n0\r\nbad trailer\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				io.WriteString(w, "read it")
			})
			raw := "POST / HTTP/1.1\r\nHost: api.allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n" + body
			if r := ask(t, e.tls("api.allowed.test"), raw); r.StatusCode != 400 || r.reason() != "bad-request" {
				t.Errorf("answer %d %q", r.StatusCode, r.body)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Verdict != "deny" || rec.Reason != "bad-request" || e.tape.count("reserved") != 1 {
				t.Errorf("record %+v, %d reserved", rec, e.tape.count("reserved"))
			}
		})
	}
}
