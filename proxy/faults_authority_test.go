package proxy

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"warder/audit"
)

// One name in another spelling is the same name, for the policy, the record and
// the upstream.
func TestSpellingsOfAnAllowedName_F001_F002(t *testing.T) {
	onEveryWay(t, nil, func(t *testing.T, w way, e *env) {
		for _, dest := range []string{"plain.allowed.test", "PLAIN.Allowed.test", "plain.allowed.test.", "Plain.ALLOWED.test."} {
			for _, host := range []string{"plain.allowed.test", "PLAIN.ALLOWED.TEST", "plain.allowed.TEST."} {
				rec, sent := e.allowed(w, dest, attempt{method: "GET", target: "/x", host: host})
				if rec.Request.Host != "plain.allowed.test" || !slices.Equal(fieldsOf(sent, "Host"), []string{"plain.allowed.test"}) {
					t.Errorf("%s, %s: record %s, upstream saw %q", dest, host, rec.Request.Host, sent)
				}
			}
		}
		for _, in := range e.policy.inputs() {
			if in.Request.Host != "plain.allowed.test" || in.Request.Headers["host"][0] != "plain.allowed.test" {
				t.Errorf("the policy saw %q", in.Request.Host)
			}
		}
	})
}

// And no spelling of a denied name is another name.
func TestSpellingsOfADeniedName_F001_F002_F085(t *testing.T) {
	onEveryWay(t, nil, func(t *testing.T, w way, e *env) {
		for _, dest := range []string{"evil.test", "EVIL.test", "evil.test."} {
			for _, host := range []string{"evil.test", "Evil.TEST", "evil.test."} {
				rec := e.denied(w, dest, attempt{method: "GET", target: "/x", host: host}, 403, reasonNoRule)
				if rec.Request.Host != "evil.test" {
					t.Errorf("%s, %s: record %s", dest, host, rec.Request.Host)
				}
			}
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/control"})
	})
}

// What is not strictly a host and a port is refused, whatever the policy allows.
func TestStrangeAuthorities_F001_F017_F018_F019_F020(t *testing.T) {
	strange := []string{
		"plain.allowed.test..", ".plain.allowed.test", "plain..allowed.test", // F001
		"plain.allowed.test:65979", "plain.allowed.test:-1", "plain.allowed.test:+443", "plain.allowed.test:0443", "plain.allowed.test:https", "plain.allowed.test:", // F017
		"u@plain.allowed.test", "u:p@plain.allowed.test", "plain.allowed.test@evil.test", "plain.allowed.test:80@evil.test", // F018
		"[::1%25plain.allowed.test]", "[::1%eth0]:443", "[fe80::1%25.allowed.test]", // F019
		"plain%2eallowed.test", "pl_ain.allowed.test", "plain.allowed.test%00", "127。0。0。1", "0x7f.1", "127.1", "2130706433", // F020
	}
	onEveryWay(t, []setting{policy(allowEverything)}, func(t *testing.T, w way, e *env) {
		for _, host := range strange {
			e.denied(w, "plain.allowed.test", attempt{method: "GET", target: "/x", host: host}, 400, reasonBadRequest)
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/control"})
	})
	// The same in the line that opens a tunnel, and in the URL.
	for _, host := range strange {
		port := ":443"
		if strings.Contains(host, ".test:") || strings.HasSuffix(host, ":443") {
			port = ""
		}
		for _, raw := range []string{
			"CONNECT " + host + port + " HTTP/1.1\r\nHost: plain.allowed.test:443\r\n\r\n",
			"GET http://" + host + "/ HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n",
		} {
			e := newEnv(t, nil, plainUpstream, policy(allowEverything))
			if r := ask(t, e.explicit(), raw); r.StatusCode != 400 || r.reason() != reasonBadRequest {
				t.Errorf("%q: %d %q", raw, r.StatusCode, r.body)
			}
			if rec := e.tape.completed(t, 1)[0]; rec.Reason != reasonBadRequest || e.up.connections() != 0 {
				t.Errorf("%q: record %s", raw, dump(e.tape.recs))
			}
		}
	}
}

// A name that only looks like an allowed one is another name, and seen to be.
func TestLookAlikes_F020(t *testing.T) {
	onEveryWay(t, nil, func(t *testing.T, w way, e *env) {
		const cyrillic = "xn--lain-y8d.allowed.test" // рlain
		rec := e.denied(w, cyrillic, attempt{method: "GET", target: "/"}, 403, reasonNoRule)
		if rec.Request.Host != cyrillic {
			t.Errorf("record %s", rec.Request.Host)
		}
	})
}

// The one authority: destination, SNI, URL and Host.
func TestAnotherNameInside_F023_F025(t *testing.T) {
	onEveryWay(t, nil, func(t *testing.T, w way, e *env) {
		for _, host := range []string{"evil.test", "other.allowed.test", "api.allowed.test:8443", "127.0.0.1", "api.allowed.test.evil.test"} {
			rec := e.denied(w, "api.allowed.test", attempt{method: "GET", target: "/", host: host}, 421, reasonAuthorityMismatch)
			if w.name == "absolute form" {
				continue
			}
			if rec.Request.Host != "api.allowed.test" || !strings.HasPrefix(rec.Request.Asked, strings.TrimSuffix(host, ":8443")) {
				t.Errorf("%s: record %+v", host, rec.Request)
			}
		}
		if !w.h2 && w.name != "absolute form" {
			scheme := "http://"
			if w.tls {
				scheme = "https://"
			}
			e.denied(w, "api.allowed.test", attempt{method: "GET", target: scheme + "other.allowed.test/", host: "api.allowed.test"}, 421, reasonAuthorityMismatch)
			e.denied(w, "api.allowed.test", attempt{method: "GET", target: scheme + "api.allowed.test/", host: "other.allowed.test"}, 421, reasonAuthorityMismatch)
		}
		for _, in := range e.policy.inputs() {
			t.Errorf("the policy was asked about %+v", in.Request)
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/control"})
	})
}

// Inside a tunnel and a transparent connection: the wrong scheme, and a CONNECT.
func TestRequestsThatBelongElsewhere_F028_F029(t *testing.T) {
	onEveryWay(t, []setting{policy(allowEverything)}, func(t *testing.T, w way, e *env) {
		if w.name == "absolute form" {
			e.denied(w, "plain.allowed.test", attempt{method: "GET", target: "https://plain.allowed.test/"}, 400, reasonBadRequest)
			e.denied(w, "plain.allowed.test", attempt{method: "GET", target: "ftp://plain.allowed.test/"}, 400, reasonBadRequest)
			return
		}
		for _, scheme := range []string{"http", "https", "ftp", "file", "HTTPS"} {
			if w.tls == strings.EqualFold(scheme, "https") && !w.h2 && (w.tls || scheme == "http") {
				continue // its own
			}
			e.denied(w, "plain.allowed.test", attempt{method: "GET", target: scheme + "://plain.allowed.test/"}, 400, reasonBadRequest)
		}
		e.denied(w, "plain.allowed.test", attempt{method: "CONNECT", target: "evil.test:443", host: "evil.test:443"}, 421, reasonAuthorityMismatch)
		port := map[bool]string{true: ":443", false: ":80"}[w.tls]
		e.denied(w, "plain.allowed.test", attempt{method: "CONNECT", target: "plain.allowed.test" + port, host: "plain.allowed.test" + port}, 405, reasonMethodNotAllowed)
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/control"})
	})
}

// Addresses in each form that leads inside, as literals and as answers of DNS: the
// policy allows everything and the guard holds.
func TestInternalAddresses_F004_F005_F007_F008_F009_F011_F021_F022(t *testing.T) {
	forms := []string{
		"::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "::ffff:10.0.0.1", // F004
		"::127.0.0.1", "::169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:0:0:0:0:80ff:fffe", // F005
		"0.0.0.0", "::", // F007
		"fd00::1", "fe80::1", "fec0::1", "ff02::1", "::1", // F008
		"100.64.0.1", "198.18.0.1", "192.0.0.8", "240.0.0.1", "255.255.255.255", "224.0.0.1", "10.1.2.3", "127.0.0.1", // F009
		"169.254.169.254", "fd00:ec2::254", "169.254.170.2", "100.100.100.200", // F021, F022
	}
	onEveryWay(t, []setting{policy(allowEverything)}, func(t *testing.T, w way, e *env) {
		var answer netip.Addr
		port := netip.MustParseAddrPort(e.up.plain).Port()
		if w.tls {
			port = netip.MustParseAddrPort(e.up.tls).Port()
		}
		e.resolveTo(&answer)
		for _, form := range forms {
			answer = netip.MustParseAddr(form)
			rec := e.unreached(w, "named.test", port)
			if rec.Request.Host != "named.test" {
				t.Errorf("%s: record %+v", form, rec.Request)
			}
		}
		if w.tls || w.name == "plain" || w.name == "SOCKS5" {
			return
		}
		for _, form := range forms { // in the URL
			a := netip.MustParseAddr(form)
			name := a.String()
			if !a.Is4() {
				name = "[" + form + "]"
			}
			e.unreached(w, name, port)
		}
		// Positive control: with leave, the same name and address are reached.
		answer = netip.MustParseAddr("127.0.0.1")
		e.run.dialer.up.allowed["named.test"] = map[netip.AddrPort]bool{netip.AddrPortFrom(answer, port): true}
		e.allowed(w, "named.test:"+portOf(e.up.plain)[1:], attempt{method: "GET", target: "/control"})
	})
}

// Metadata services are out of reach even where the configuration names them.
func TestMetadataIsNeverReached_F021_F022(t *testing.T) {
	for _, form := range []string{"169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "100.100.100.200", "0.0.0.0"} {
		a := netip.MustParseAddr(form)
		e := newEnv(t, nil, plainUpstream, policy(allowEverything), func(_ *env, o *Options, _ *RunOptions) {
			ap := netip.AddrPortFrom(a, 80).String()
			o.Upstream.Hosts = map[string]string{"plain.allowed.test": ap, "alias.test": ap}
			o.Upstream.AllowAddresses = []string{ap, "plain.allowed.test=" + ap, netip.AddrPortFrom(a.Unmap(), 80).String()}
		})
		for _, host := range []string{"plain.allowed.test", "alias.test"} {
			if r := ask(t, e.plain(host), get("/latest/meta-data/", host)); r.StatusCode != 403 || r.reason() != reasonInternalAddress {
				t.Errorf("%s for %s: %d %q", form, host, r.StatusCode, r.body)
			}
		}
	}
}

// resolveTo answers every name with one address, and forgets upstream.hosts.
func (e *env) resolveTo(a *netip.Addr) {
	e.run.dialer.up.hosts = map[string]override{}
	e.run.dialer.up.allowed = map[string]map[netip.AddrPort]bool{}
	e.run.dialer.lookup = func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{*a}, nil }
}

// unreached makes an attempt that the guard has to stop, at a port where the
// upstream would answer.
func (e *env) unreached(w way, name string, port uint16) audit.Record {
	e.t.Helper()
	dest := name
	if !w.tls && w.name == "absolute form" {
		dest = name + ":" + strconv.Itoa(int(port))
	}
	conns := e.up.connections()
	r, got, sent := e.probe(w, dest, attempt{method: "GET", target: "/"})
	if r.Response == nil || r.StatusCode != 403 || r.reason() != reasonInternalAddress || got.Reason != reasonInternalAddress || got.Verdict != verdictDeny {
		e.t.Errorf("%s: %v %q", dest, r.Response, r.body)
	}
	if sent != "" || e.up.connections() != conns {
		e.t.Errorf("%s: the upstream was reached", dest)
	}
	return got
}
