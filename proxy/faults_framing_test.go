package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"warder/internal/config"
)

// open gives a connection on which HTTP/1 is spoken, by a way that is not HTTP/2.
func (e *env) open(w way, dest string) net.Conn {
	e.t.Helper()
	switch w.name {
	case "plain":
		return e.plain(dest)
	case "absolute form":
		return e.explicit()
	case "SOCKS5":
		return e.socksTo(dest, 80)
	case "intercepted":
		return e.tls(dest)
	case "CONNECT":
		return e.tunnel(dest)
	}
	e.t.Fatalf("%s is not HTTP/1", w.name)
	return nil
}

// Messages of whose end two parsers could have two opinions: 400, one record,
// the connection ends, and what was hidden behind goes nowhere.
func TestSmuggling_F044_F045_F047(t *testing.T) {
	const hidden = "GET /secret HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n"
	onEveryWay(t, []setting{policy(allowEverything)}, func(t *testing.T, w way, e *env) {
		if w.h2 {
			hiddenInHTTP2(t, w, e)
			return
		}
		target := "/"
		if w.name == "absolute form" {
			target = "http://plain.allowed.test/"
		}
		for name, rest := range map[string]string{
			"F044 both":                      "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
			"F044 both, the other way round": "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
			"F044 both, odd case":            "content-LENGTH: 4\r\ntransfer-ENCODING: chunked\r\n\r\n0\r\n\r\n",
			"F045 two lengths":               "Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
			"F045 list of lengths":           "Content-Length: 4, 5\r\n\r\nabcd",
			"F045 length with a sign":        "Content-Length: +4\r\n\r\nabcd",
			"F045 length of letters":         "Content-Length: abc\r\n\r\n",
			"F045 xchunked":                  "Transfer-Encoding: xchunked\r\n\r\n",
			"F045 chunked, identity":         "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
			"F045 chunked with vertical tab": "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n",
			"F047 bare LF":                   "X: y\nContent-Length: 4\r\n\r\nabcd",
			"F047 bare LF at the end":        "X: y\n\n",
			"F047 bare CR":                   "X: y\rContent-Length: 4\r\n\r\nabcd",
		} {
			had, before := e.tape.count("completed"), e.up.bytes()
			c := e.open(w, "plain.allowed.test")
			send(t, c, "POST "+target+" HTTP/1.1\r\nHost: plain.allowed.test\r\n"+rest+hidden)
			br := bufio.NewReader(c)
			r := readReply(t, br, "POST")
			if r.StatusCode != 400 || r.reason() != reasonBadRequest {
				t.Errorf("%s: %d %q", name, r.StatusCode, r.body)
			}
			if more, err := io.ReadAll(br); len(more) != 0 || isTimeout(err) {
				t.Errorf("%s: more came, or the connection is open: %q %v", name, more, err)
			}
			rec := e.tape.completed(t, had+1)[had]
			if rec.Reason != reasonBadRequest || rec.Verdict != verdictDeny || e.up.bytes() != before {
				t.Errorf("%s: upstream saw %q, record %s", name, e.up.bytes(), dump(e.tape.recs[had:]))
			}
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "POST", target: "/control", body: "abcd"})
	})
}

// HTTP/2 has no such doubt, but a length that is not that of the data has to be
// noticed, and no field may become one of HTTP/1.
func hiddenInHTTP2(t *testing.T, w way, e *env) {
	t.Helper()
	for _, line := range []string{"transfer-encoding: chunked", "content-length: 4", "connection: close", "x: y\r\ncontent-length: 0", "content-length: +4"} {
		e.denied(w, "plain.allowed.test", attempt{method: "POST", target: "/", lines: []string{line}}, 400, reasonBadRequest)
	}
	// More data than was announced: whatever was begun at the upstream is not a
	// whole request.
	r, rec, _ := e.probe(w, "plain.allowed.test", attempt{method: "POST", target: "/long", lines: []string{"content-length: 2"}, body: "abcdef"})
	if r.Response != nil && r.StatusCode == 200 || strings.Contains(e.up.bytes(), "abcdef") {
		t.Errorf("more data than the length: %v, upstream saw %q, record %s", r.Response, e.up.bytes(), rec.Reason)
	}
}

// What one request may hold is bounded while it is read.
func TestUnboundedHeads_F048(t *testing.T) {
	onEveryWay(t, []setting{policy(allowEverything)}, func(t *testing.T, w way, e *env) {
		many := make([]string, 2000)
		for i := range many {
			many[i] = fmt.Sprintf("X-%d: y", i)
		}
		for name, lines := range map[string][]string{"many fields": many, "a long field": {"X: " + strings.Repeat("y", 70_000)}} {
			had := e.tape.count("completed")
			r, rec, sent := e.probe(w, "plain.allowed.test", attempt{method: "GET", target: "/", lines: lines})
			if r.Response != nil && r.StatusCode != 431 || rec.Verdict != verdictDeny || sent != "" || e.tape.count("completed") != had+1 {
				t.Errorf("%s: %v, record %+v", name, r.Response, rec)
			}
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/control"})
	})
}

// Names that share certificate and address do not share connections.
func TestConnectionsHaveOneName_F051(t *testing.T) {
	onEveryWay(t, nil, func(t *testing.T, w way, e *env) {
		names := []string{"plain.allowed.test", "other.allowed.test"}
		for range 3 {
			for _, name := range names {
				e.allowed(w, name, attempt{method: "GET", target: "/"})
			}
		}
		e.up.mu.Lock()
		defer e.up.mu.Unlock()
		seen := map[string]bool{}
		for _, raw := range e.up.raw {
			of := ""
			for _, name := range names {
				if strings.Contains(raw.String(), "Host: "+name+"\r\n") {
					of += name
					seen[name] = true
				}
			}
			if of == strings.Join(names, "") {
				t.Errorf("one connection had both: %q", raw.String())
			}
		}
		if len(seen) != len(names) {
			t.Errorf("only %v arrived", seen)
		}
	})
}

// The version of the upstream's answer is the upstream's affair.
func TestStatusLines_F052(t *testing.T) {
	for _, version := range []string{"HTTP/1.0", "HTTP/1.1"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					http.ReadRequest(bufio.NewReader(c))
					io.WriteString(c, version+" 200 Fine\r\nContent-Length: 2\r\n\r\nok")
				}()
			}
		}()
		e := newEnv(t, nil, plainUpstream, func(_ *env, o *Options, _ *RunOptions) {
			o.Upstream.Hosts["plain.allowed.test"] = ln.Addr().String()
			o.Upstream.AllowAddresses = []string{ln.Addr().String()}
		})
		for host, want := range map[string]string{"plain.allowed.test": "HTTP/1.1 200 ", "evil.test": "HTTP/1.1 403 "} {
			c := e.plain(host)
			send(t, c, get("/", host))
			if got := read(t, c, len(want)); got != want {
				t.Errorf("%s: %q", version, got)
			}
			c.Close()
		}
		e.tape.completed(t, 2)
	}
}

// A stand-in in frames of a WebSocket is never made the value: it is counted where
// it can be read, and a credentialed upgrade has no compression.
func TestStandInsInFrames_F056_F073(t *testing.T) {
	for _, host := range []string{"plain.allowed.test", "api.allowed.test"} {
		t.Run(host, func(t *testing.T) {
			e := newEnv(t, wsUpstream(t), withStandIn(config.Inject{Header: "Authorization", Format: "Bearer {value}"}))
			v := e.standIn()
			c := e.tls(host)
			send(t, c, strings.Replace(wsRequest, "plain.allowed.test", host, 1))
			br := bufio.NewReader(c)
			resp, err := http.ReadResponse(br, &http.Request{Method: "GET"})
			if err != nil || resp.StatusCode != 101 {
				t.Fatalf("%v %v", resp, err)
			}
			if greeting, err := br.ReadString('|'); err != nil || strings.Contains(greeting, canary) {
				t.Errorf("%q %v", greeting, err)
			}
			frame := func(op byte, payload string) string { return string([]byte{op, byte(len(payload))}) + payload }
			frames := frame(0x81, v) + frame(0x82, v) + frame(0x01, v[:10]) + frame(0x80, v[10:])
			send(t, c, frames)
			if got := make([]byte, len(frames)); true {
				if _, err := io.ReadFull(br, got); err != nil || string(got) != frames {
					t.Errorf("%q %v", got, err)
				}
			}
			c.Close()
			rec := e.tape.completed(t, 1)[0]
			sent := e.up.bytes()
			if _, body, _ := strings.Cut(sent, "\r\n\r\n"); body != frames || strings.Count(sent, canary) != map[string]int{"api.allowed.test": 1}[host] {
				t.Errorf("upstream saw %q", sent)
			}
			if rec.Request.StandIns != 2 { // the fragments have a head between them
				t.Errorf("counted %d", rec.Request.StandIns)
			}
		})
	}
}

// A stand-in in a body stays what it is, also where its value goes.
func TestBodiesAreNeverSubstituted_F072_F073(t *testing.T) {
	onWays(t, nil, []setting{withStandIn(config.Inject{Header: "Authorization", Format: "Bearer {value}"})}, func(t *testing.T, w way, e *env) {
		v := e.standIn()
		host := "plain.allowed.test"
		if w.tls {
			host = "api.allowed.test"
		}
		escaped := fmt.Sprintf(`{"text": "\u%04x%s"}`, v[0], v[1:])
		for body, counted := range map[string]int64{`{"text": "` + v + `"}`: 1, escaped: 0} {
			rec, sent := e.allowed(w, host, attempt{method: "POST", target: "/comments", lines: []string{"Content-Type: application/json"}, body: body})
			if !strings.HasSuffix(sent, "\r\n\r\n"+body) && !strings.Contains(sent, body) || rec.Request.StandIns != counted {
				t.Errorf("upstream saw %q, counted %d", sent, rec.Request.StandIns)
			}
			if want := map[bool]int{true: 1}[w.tls]; strings.Count(sent, canary) != want {
				t.Errorf("the value is %d times in %q", strings.Count(sent, canary), sent)
			}
		}
	})
}

// In every encoding in which a client sends a password.
func TestEncodedStandIns_F070_F072(t *testing.T) {
	onWays(t, nil, []setting{withStandIn(config.Inject{Header: "Authorization", Format: "Bearer {value}"})}, func(t *testing.T, w way, e *env) {
		v := e.standIn()
		escaped := fmt.Sprintf("%%%02X%s", v[0], v[1:])
		for _, a := range []attempt{
			{lines: []string{"Authorization: Basic " + basic("user:"+v)}},
			{lines: []string{"Authorization: basic " + basic(v+":x-oauth-basic")}},
			{lines: []string{"X-Token: " + v}},
			{lines: []string{"Cookie: a=b; t=" + escaped}},
			{target: "/?token=" + v},
			{target: "/?token=" + escaped},
			{target: "/" + v + "/x"},
			{lines: []string{"Content-Type: application/x-www-form-urlencoded"}, body: "a=b&token=" + escaped},
		} {
			a.method = "POST"
			if a.target == "" {
				a.target = "/"
			}
			e.denied(w, "plain.allowed.test", a, 403, reasonStandInLeak)
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/control"})
	})
}

// A frame that ends like the start of the value arrives before the next is sent.
func TestFramesOfACredentialedWebSocketArriveWhole_F057(t *testing.T) {
	e := newEnv(t, wsUpstream(t))
	c := e.tls("api.allowed.test")
	send(t, c, strings.Replace(wsRequest, "plain.allowed.test", "api.allowed.test", 1))
	br := bufio.NewReader(c)
	if resp, err := http.ReadResponse(br, &http.Request{Method: "GET"}); err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v %v", resp, err)
	}
	if greeting, err := br.ReadString('|'); err != nil || strings.Contains(greeting, canary) {
		t.Fatalf("%q %v", greeting, err)
	}
	for _, payload := range []string{"S", "S3CR3T", "ends in 5", "U"} {
		frame := string([]byte{0x81, byte(len(payload))}) + payload
		send(t, c, frame)
		got := make([]byte, len(frame))
		if _, err := io.ReadFull(br, got); err != nil || string(got) != frame {
			t.Fatalf("%q %v", got, err)
		}
	}
}
