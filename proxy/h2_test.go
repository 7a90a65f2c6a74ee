package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"warder/policies"
)

// h2 is a client's HTTP/2 connection to a name.
func (e *env) h2(name string) (*http2.ClientConn, *tls.Conn) {
	e.t.Helper()
	tc := e.tlsALPN(name, "h2", "http/1.1")
	if got := tc.ConnectionState().NegotiatedProtocol; got != "h2" {
		e.t.Fatalf("ALPN gave %q", got)
	}
	cc, err := (&http2.Transport{DisableCompression: true}).NewClientConn(tc)
	if err != nil {
		e.t.Fatal(err)
	}
	return cc, tc
}

func (e *env) tlsALPN(name string, protocols ...string) *tls.Conn {
	e.t.Helper()
	c, s := pair(e.t)
	e.run.ServeConn(s, dest(name, 443))
	cfg := e.clientTLS(name)
	cfg.NextProtos = protocols
	tc := tls.Client(c, cfg)
	if err := tc.Handshake(); err != nil {
		e.t.Fatalf("handshake: %v", err)
	}
	return tc
}

func h2Ask(t *testing.T, cc *http2.ClientConn, method, url string, body io.Reader) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return h2Do(t, cc, req)
}

func h2Do(t *testing.T, cc *http2.ClientConn, req *http.Request) reply {
	t.Helper()
	resp, err := cc.RoundTrip(req)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	return reply{resp, string(b), err}
}

func TestHTTP2EveryStreamIsJudged_F050(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Up", r.Proto)
		io.WriteString(w, "got "+r.Header.Get("Authorization"))
	})
	inner := e.policy.fn
	e.policy.fn = func(in *policies.Input) policies.Decision {
		if in.Request.Path == "/secret" {
			return policies.Decision{Verdict: policies.Deny, Reason: reasonDenied, Rule: "closed"}
		}
		return inner(in)
	}
	cc, _ := e.h2("api.allowed.test")
	for i, c := range []struct {
		method, url, body string
		status            int
		reason            string
	}{
		{"GET", "https://api.allowed.test/a?x=1&x=2", "", 200, ""},
		{"POST", "https://api.allowed.test/b", "body", 200, ""},
		{"GET", "https://api.allowed.test/secret", "", 403, "denied"},
		{"GET", "https://evil.test/", "", 421, "authority-mismatch"},
		{"GET", "https://other.allowed.test/", "", 421, "authority-mismatch"},
		{"GET", "https://api.allowed.test:8443/", "", 421, "authority-mismatch"},
		{"GET", "https://api.allowed.test/a/../secret", "", 400, "bad-request"},
		{"GET", "http://api.allowed.test/", "", 400, "bad-request"},
		{"BREW", "https://api.allowed.test/", "", 405, "method-not-allowed"},
	} {
		var body io.Reader
		if c.body != "" {
			body = strings.NewReader(c.body)
		}
		r := h2Ask(t, cc, c.method, c.url, body)
		if r.StatusCode != c.status || r.reason() != c.reason || r.ProtoMajor != 2 || strings.Contains(r.body, canary) {
			t.Errorf("%s: %d %q", c.url, r.StatusCode, r.body)
		}
		if c.status == 200 && (r.Header.Get("X-Up") != "HTTP/1.1" || !strings.HasPrefix(r.body, "got Bearer ")) {
			t.Errorf("%s: %v %q", c.url, r.Header, r.body)
		}
		rec := e.tape.completed(t, i+1)[i]
		if rec.Reason != c.reason || rec.Request.Protocol != "h2" || rec.Request.Host != "api.allowed.test" || rec.Mode != "intercepted" {
			t.Errorf("%s: record %s", c.url, dump(e.tape.recs[len(e.tape.recs)-1:]))
		}
	}
	raw := e.up.bytes()
	if strings.Count(raw, " HTTP/1.1\r\n") != 2 || strings.Count(raw, canary) != 2 || strings.Contains(raw, "evil") || strings.Contains(raw, "secret") ||
		!strings.HasPrefix(raw, "GET /a?x=1&x=2 HTTP/1.1\r\nHost: api.allowed.test\r\n") || !strings.Contains(raw, "\r\n\r\nbody") {
		t.Errorf("upstream saw %q", raw)
	}
	if e.tape.count("reserved") != 2 {
		t.Errorf("records %s", dump(e.tape.recs))
	}
}

func TestHTTP2IsOfferedWhereverTLSIsTerminated(t *testing.T) {
	for _, way := range []string{"transparent", "CONNECT"} {
		e := newEnv(t, nil)
		c := e.explicit()
		if way == "CONNECT" {
			send(t, c, "CONNECT api.allowed.test:443 HTTP/1.1\r\nHost: api.allowed.test:443\r\n\r\n")
			if _, err := io.ReadFull(c, make([]byte, len("HTTP/1.1 200 Connection Established\r\n\r\n"))); err != nil {
				t.Fatal(err)
			}
		} else {
			var s net.Conn
			c, s = pair(t)
			e.run.ServeConn(s, dest("api.allowed.test", 443))
		}
		cfg := e.clientTLS("api.allowed.test")
		cfg.NextProtos = []string{"h2"}
		cc, err := (&http2.Transport{}).NewClientConn(tls.Client(c, cfg))
		if err != nil {
			t.Fatal(err)
		}
		if r := h2Ask(t, cc, "GET", "https://api.allowed.test/", nil); r.StatusCode != 200 || r.body != "hello" {
			t.Errorf("%s: %d %q", way, r.StatusCode, r.body)
		}
	}
}

func TestHTTP2StreamsAndTrailers_F059_F061(t *testing.T) {
	next := make(chan struct{})
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Trailer", "X-T")
		w.Write([]byte("one "))
		w.(http.Flusher).Flush()
		<-next
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "two %d %s", len(b), r.Trailer.Get("X-Sum"))
		w.Header().Set("X-T", "end "+canary)
	})
	cc, _ := e.h2("api.allowed.test")
	pr, pw := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", "https://api.allowed.test/s", pr)
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer = http.Header{"X-Sum": {"42"}}
	resp, err := cc.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "one " {
		t.Fatalf("%q %v", first, err) // before the request has ended
	}
	close(next)
	pw.Write(bytes.Repeat([]byte("x"), 1000))
	pw.Close()
	rest, err := io.ReadAll(resp.Body)
	if err != nil || string(rest) != "two 1000 42" {
		t.Errorf("%q %v", rest, err)
	}
	if got := resp.Trailer.Get("X-T"); !strings.HasPrefix(got, "end ") || strings.Contains(got, canary) {
		t.Errorf("trailer %q", got)
	}
}

// rawH2 speaks frames.
type rawH2 struct {
	t  testing.TB
	c  *tls.Conn
	fr *http2.Framer
}

func (e *env) rawH2(name string) *rawH2 {
	return newRawH2(e.t, e.tlsALPN(name, "h2"))
}

func newRawH2(t testing.TB, c *tls.Conn) *rawH2 {
	t.Helper()
	send(t, c, http2.ClientPreface)
	r := &rawH2{t, c, http2.NewFramer(c, c)}
	r.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := r.fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return r
}

// open begins a stream whose body has yet to come.
func (r *rawH2) open(stream uint32, fields ...string) { r.t.Helper(); r.write(stream, false, fields) }

func (r *rawH2) headers(stream uint32, fields ...string) { r.t.Helper(); r.write(stream, true, fields) }

func (r *rawH2) write(stream uint32, end bool, fields []string) {
	r.t.Helper()
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // into memory
	}
	block := b.Bytes()
	first := block[:min(len(block), 16000)]
	block = block[len(first):]
	if err := r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0}); err != nil {
		r.t.Fatal(err)
	}
	for len(block) > 0 {
		part := block[:min(len(block), 16000)]
		block = block[len(part):]
		if r.fr.WriteContinuation(stream, len(block) == 0, part) != nil {
			return // refused in the middle
		}
	}
}

// answer gives the status of a stream, "reset", or "closed".
func (r *rawH2) answer(stream uint32) string {
	r.t.Helper()
	for {
		f, err := r.fr.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			if f.StreamID == stream {
				return f.PseudoValue("status")
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return "reset"
			}
		case *http2.GoAwayFrame:
			return "closed"
		}
	}
}

func ordinary(more ...string) []string {
	return append([]string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "plain.allowed.test"}, more...)
}

func TestHTTP2HostileStreamsAreRefusedAndRecorded_I6_F038_F048(t *testing.T) {
	for name, c := range map[string]struct {
		fields []string
		want   string
		reason string
	}{
		"a Host field beside :authority, the same": {ordinary("host", "plain.allowed.test"), "200", ""},
		"a Host field that differs":                {ordinary("host", "evil.test"), "reset", "authority-mismatch"},
		"two Host fields":                          {ordinary("host", "plain.allowed.test", "host", "evil.test"), "reset", "bad-request"},
		"Host alone":                               {[]string{":method", "GET", ":scheme", "https", ":path", "/", "host", "evil.test"}, "421", "authority-mismatch"},
		"no authority":                             {[]string{":method", "GET", ":scheme", "https", ":path", "/"}, "400", "bad-request"},
		"the scheme of clear text":                 {[]string{":method", "GET", ":scheme", "http", ":path", "/", ":authority", "plain.allowed.test"}, "400", "bad-request"},
		"absolute form":                            {[]string{":method", "GET", ":scheme", "https", ":path", "https://evil.test/", ":authority", "plain.allowed.test"}, "", "bad-request"},
		"CONNECT":                                  {[]string{":method", "CONNECT", ":authority", "plain.allowed.test"}, "", ""},
		"user information":                         {[]string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "x@plain.allowed.test"}, "", "bad-request"},
		"a length without a body":                  {ordinary("content-length", "5"), "400", "bad-request"},
		"two lengths":                              {ordinary("content-length", "0", "content-length", "0"), "400", "bad-request"},
		"Transfer-Encoding":                        {ordinary("transfer-encoding", "chunked"), "400", "bad-request"},
		"Connection":                               {ordinary("connection", "x"), "400", "bad-request"},
		"upper case":                               {ordinary("X-Upper", "x"), "reset", "bad-request"},
		"a line end in a value":                    {ordinary("x-a", "b\r\nAuthorization: x"), "reset", "bad-request"},
		"a large head":                             {ordinary("x-a", strings.Repeat("a", 70_000)), "431", "too-large"},
		"a head beyond all bounds":                 {ordinary("x-a", strings.Repeat("a", 400_000)), "", ""},
		"two paths":                                {ordinary(":path", "/x"), "reset", "bad-request"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil)
			r := e.rawH2("plain.allowed.test")
			r.headers(1, c.fields...)
			got := r.answer(1)
			if got != c.want && c.want != "" || got == "200" && c.want != "200" {
				t.Errorf("answer %q", got)
			}
			r.c.Close()
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != c.reason && (c.reason != "" || c.want == "200") || c.want != "200" && rec.Verdict != verdictDeny {
				t.Errorf("record %s", dump(e.tape.recs))
			}
			if c.want != "200" && e.up.connections() != 0 {
				t.Errorf("upstream saw %q", e.up.bytes())
			}
		})
	}
}

func TestHTTP2ConnectionsWithoutARequestAreRecorded_I6(t *testing.T) {
	for name, bytes := range map[string]string{
		"nothing":            "",
		"no preface":         "GET / HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n",
		"a frame too large":  http2.ClientPreface + "\xff\xff\xff\x00\x00\x00\x00\x00\x00",
		"data on stream 0":   http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" + "\x00\x00\x01\x00\x00\x00\x00\x00\x00x",
		"a settings too few": http2.ClientPreface + "\x00\x00\x01\x04\x00\x00\x00\x00\x00x",
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil)
			c := e.tlsALPN("plain.allowed.test", "h2")
			send(t, c, bytes)
			c.CloseWrite()
			io.Copy(io.Discard, c)
			c.Close()
			if rec := e.tape.completed(t, 1)[0]; rec.Verdict != verdictDeny || rec.Reason != reasonBadRequest || rec.Request.Host != "plain.allowed.test" {
				t.Errorf("record %s", dump(e.tape.recs))
			}
		})
	}
}

// h2c is refused in both of its forms.
func TestClearTextHTTP2IsRefused(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	c := e.plain("plain.allowed.test")
	r := ask(t, c, http2.ClientPreface)
	if r.StatusCode != 400 {
		t.Errorf("prior knowledge: %d", r.StatusCode)
	}
	r = ask(t, e.plain("plain.allowed.test"), "GET / HTTP/1.1\r\nHost: plain.allowed.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n")
	if r.StatusCode != 200 || r.Proto != "HTTP/1.1" {
		t.Errorf("upgrade: %v", r.Response)
	}
	if raw := e.up.bytes(); strings.Contains(strings.ToLower(raw), "h2c") || strings.Contains(strings.ToLower(raw), "settings") {
		t.Errorf("upstream saw %q", raw)
	}
}

func TestHTTP2AbortsReachBothSides(t *testing.T) {
	gone := make(chan struct{})
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" {
			w.Header().Set("Content-Length", "100")
			w.Write([]byte("short"))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	})
	cc, _ := e.h2("plain.allowed.test")
	if r := h2Ask(t, cc, "GET", "https://plain.allowed.test/broken", nil); r.err == nil {
		t.Errorf("a broken answer looks whole: %q", r.body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", "https://plain.allowed.test/hang", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := cc.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the upstream's request was not cancelled")
	}
	e.tape.completed(t, 2)
}

func TestEndOfRunWaitsForStreams(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	cc, _ := e.h2("plain.allowed.test")
	for range 20 {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://plain.allowed.test/hang", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cc.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.run.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := e.tape.count("completed"); n != 20 {
		t.Errorf("%d of 20 completed when the run had ended", n)
	}
}

// A client that wants an old protocol says so in the handshake (curl --http1.0).
func TestOlderProtocolsInTheHandshake(t *testing.T) {
	for _, protocol := range []string{"http/1.1", "http/1.0"} {
		e := newEnv(t, nil)
		c := e.tlsALPN("plain.allowed.test", protocol)
		send(t, c, "GET / "+strings.ToUpper(protocol)+"\r\nHost: plain.allowed.test\r\nConnection: close\r\n\r\n")
		b, err := io.ReadAll(c)
		if err != nil || !strings.HasSuffix(string(b), "\r\n\r\nhello") || c.ConnectionState().NegotiatedProtocol != protocol {
			t.Errorf("%s: %q %v", protocol, b, err)
		}
	}
}
