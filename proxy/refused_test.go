package proxy

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"warder/policies"
)

// allowEverything is the policy under which the guards must hold by themselves.
func allowEverything(in *policies.Input) policies.Decision {
	return policies.Decision{Verdict: policies.Allow, Rule: "all"}
}

func policy(fn func(*policies.Input) policies.Decision) setting {
	return func(e *env, _ *Options, _ *RunOptions) { e.policy.fn = fn }
}

// sawNothing checks that the upstream got no byte so far, and that it would be
// seen if it had.
func (e *env) sawNothing(t *testing.T) {
	t.Helper()
	if raw := e.up.bytes(); raw != "" || e.up.connections() != 0 {
		t.Errorf("the upstream saw %d connections and %q", e.up.connections(), raw)
	}
	if strings.HasSuffix(e.opts.Upstream.Hosts["plain.allowed.test"], portOf(e.up.plain)) {
		ask(t, e.plain("plain.allowed.test"), get("/control", "plain.allowed.test"))
	} else {
		ask(t, e.tls("plain.allowed.test"), get("/control", "plain.allowed.test"))
	}
	if !strings.Contains(e.up.bytes(), "/control") {
		t.Error("the positive control was not seen either")
	}
}

func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':'):] }

func TestOneAuthority_I5(t *testing.T) {
	tunnel := func(e *env) net.Conn { return e.tunnel("api.allowed.test") }
	transparent := func(e *env) net.Conn { return e.tls("api.allowed.test") }
	plain := func(e *env) net.Conn { return e.plain("plain.allowed.test") }
	explicit := func(e *env) net.Conn { return e.explicit() }
	for _, c := range []struct {
		name, raw, reason, asked string
		open                     func(*env) net.Conn
		status                   int
		set                      []setting
	}{
		{"F023 foreign Host in a tunnel", get("/", "evil.test"), "authority-mismatch", "evil.test:443", tunnel, 421, nil},
		{"F023 foreign Host, transparent", get("/", "evil.test"), "authority-mismatch", "evil.test:443", transparent, 421, nil},
		{"F023 other port", get("/", "api.allowed.test:8443"), "authority-mismatch", "api.allowed.test:8443", transparent, 421, nil},
		{"F025 absolute form for another host in a tunnel", get("https://other.allowed.test/", "api.allowed.test"), "authority-mismatch", "other.allowed.test:443", tunnel, 421, nil},
		{"F025 absolute form with another Host", get("http://plain.allowed.test/", "api.allowed.test"), "authority-mismatch", "api.allowed.test:80", explicit, 421, nil},
		{"F028 inner URL of the wrong scheme", get("http://api.allowed.test/", "api.allowed.test"), "bad-request", "", tunnel, 400, nil},
		{"F028 https URL in clear text", get("https://api.allowed.test/", "api.allowed.test"), "bad-request", "", explicit, 400, nil},
		{"F029 CONNECT inside a tunnel", "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", "authority-mismatch", "evil.test:443", tunnel, 421, nil},
		{"F029 CONNECT inside a tunnel, same name", "CONNECT api.allowed.test:443 HTTP/1.1\r\nHost: api.allowed.test:443\r\n\r\n", "method-not-allowed", "", tunnel, 405, nil},
		{"clear text for another name", get("/", "evil.test"), "authority-mismatch", "evil.test:80", plain, 421, nil},
		{"clear text for another port", get("/", "plain.allowed.test:8080"), "authority-mismatch", "plain.allowed.test:8080", plain, 421, nil},
		{"origin form to a proxy", get("/", "plain.allowed.test"), "bad-request", "", explicit, 400, nil},
		{"F018 userinfo", get("http://plain.allowed.test@evil.test/", "evil.test"), "bad-request", "", explicit, 400, nil},
		{"F018 userinfo with port", get("http://plain.allowed.test:80@evil.test/", "evil.test"), "bad-request", "", explicit, 400, nil},
		{"F019 zone", get("http://[::1%25api.allowed.test]/", "[::1%25api.allowed.test]"), "bad-request", "", explicit, 400, nil},
		{"F020 percent in Host", get("/", "api%2eallowed.test"), "bad-request", "", plain, 400, nil},
		{"F001 two dots", get("/", "plain.allowed.test.."), "bad-request", "", plain, 400, nil},
		{"F037 lower-case method", strings.Replace(get("/", "plain.allowed.test"), "GET", "get", 1), "method-not-allowed", "", plain, 405, nil},
		{"F037 TRACE", strings.Replace(get("/", "plain.allowed.test"), "GET", "TRACE", 1), "method-not-allowed", "", plain, 405, nil},
		{"F037 unknown method", strings.Replace(get("/", "plain.allowed.test"), "GET", "FOO", 1), "method-not-allowed", "", plain, 405, nil},
		{"F031 dot segments", get("/public/../secret", "plain.allowed.test"), "bad-request", "", plain, 400, nil},
		{"F033 doubled slash", get("//secret", "plain.allowed.test"), "bad-request", "", plain, 400, nil},
		{"F035 encoded slash without leave", get("/o/dir%2Fname", "plain.allowed.test"), "bad-request", "", plain, 400, nil},
		{"asterisk form", "OPTIONS * HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n", "bad-request", "", plain, 400, nil},
		{"F017 CONNECT with a wrong port", "CONNECT api.allowed.test:65979 HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n", "bad-request", "", explicit, 400, nil},
		{"F017 CONNECT without a port", "CONNECT api.allowed.test HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n", "bad-request", "", explicit, 400, nil},
		{"F018 CONNECT with userinfo", "CONNECT api.allowed.test@evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", "bad-request", "", explicit, 400, nil},
		{"F085 unmatched host", get("http://nobody.test/", "nobody.test"), "no-rule", "", explicit, 403, nil},
		{
			"F030 credential in clear text", get("/", "api.allowed.test"), "clear-text-credential", "", func(e *env) net.Conn { return e.plain("api.allowed.test") }, 403,
			[]setting{policy(func(*policies.Input) policies.Decision {
				return policies.Decision{Verdict: policies.Allow, Rule: "r", Credential: "api"}
			})},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, nil, append([]setting{plainUpstream}, c.set...)...)
			if strings.Contains(c.name, "tunnel") || strings.Contains(c.name, "transparent") {
				e = newEnv(t, nil, c.set...)
			}
			r := ask(t, c.open(e), c.raw)
			if r.StatusCode != c.status || r.reason() != c.reason || r.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("answer %d %q", r.StatusCode, r.body)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != c.reason || rec.Verdict != "deny" || rec.Request.Asked != c.asked || e.tape.count("reserved") != 0 {
				t.Errorf("records %s", dump(e.tape.recs))
			}
			if c.set == nil {
				e.sawNothing(t)
			}
		})
	}
}

func TestSNIMustBeTheDestination(t *testing.T) {
	e := newEnv(t, nil)
	c, s := pair(t)
	e.run.ServeConn(s, dest("api.allowed.test", 443))
	tc := tls.Client(c, e.clientTLS("evil.test")) // the client can finish the handshake
	r := ask(t, tc, get("/", "evil.test"))
	if r.StatusCode != 421 {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
	rec := e.tape.completed(t, 1)[0]
	if rec.Request.Host != "api.allowed.test" || !strings.HasPrefix(rec.Request.Asked, "evil.test") {
		t.Errorf("record %s", dump(e.tape.recs))
	}
	// SNI alone differs.
	c, s = pair(t)
	e.run.ServeConn(s, dest("api.allowed.test", 443))
	r = ask(t, tls.Client(c, e.clientTLS("other.allowed.test")), get("/", "api.allowed.test"))
	if r.StatusCode != 421 {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
	// No SNI at all: the name of the pool address.
	c, s = pair(t)
	e.run.ServeConn(s, dest("api.allowed.test", 443))
	cfg := e.clientTLS("")
	cfg.InsecureSkipVerify = true // there is no name to verify; the certificate is looked at below
	tc = tls.Client(c, cfg)
	if r = ask(t, tc, get("/", "api.allowed.test")); r.StatusCode != 200 {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
	if names := tc.ConnectionState().PeerCertificates[0].DNSNames; !slices.Equal(names, []string{"api.allowed.test"}) {
		t.Errorf("certificate for %v", names)
	}
}

func TestAddressLiteralIsItsOwnHost_F089(t *testing.T) {
	e := newEnv(t, nil, policy(allowEverything), func(e *env, o *Options, _ *RunOptions) {
		o.Upstream.Hosts["203.0.113.9"] = e.up.tls
		o.Upstream.Hosts["2001:db8::9"] = ""
		delete(o.Upstream.Hosts, "2001:db8::9")
	})
	for _, lit := range []string{"203.0.113.9", "2001:db8::9"} {
		c, s := pair(t)
		e.run.ServeConn(s, Destination{Addr: netip.AddrPortFrom(netip.MustParseAddr(lit), 443)})
		tc := tls.Client(c, e.clientTLS(lit))
		host := lit
		if strings.Contains(lit, ":") {
			host = "[" + lit + "]"
		}
		r := ask(t, tc, get("/", host))
		leaf := tc.ConnectionState().PeerCertificates[0]
		if len(leaf.DNSNames) != 0 || len(leaf.IPAddresses) != 1 {
			t.Errorf("%s: names %v, addresses %v", lit, leaf.DNSNames, leaf.IPAddresses)
		}
		if in := e.policy.inputs(); in[len(in)-1].Request.Host != lit || !in[len(in)-1].Destination.Literal {
			t.Errorf("policy saw %+v", in[len(in)-1])
		}
		// The upstream's certificate is not for that address, or the address is
		// internal: either way nothing is sent.
		if r.StatusCode == 200 {
			t.Errorf("%s: answer %d", lit, r.StatusCode)
		}
	}
}

func TestMalformedRequestsAreAnsweredAndRecorded_I6_F038_F045_F048_F159(t *testing.T) {
	for name, c := range map[string]struct {
		raw    string
		status int
		reason string
	}{
		"two Host lines":       {"GET /x HTTP/1.1\r\nHost: api.allowed.test\r\nHost: evil.test\r\n\r\n", 400, "bad-request"},
		"length and chunked":   {"POST /x HTTP/1.1\r\nHost: api.allowed.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /secret HTTP/1.1\r\n\r\n", 400, "bad-request"},
		"bare LF":              {"GET /x HTTP/1.1\nHost: api.allowed.test\n\n", 400, "bad-request"},
		"too many headers":     {"GET /x HTTP/1.1\r\nHost: api.allowed.test\r\n" + strings.Repeat("A: b\r\n", 1000) + "\r\n", 431, "too-large"},
		"too long a header":    {"GET /x HTTP/1.1\r\nHost: api.allowed.test\r\nA: " + strings.Repeat("b", 100<<10) + "\r\n\r\n", 431, "too-large"},
		"escape in the target": {"GET /%zz HTTP/1.1\r\nHost: api.allowed.test\r\n\r\n", 400, "bad-request"},
		"strange Host":         {"GET /x HTTP/1.1\r\nHost: a\"b\r\n\r\n", 400, "bad-request"},
		"unknown expectation":  {"GET /x HTTP/1.1\r\nHost: api.allowed.test\r\nExpect: magic\r\n\r\n", 400, "bad-request"},
		"HTTP/2 in clear":      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad-request"},
	} {
		for _, way := range []string{"intercepted", "clear"} {
			t.Run(name+", "+way, func(t *testing.T) {
				e := newEnv(t, nil, plainUpstream)
				var conn net.Conn = e.plain("api.allowed.test")
				if way == "intercepted" {
					conn = e.tls("api.allowed.test")
				}
				go io.WriteString(conn, c.raw) // the answer may come before all is taken
				r := readReply(t, bufio.NewReader(conn), "GET")
				if r.StatusCode != c.status || r.reason() != c.reason || !r.Close {
					t.Errorf("answer %d %q", r.StatusCode, r.body)
				}
				rec := e.tape.completed(t, 1)[0]
				if rec.Reason != c.reason || rec.Request.Host != "api.allowed.test" || rec.Verdict != "deny" {
					t.Errorf("record %s", dump(e.tape.recs))
				}
				e.sawNothing(t)
			})
		}
	}
}

func TestDenialDocument(t *testing.T) {
	e := newEnv(t, nil, policy(func(*policies.Input) policies.Decision {
		return policies.Decision{Verdict: policies.Deny, Reason: reasonDenied, Rule: "no-keys", Message: "keys are managed by hand", Hint: "ask <ops> & co"}
	}))
	r := ask(t, e.tls("api.allowed.test"), get("/keys?token="+canary, "api.allowed.test"))
	var doc map[string]any
	if err := json.Unmarshal([]byte(r.body), &doc); err != nil {
		t.Fatal(err)
	}
	in := e.tape.completed(t, 1)[0]
	want := map[string]any{
		"type": "about:blank", "title": "Denied by policy", "status": 403.0, "reason": "denied", "rule": "no-keys",
		"detail": "keys are managed by hand", "hint": "ask <ops> & co", "decision_id": in.Policy.DecisionID, "run": e.run.identity(),
	}
	for k, v := range want {
		if doc[k] != v {
			t.Errorf("%s: %v, want %v", k, doc[k], v)
		}
	}
	if len(doc) != len(want) || !strings.Contains(r.body, "ask <ops> & co") {
		t.Errorf("document %s", r.body)
	}
	if d := e.run.Denials(); len(d) != 1 || d[0] != (Denial{"api.allowed.test", 443, "GET", "/keys", "denied", "no-keys", "ask <ops> & co", in.Policy.DecisionID}) {
		t.Errorf("denials %+v", d)
	}
	if strings.Contains(dump(e.tape.recs), canary) {
		t.Error("a query value is in the record")
	}
	if !slices.Equal(in.Request.QueryKeys, []string{"token"}) {
		t.Errorf("query keys %v", in.Request.QueryKeys)
	}
	// Without a rule, "rule" is there and null.
	e.policy.mu.Lock()
	e.policy.fn = byHost
	e.policy.mu.Unlock()
	r = ask(t, e.tls("evil.test"), get("/x", "evil.test"))
	if !strings.Contains(r.body, `"rule":null`) || !strings.Contains(r.body, "no rule allows GET evil.test/x") {
		t.Errorf("document %s", r.body)
	}
}

func TestHEADIsDeniedWithoutABody(t *testing.T) {
	e := newEnv(t, nil)
	c := e.tls("evil.test")
	send(t, c, strings.Replace(get("/", "evil.test"), "GET", "HEAD", 1)+get("/", "evil.test"))
	br := bufio.NewReader(c)
	if r := readReply(t, br, "HEAD"); r.StatusCode != 403 || r.ContentLength <= 0 {
		t.Errorf("%v", r.Response)
	}
	if r := readReply(t, br, "GET"); r.StatusCode != 403 || r.reason() != "no-rule" {
		t.Errorf("%v", r.Response)
	}
}

func TestEveryVerdictOfThePolicy_I4(t *testing.T) {
	for name, c := range map[string]struct {
		d      policies.Decision
		status int
		reason string
		retry  string
	}{
		"the zero decision":   {policies.Decision{}, 403, "policy-error", ""},
		"an unknown verdict":  {policies.Decision{Verdict: "maybe"}, 403, "policy-error", ""},
		"an unknown reason":   {policies.Decision{Verdict: policies.Deny, Reason: "because"}, 403, "policy-error", ""},
		"policy-timeout":      {policies.Decision{Verdict: policies.Deny, Reason: "policy-timeout", Detail: "operator only"}, 403, "policy-timeout", ""},
		"ask":                 {policies.Decision{Verdict: policies.Ask, Rule: "new-repo"}, 403, "approval-pending", "5"},
		"tunnel at a request": {policies.Decision{Verdict: policies.Tunnel}, 403, "policy-error", ""},
		"not offered":         {policies.Decision{Verdict: policies.Allow, Credential: "other"}, 403, "credential-binding", ""},
		"monitor, an error":   {policies.Decision{Verdict: policies.Deny, Reason: "policy-error", Mode: "monitor"}, 403, "policy-error", ""},
		"monitor, no rule":    {policies.Decision{Verdict: policies.Deny, Reason: "no-rule", Mode: "monitor", Credential: "api"}, 200, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil, policy(func(*policies.Input) policies.Decision { return c.d }))
			r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test"))
			if r.StatusCode != c.status || r.reason() != c.reason || r.Header.Get("Retry-After") != c.retry {
				t.Errorf("answer %d %v %q", r.StatusCode, r.Header, r.body)
			}
			if strings.Contains(r.body, "operator only") {
				t.Error("the operator's detail reached the sandbox")
			}
			rec := e.tape.completed(t, 1)[0]
			if c.status == 200 {
				if rec.Verdict != "allow" || rec.Would != "deny" || strings.Contains(e.up.bytes(), canary) || e.tape.count("reserved") != 1 {
					t.Errorf("record %s, upstream %q", dump(e.tape.recs), e.up.bytes())
				}
				return
			}
			if rec.Reason != c.reason || rec.Verdict != "deny" || e.tape.count("reserved") != 0 {
				t.Errorf("record %s", dump(e.tape.recs))
			}
		})
	}
	t.Run("no policy in force", func(t *testing.T) {
		e := newEnv(t, nil, func(_ *env, o *Options, _ *RunOptions) { o.Policy = func() Decider { return nil } })
		if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.reason() != "policy-error" {
			t.Errorf("answer %q", r.body)
		}
	})
}

func TestRequestLimits(t *testing.T) {
	e := newEnv(t, nil, policy(func(in *policies.Input) policies.Decision {
		d := byHost(in)
		d.Limits = []policies.Limit{{Requests: 2, Per: "host"}, {Requests: 3, Per: "run"}}
		return d
	}))
	for i, c := range []struct {
		host   string
		status int
	}{{"plain.allowed.test", 200}, {"plain.allowed.test", 200}, {"plain.allowed.test", 429}, {"other.allowed.test", 200}, {"other.allowed.test", 429}} {
		r := ask(t, e.tls(c.host), get("/", c.host))
		if r.StatusCode != c.status {
			t.Errorf("request %d: %d %q", i, r.StatusCode, r.body)
		}
		if c.status == 429 && r.reason() != "limit-exceeded" {
			t.Errorf("request %d: %q", i, r.body)
		}
	}
	if n := e.tape.count("reserved"); n != 3 {
		t.Errorf("%d reservations", n)
	}
}

func TestByteLimitCutsTheAnswer(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, 100<<10)) },
		policy(func(in *policies.Input) policies.Decision {
			d := byHost(in)
			d.Limits = []policies.Limit{{BytesIn: 64 << 10, Per: "run"}}
			return d
		}))
	r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test"))
	if r.err == nil || len(r.body) > 64<<10 {
		t.Errorf("%d bytes, %v", len(r.body), r.err)
	}
	if rec := e.tape.completed(t, 1)[0]; rec.Reason != "limit-exceeded" {
		t.Errorf("record %s", dump(e.tape.recs))
	}
	if r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test")); r.StatusCode != 429 {
		t.Errorf("answer %d", r.StatusCode)
	}
}

func TestRefuseRecordsOneLine(t *testing.T) {
	e := newEnv(t, nil)
	e.run.Refuse(Destination{Addr: netip.MustParseAddrPort("100.64.1.2:22")}, "unknown-address")
	rec := e.tape.completed(t, 1)[0]
	if rec.Mode != "refused" || rec.Reason != "unknown-address" || rec.Request.Host != "100.64.1.2" || rec.Request.Port != 22 || rec.Verdict != "deny" {
		t.Errorf("record %s", dump(e.tape.recs))
	}
}
