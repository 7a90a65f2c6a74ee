package proxy

import (
	"crypto/tls"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// Three names can differ: that of the tunnel, of the TLS and of the request. All are
// allowed ones, and the request still goes nowhere but to one that all of them name.
func TestThreeNames_I5_F023_F025(t *testing.T) {
	const a, b, c = "api.allowed.test", "plain.allowed.test", "other.allowed.test"
	for _, protocol := range []string{"http/1.1", "h2"} {
		for _, n := range [][3]string{{a, b, c}, {a, a, b}, {a, b, a}, {b, a, a}, {b, a, b}, {b, b, a}, {c, b, a}, {a, a, a}} {
			for _, way := range []string{"CONNECT", "transparent"} {
				e := newEnv(t, nil)
				var raw net.Conn
				if way == "CONNECT" {
					raw = e.connectTo(n[0])
				} else {
					client, server := pair(t)
					e.run.ServeConn(server, dest(n[0], 443))
					raw = client
				}
				r := e.inTLS(raw, n[1], protocol, attempt{method: "GET", target: "/", host: n[2]})
				rec := e.tape.completed(t, 1)[0]
				if n[0] == n[1] && n[1] == n[2] {
					if r.Response == nil || r.StatusCode != 200 || !strings.Contains(e.up.bytes(), canary) {
						t.Errorf("control: %v, upstream saw %q", r.Response, e.up.bytes())
					}
					continue
				}
				if r.Response == nil || r.StatusCode != 421 || r.reason() != reasonAuthorityMismatch || rec.Reason != reasonAuthorityMismatch || rec.Verdict != verdictDeny {
					t.Errorf("%s, %s, %v: %v %q", protocol, way, n, r.Response, r.body)
				}
				if asked, _, _ := strings.Cut(rec.Request.Asked, ":"); rec.Request.Host != n[0] || asked == n[0] || asked != n[1] && asked != n[2] {
					t.Errorf("%s, %s, %v: record %s, asked %s", protocol, way, n, rec.Request.Host, rec.Request.Asked)
				}
				if e.up.connections() != 0 || len(e.policy.inputs()) != 0 {
					t.Errorf("%s, %s, %v: judged, or the upstream saw %q", protocol, way, n, e.up.bytes())
				}
			}
		}
	}
}

// inTLS asks once within TLS for a name of its own.
func (e *env) inTLS(raw net.Conn, sni, protocol string, a attempt) reply {
	e.t.Helper()
	cfg := e.clientTLS(sni)
	cfg.NextProtos = []string{protocol}
	tc := tls.Client(raw, cfg)
	defer tc.Close()
	if err := tc.Handshake(); err != nil {
		e.t.Fatalf("handshake: %v", err)
	}
	if protocol == "h2" {
		return e.askHTTP2(tc, a)
	}
	return e.askHTTP1(tc, a)
}

// Forms of a target and of Host that are seldom seen, on a proxy and inside TLS.
func TestSeldomForms_I5_F017_F018_F019_F038(t *testing.T) {
	const p = "plain.allowed.test"
	for name, c := range map[string]struct {
		raw      string
		explicit int // the status when it is sent to a proxy
		inside   int // and within TLS for that name
	}{
		"an upper-case scheme":           {"GET HTTP://plain.allowed.test/x HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 200, 400},
		"an upper-case scheme of TLS":    {"GET HTTPS://plain.allowed.test/x HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 200},
		"an upper-case name":             {"GET http://PLAIN.Allowed.TEST./x HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 200, 400},
		"no Host in HTTP/1.0":            {"GET http://plain.allowed.test/x HTTP/1.0\r\n\r\n", 200, 400},
		"no Host in HTTP/1.1":            {"GET http://plain.allowed.test/x HTTP/1.1\r\n\r\n", 400, 400},
		"an empty Host":                  {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost:\r\n\r\n", 400, 400},
		"an empty Host, path alone":      {"GET /x HTTP/1.1\r\nHost: \r\n\r\n", 400, 400},
		"a Host of a port":               {"GET /x HTTP/1.1\r\nHost: :443\r\n\r\n", 400, 400},
		"Host twice, the same":           {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost: " + p + "\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"Host twice, odd case":           {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost: " + p + "\r\nhOST: evil.test\r\n\r\n", 400, 400},
		"Host twice, one empty":          {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost:\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"Host with a space before colon": {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost: " + p + "\r\nHost : evil.test\r\n\r\n", 400, 400},
		"Host in a list":                 {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost: " + p + ", evil.test\r\n\r\n", 400, 400},
		"port 0 in the URL":              {"GET http://plain.allowed.test:0/x HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"port 0 in Host":                 {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost: " + p + ":0\r\n\r\n", 400, 400},
		"port 00080":                     {"GET http://plain.allowed.test:00080/x HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"another port in Host":           {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost: " + p + ":8080\r\n\r\n", 421, 400},
		"userinfo in Host":               {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost: u:hidden@" + p + "\r\n\r\n", 400, 400},
		"userinfo, empty":                {"GET http://@plain.allowed.test/x HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"userinfo with an encoded at":    {"GET http://u%40plain.allowed.test/x HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"a zone":                         {"GET http://[fe80::1%25eth0]/x HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n\r\n", 400, 400},
		"a zone in Host":                 {"GET http://plain.allowed.test/x HTTP/1.1\r\nHost: [fe80::1%eth0]\r\n\r\n", 400, 400},
		"asterisk":                       {"OPTIONS * HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"an URL without a path":          {"OPTIONS http://plain.allowed.test HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 200, 400},
		"an URL with a query alone":      {"GET http://plain.allowed.test?x=1 HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 200, 400},
		"authority form without CONNECT": {"GET plain.allowed.test:80 HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"no authority":                   {"GET http:///x HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"one slash":                      {"GET http:/plain.allowed.test/x HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"an URL in a URL":                {"GET http://plain.allowed.test/http://evil.test/ HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"a backslash":                    {"GET http://plain.allowed.test\\@evil.test/ HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"a fragment":                     {"GET http://plain.allowed.test#@evil.test/ HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
		"a tab in the request line":      {"GET\thttp://plain.allowed.test/ HTTP/1.1\r\nHost: " + p + "\r\n\r\n", 400, 400},
	} {
		for where, want := range map[string]int{"explicit": c.explicit, "inside": c.inside} {
			var e *env
			var conn net.Conn
			if where == "explicit" {
				e = newEnv(t, nil, plainUpstream, policy(allowEverything))
				conn = e.explicit()
			} else {
				e = newEnv(t, nil, policy(allowEverything))
				conn = e.tls(p)
			}
			r := ask(t, conn, c.raw)
			conn.Close()
			rec, saw := e.tape.completed(t, 1)[0], e.up.bytes()
			if r.StatusCode != want || (rec.Verdict == verdictAllow) != (want == 200) || want != 200 && r.reason() != rec.Reason {
				t.Errorf("%s, %s: %d %q, record %s", name, where, r.StatusCode, r.body, dump(e.tape.recs))
			}
			if want == 200 {
				hosts := fieldsOf(saw, "Host")
				if len(hosts) != 1 || hosts[0] != p || strings.Contains(strings.ToLower(saw), "http://") {
					t.Errorf("%s, %s: upstream saw %q", name, where, saw)
				}
			} else if saw != "" || len(e.policy.inputs()) != 0 {
				t.Errorf("%s, %s: judged, or upstream saw %q", name, where, saw)
			}
			if strings.Contains(dump(e.tape.recs), "hidden") {
				t.Errorf("%s, %s: the user information is in %s", name, where, dump(e.tape.recs))
			}
		}
	}
}

// CONNECT within HTTP/2, plain and extended (RFC 8441), is refused and recorded, also
// where GODEBUG has the library take the latter.
func TestCONNECTWithinHTTP2_I5_I6_F029(t *testing.T) {
	if os.Getenv("GODEBUG") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCONNECTWithinHTTP2_I5_I6_F029$", "-test.timeout=50s")
		cmd.Env = append(os.Environ(), "GODEBUG=http2xconnect=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("with extended CONNECT: %v\n%s", err, out)
		}
	}
	extended := func(more ...string) []string {
		return append([]string{":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":path", "/chat", ":authority", "plain.allowed.test"}, more...)
	}
	for name, fields := range map[string][]string{
		"plain":                   {":method", "CONNECT", ":authority", "plain.allowed.test:443"},
		"plain, another":          {":method", "CONNECT", ":authority", "evil.test:443"},
		"plain, without":          {":method", "CONNECT"},
		"plain, with a path":      {":method", "CONNECT", ":authority", "plain.allowed.test:443", ":path", "/", ":scheme", "https"},
		"extended":                extended("sec-websocket-version", "13"),
		"extended, another name":  {":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":path", "/chat", ":authority", "evil.test"},
		"extended, to UDP":        {":method", "CONNECT", ":protocol", "connect-udp", ":scheme", "https", ":path", "/.well-known/masque/udp/192.0.2.1/443/", ":authority", "plain.allowed.test"},
		"extended, two protocols": extended(":protocol", "connect-ip"),
		"a protocol without":      {":method", "GET", ":protocol", "websocket", ":scheme", "https", ":path", "/chat", ":authority", "plain.allowed.test"},
		"WebSocket as in HTTP/1":  ordinary("connection", "Upgrade", "upgrade", "websocket"),
		"Upgrade alone":           ordinary("upgrade", "websocket"),
	} {
		e := newEnv(t, wsUpstream(t), policy(allowEverything))
		for _, end := range []bool{true, false} {
			had := e.tape.count("completed")
			r := e.rawH2("plain.allowed.test")
			r.write(1, end, fields)
			if !end {
				_ = r.fr.WriteData(1, false, []byte("GET /hidden HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n")) // it may be refused already
			}
			got := r.answer(1)
			r.c.Close()
			rec := e.tape.completed(t, had+1)[had]
			if strings.HasPrefix(got, "2") || rec.Verdict != verdictDeny || rec.Reason == "" {
				t.Errorf("%s: %q, record %s", name, got, dump(e.tape.recs[had:]))
			}
		}
		if e.up.connections() != 0 || len(e.policy.inputs()) != 0 || e.tape.count("reserved") != 0 {
			t.Errorf("%s: judged, or upstream saw %q", name, e.up.bytes())
		}
		e.sawNothing(t)
	}
	// And it is not offered.
	if os.Getenv("GODEBUG") != "" {
		return
	}
	e := newEnv(t, nil)
	r := e.rawH2("plain.allowed.test")
	f, err := r.fr.ReadFrame()
	if s, ok := f.(*http2.SettingsFrame); err != nil || !ok {
		t.Errorf("%v %v", f, err)
	} else if v, ok := s.Value(http2.SettingEnableConnectProtocol); ok && v != 0 {
		t.Error("extended CONNECT is offered")
	}
	r.c.Close()
	e.tape.completed(t, 1)
}
