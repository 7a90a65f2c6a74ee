package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"warder/audit"
)

// attempt is one request as a client writes it, odd or not.
type attempt struct {
	method, target string   // "GET", "/"
	host           string   // Host field or :authority; "": the destination
	lines          []string // further fields, "Name: value"
	body           string
}

// way is how a request comes to the proxy.
type way struct {
	name string
	tls  bool
	h2   bool
	ask  func(e *env, dest string, a attempt) reply
}

// ways are all of them. Each opens a connection for dest, makes one attempt and
// closes the connection. No answer is status 0.
func ways() []way {
	onHTTP1 := func(open func(e *env, dest string) net.Conn) func(*env, string, attempt) reply {
		return func(e *env, dest string, a attempt) reply {
			c := open(e, dest)
			defer c.Close()
			return e.askHTTP1(c, a)
		}
	}
	onHTTP2 := func(open func(e *env, dest string) net.Conn) func(*env, string, attempt) reply {
		return func(e *env, dest string, a attempt) reply {
			c := open(e, dest)
			defer c.Close()
			return e.askHTTP2(c, a)
		}
	}
	return []way{
		{"plain", false, false, onHTTP1(func(e *env, dest string) net.Conn { return e.plain(dest) })},
		{"absolute form", false, false, func(e *env, dest string, a attempt) reply {
			c := e.explicit()
			defer c.Close()
			if strings.HasPrefix(a.target, "/") || a.target == "" {
				a.target = "http://" + dest + a.target
			}
			return e.askHTTP1(c, a)
		}},
		{"SOCKS5", false, false, onHTTP1(func(e *env, dest string) net.Conn { return e.socksTo(dest, 80) })},
		{"intercepted", true, false, onHTTP1(func(e *env, dest string) net.Conn {
			c, s := pair(e.t)
			e.run.ServeConn(s, Destination{Name: dest, Addr: poolAddr(443)})
			return e.handshake(c, dest, "http/1.1")
		})},
		{"CONNECT", true, false, onHTTP1(func(e *env, dest string) net.Conn { return e.handshake(e.connectTo(dest), dest, "http/1.1") })},
		{"HTTP/2", true, true, onHTTP2(func(e *env, dest string) net.Conn {
			c, s := pair(e.t)
			e.run.ServeConn(s, Destination{Name: dest, Addr: poolAddr(443)})
			return e.handshake(c, dest, "h2")
		})},
		{"HTTP/2 in CONNECT", true, true, onHTTP2(func(e *env, dest string) net.Conn { return e.handshake(e.connectTo(dest), dest, "h2") })},
		{"HTTP/2 by SOCKS5", true, true, onHTTP2(func(e *env, dest string) net.Conn { return e.handshake(e.socksTo(dest, 443), dest, "h2") })},
	}
}

// onEveryWay runs a test once for each way, with a fresh proxy.
func onEveryWay(t *testing.T, set []setting, test func(t *testing.T, w way, e *env)) {
	t.Helper()
	onWays(t, nil, set, test)
}

// onWays is the same with the answers of h, nil being "hello".
func onWays(t *testing.T, h http.HandlerFunc, set []setting, test func(t *testing.T, w way, e *env)) {
	t.Helper()
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			all := set
			if !w.tls {
				all = append([]setting{plainUpstream}, set...)
			}
			test(t, w, newEnv(t, h, all...))
		})
	}
}

// probe makes an attempt and gives the answer, its one completed record, and what
// the upstream got of it.
func (e *env) probe(w way, dest string, a attempt) (reply, audit.Record, string) {
	e.t.Helper()
	before, had := e.up.bytes(), e.tape.count(audit.StageCompleted)
	if a.host == "" {
		a.host = dest
	}
	r := w.ask(e, dest, a)
	recs := e.tape.completed(e.t, had+1)
	return r, recs[had], e.up.bytes()[len(before):]
}

// denied makes an attempt that has to end with the reason, one record and nothing
// at the upstream. An HTTP/2 layer may give no answer but a reset; the record
// then says bad-request.
func (e *env) denied(w way, dest string, a attempt, status int, reason string) audit.Record {
	e.t.Helper()
	reserved := e.tape.count(audit.StageReserved)
	r, rec, sent := e.probe(w, dest, a)
	silent := w.h2 && r.Response == nil
	switch {
	case silent && rec.Verdict == verdictDeny && rec.Reason != "":
	case r.Response == nil:
		e.t.Errorf("%+v: no answer; record %s", a, dump([]audit.Record{rec}))
	case w.h2 && status == 400 && r.StatusCode == 400 && rec.Reason == reasonBadRequest && rec.Verdict == verdictDeny: // by the HTTP/2 layer too
	case r.StatusCode != status || r.reason() != reason || rec.Reason != reason || rec.Verdict != verdictDeny:
		e.t.Errorf("%+v: %d %q; record %s", a, r.StatusCode, r.body, dump([]audit.Record{rec}))
	}
	if sent != "" || e.tape.count(audit.StageReserved) != reserved {
		e.t.Errorf("%+v: reserved, or sent %q", a, sent)
	}
	return rec
}

// allowed makes an attempt that has to be answered 200, and gives what was sent.
func (e *env) allowed(w way, dest string, a attempt) (audit.Record, string) {
	e.t.Helper()
	r, rec, sent := e.probe(w, dest, a)
	if r.Response == nil || r.StatusCode != 200 || rec.Verdict != verdictAllow || rec.Reason != "" {
		e.t.Errorf("%+v: %v %q; record %s", a, r.Response, r.body, dump([]audit.Record{rec}))
	}
	return rec, sent
}

func (e *env) askHTTP1(c net.Conn, a attempt) reply {
	e.t.Helper()
	var b strings.Builder
	b.WriteString(a.method + " " + a.target + " HTTP/1.1\r\nHost: " + a.host + "\r\n")
	for _, l := range a.lines {
		b.WriteString(l + "\r\n")
	}
	if a.body != "" {
		b.WriteString("Content-Length: " + strconv.Itoa(len(a.body)) + "\r\n")
	}
	b.WriteString("\r\n" + a.body)
	_, _ = io.WriteString(c, b.String()) // what is too large may be refused before its end
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: a.method})
	if err != nil {
		return reply{}
	}
	text, err := io.ReadAll(resp.Body)
	return reply{resp, string(text), err}
}

func (e *env) askHTTP2(c net.Conn, a attempt) reply {
	e.t.Helper()
	r := newRawH2(e.t, c.(*tls.Conn))
	fields := []string{":method", a.method}
	if a.method != http.MethodConnect {
		fields = append(fields, ":scheme", "https", ":path", a.target)
	}
	fields = append(fields, ":authority", a.host)
	for _, l := range a.lines {
		name, value, _ := strings.Cut(l, ": ")
		fields = append(fields, strings.ToLower(name), value)
	}
	r.write(1, a.body == "", fields)
	if a.body != "" {
		_ = r.fr.WriteData(1, true, []byte(a.body)) // it may be refused already
	}
	return r.reply(1)
}

// reply reads one whole answer; a reset or an end of the connection is none.
func (r *rawH2) reply(stream uint32) reply {
	var out reply
	var body bytes.Buffer
	for {
		f, err := r.fr.ReadFrame()
		if err != nil {
			return reply{}
		}
		if f.Header().StreamID != stream {
			if _, gone := f.(*http2.GoAwayFrame); gone {
				return reply{}
			}
			continue
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			status, _ := strconv.Atoi(f.PseudoValue("status"))
			if status >= 200 && out.Response == nil {
				out.Response = &http.Response{StatusCode: status, Header: http.Header{}}
			}
			if out.Response == nil {
				continue // interim
			}
			for _, h := range f.RegularFields() {
				out.Header.Add(h.Name, h.Value)
			}
			if f.StreamEnded() {
				out.body = body.String()
				return out
			}
		case *http2.DataFrame:
			body.Write(f.Data())
			if f.StreamEnded() {
				out.body = body.String()
				return out
			}
		case *http2.RSTStreamFrame:
			return reply{}
		}
	}
}

// connectTo is a tunnel that was granted.
func (e *env) connectTo(dest string) net.Conn {
	e.t.Helper()
	c := e.explicit()
	send(e.t, c, "CONNECT "+dest+":443 HTTP/1.1\r\nHost: "+dest+":443\r\n\r\n")
	const granted = "HTTP/1.1 200 Connection Established\r\n\r\n"
	if got := read(e.t, c, len(granted)); got != granted {
		e.t.Fatalf("CONNECT: %q", got)
	}
	return c
}

func (e *env) socksTo(dest string, port uint16) net.Conn {
	e.t.Helper()
	c := e.explicit()
	send(e.t, c, "\x05\x01\x00")
	read(e.t, c, 2)
	send(e.t, c, socksName5(dest, port))
	if got := read(e.t, c, len(socksGranted)); got != socksGranted {
		e.t.Fatalf("SOCKS5: %q", got)
	}
	return c
}

// handshake is made as clients do: for the name without its final dot.
func (e *env) handshake(c net.Conn, dest, protocol string) *tls.Conn {
	e.t.Helper()
	cfg := e.clientTLS(strings.ToLower(strings.TrimSuffix(dest, ".")))
	cfg.NextProtos = []string{protocol}
	tc := tls.Client(c, cfg)
	if err := tc.Handshake(); err != nil {
		e.t.Fatalf("handshake: %v", err)
	}
	return tc
}

// fieldsOf gives the header lines of the only request in raw bytes.
func fieldsOf(raw, name string) []string {
	var out []string
	for _, line := range strings.Split(headOf(raw), "\r\n")[1:] {
		if k, v, ok := strings.Cut(line, ": "); ok && strings.EqualFold(k, name) {
			out = append(out, v)
		}
	}
	return out
}
