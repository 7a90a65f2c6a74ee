package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"warder/internal/identity"
)

func socksName5(host string, port uint16) string {
	return "\x05\x01\x00\x03" + string(rune(len(host))) + host + string([]byte{byte(port >> 8), byte(port)})
}

const socksGranted = "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"

// read takes n bytes.
func read(t testing.TB, c net.Conn, n int) string {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatalf("read %q: %v", b, err)
	}
	return string(b)
}

func TestSOCKSLeadsIntoThePipeline(t *testing.T) {
	inPool := func(_ *env, _ *Options, ro *RunOptions) {
		ro.NameOf = func(a netip.Addr) (string, bool) {
			name := map[string]string{"100.64.0.9": "plain.allowed.test"}[a.String()]
			return name, a.Is4() && a.As4()[0] == 100
		}
	}
	for name, c := range map[string]struct {
		request, host string
		tls           bool
		status        int
		reason        string
	}{
		"a name, TLS":        {socksName5("api.allowed.test", 443), "api.allowed.test", true, 200, ""},
		"a name, upper case": {socksName5("API.Allowed.test.", 443), "api.allowed.test", true, 200, ""},
		"a name, clear text": {socksName5("plain.allowed.test", 80), "plain.allowed.test", false, 200, ""},
		"a pool address":     {"\x05\x01\x00\x01\x64\x40\x00\x09\x00\x50", "plain.allowed.test", false, 200, ""},
		"no rule":            {socksName5("evil.test", 443), "evil.test", true, 403, "no-rule"},
		"an address":         {"\x05\x01\x00\x01\x0a\x00\x00\x01\x00\x50", "10.0.0.1", false, 403, "no-rule"},
		"another Host":       {socksName5("api.allowed.test", 443), "evil.test", true, 421, "authority-mismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			set := []setting{inPool}
			if !c.tls {
				set = append(set, plainUpstream)
			}
			e := newEnv(t, nil, set...)
			conn := e.explicit()
			send(t, conn, "\x05\x02\x00\x02")
			if got := read(t, conn, 2); got != "\x05\x00" {
				t.Fatalf("method %q", got)
			}
			send(t, conn, c.request)
			if got := read(t, conn, 10); got != socksGranted {
				t.Fatalf("answer %q", got)
			}
			if c.tls {
				name := strings.ToLower(strings.TrimSuffix(c.request[5:len(c.request)-2], "."))
				conn = tls.Client(conn, e.clientTLS(name))
			}
			if r := ask(t, conn, get("/", c.host)); r.StatusCode != c.status || r.reason() != c.reason {
				t.Errorf("%d %q", r.StatusCode, r.body)
			}
			rec := e.tape.completed(t, 1)[0]
			if c.reason != reasonAuthorityMismatch && rec.Request.Host != c.host || rec.Run.ID != e.run.identity() {
				t.Errorf("record %s", dump(e.tape.recs))
			}
			if got := strings.Count(e.up.bytes(), canary); got != map[bool]int{true: 1}[c.tls && c.status == 200] {
				t.Errorf("upstream saw %q", e.up.bytes())
			}
		})
	}
}

func TestSOCKSThatCannotBeIsAnsweredAndRecorded_I6(t *testing.T) {
	inPool := func(_ *env, _ *Options, ro *RunOptions) {
		ro.NameOf = func(a netip.Addr) (string, bool) { return "", a.As4()[0] == 100 }
	}
	for name, c := range map[string]struct{ sent, got, reason string }{
		"no method that fits": {"\x05\x01\x01", "\x05\xff", "unauthenticated"},
		"BIND":                {"\x05\x01\x00" + "\x05\x02" + socksName5("a.test", 80)[2:], "\x05\x07", "bad-request"},
		"UDP":                 {"\x05\x01\x00" + "\x05\x03" + socksName5("a.test", 80)[2:], "\x05\x07", "bad-request"},
		"IPv6":                {"\x05\x01\x00\x05\x01\x00\x04" + strings.Repeat("\x00", 16) + "\x00\x50", "\x05\x08", "bad-request"},
		"port 0":              {"\x05\x01\x00" + socksName5("a.test", 0), "\x05\x02", "bad-request"},
		"no name":             {"\x05\x01\x00" + socksName5("", 80), "\x05\x02", "bad-request"},
		"a NUL":               {"\x05\x01\x00" + socksName5("a.test\x00.b", 80), "\x05\x02", "bad-request"},
		"user information":    {"\x05\x01\x00" + socksName5("u@a.test", 80), "\x05\x02", "bad-request"},
		"a zone":              {"\x05\x01\x00" + socksName5("[::1%25a.test]", 80), "\x05\x02", "bad-request"},
		"an octal address":    {"\x05\x01\x00" + socksName5("0177.0.0.1", 80), "\x05\x02", "bad-request"},
		"another version":     {"\x05\x01\x00\x04\x01\x00\x03\x01a\x00\x50", "\x05\x02", "bad-request"},
		"a pool address":      {"\x05\x01\x00\x05\x01\x00\x01\x64\x40\x00\x01\x00\x50", "\x05\x02", "unknown-address"},
		"cut short":           {"\x05\x01\x00\x05\x01\x00\x03\x20abc", "\x05\x02", "bad-request"},
		"SOCKS4":              {"\x04\x01\x00\x50\x0a\x00\x00\x01\x00", "", "not-tls"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil, inPool)
			conn := e.explicit()
			send(t, conn, c.sent)
			conn.(*net.TCPConn).CloseWrite()
			b, _ := io.ReadAll(conn)
			got := strings.TrimPrefix(string(b), "\x05\x00")
			if !strings.HasPrefix(got, c.got) || got == "" != (c.got == "") {
				t.Errorf("answer %q", b)
			}
			if rec := e.tape.completed(t, 1)[0]; rec.Reason != c.reason || rec.Verdict != verdictDeny {
				t.Errorf("record %s", dump(e.tape.recs))
			}
			if len(e.policy.inputs()) != 0 {
				t.Error("it was judged")
			}
		})
	}
}

// listen serves e.p on loopback for the clients and returns the address.
func (e *env) listen(o ListenOptions) string {
	e.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	o.Open = func(_ context.Context, client Client) (*Run, error) {
		return e.p.NewRun(RunOptions{Run: identity.Run{ID: "r-" + client.Name}, CA: o.CA})
	}
	o.Close = func(context.Context, string, *Run) {}
	go func() { done <- e.p.ServeListener(ctx, ln, o) }()
	e.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			e.t.Error(err)
		}
	})
	return ln.Addr().String()
}

func dialTo(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSOCKSOnAListenerWantsTheToken(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	addr := e.listen(ListenOptions{Clients: []Client{{Name: "ci", Token: sha256.Sum256([]byte("tok-CANARY"))}}})
	c := dialTo(t, addr)
	send(t, c, "\x05\x01\x00")
	if got := read(t, c, 2); got != "\x05\xff" {
		t.Errorf("without a token: %q", got)
	}
	for token, want := range map[string]string{"wrong-CANARY": "\x05\x02\x01\x01", "": "\x05\x02\x01\x01", "tok-CANARY": "\x05\x02\x01\x00"} {
		c := dialTo(t, addr)
		send(t, c, "\x05\x02\x00\x02\x01\x02ci"+string(rune(len(token)))+token)
		if got := read(t, c, 4); got != want {
			t.Errorf("%q: %q", token, got)
		}
		if want[3] != 0 {
			continue
		}
		send(t, c, socksName5("plain.allowed.test", 80))
		if got := read(t, c, 10); got != socksGranted {
			t.Fatalf("answer %q", got)
		}
		if r := ask(t, c, get("/", "plain.allowed.test")); r.StatusCode != 200 {
			t.Errorf("%d %q", r.StatusCode, r.body)
		}
	}
	allowed := 0
	for _, rec := range e.tape.completed(t, 4) {
		if rec.Verdict == verdictAllow && rec.Run != nil && rec.Run.ID == "r-ci" {
			allowed++
		} else if rec.Reason != reasonUnauthenticated || rec.Run != nil {
			t.Errorf("record %s", dump(e.tape.recs))
		}
	}
	if allowed != 1 {
		t.Errorf("records %s", dump(e.tape.recs))
	}
}

func TestClientsAreKnownByTheirCertificate(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	known, _ := serverCert(t, time.Now().Add(time.Hour), "ci")
	other, _ := serverCert(t, time.Now().Add(time.Hour), "ci")
	stale, _ := serverCert(t, time.Now().Add(-time.Hour), "old")
	named := func(name string, c tls.Certificate) Client {
		sum, err := CertificateOf(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
		if err != nil {
			t.Fatal(err)
		}
		return Client{Name: name, Certificate: sum}
	}
	addr := e.listen(ListenOptions{Clients: []Client{named("ci", known), named("old", stale)}, CA: ca})
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CertPEM())
	for name, c := range map[string]struct {
		certs  []tls.Certificate
		status int
	}{
		"the certificate": {[]tls.Certificate{known}, 200},
		"another":         {[]tls.Certificate{other}, 407},
		"an expired one":  {[]tls.Certificate{stale}, 407},
		"none":            {nil, 407},
	} {
		tc := tls.Client(dialTo(t, addr), &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", Certificates: c.certs})
		if r := ask(t, tc, get("http://plain.allowed.test/", "plain.allowed.test")); r.StatusCode != c.status {
			t.Errorf("%s: %d %q", name, r.StatusCode, r.body)
		}
	}
	// CONNECT and SOCKS go through the same TLS.
	tc := tls.Client(dialTo(t, addr), &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", Certificates: []tls.Certificate{known}})
	send(t, tc, "CONNECT plain.allowed.test:80 HTTP/1.1\r\nHost: plain.allowed.test:80\r\n\r\n")
	read(t, tc, len("HTTP/1.1 200 Connection Established\r\n\r\n"))
	if r := ask(t, tc, get("/", "plain.allowed.test")); r.StatusCode != http.StatusOK {
		t.Errorf("CONNECT: %d %q", r.StatusCode, r.body)
	}
	tc = tls.Client(dialTo(t, addr), &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", Certificates: []tls.Certificate{known}})
	send(t, tc, "\x05\x01\x00")
	read(t, tc, 2)
	send(t, tc, socksName5("plain.allowed.test", 80))
	read(t, tc, 10)
	if r := ask(t, tc, get("/", "plain.allowed.test")); r.StatusCode != http.StatusOK {
		t.Errorf("SOCKS: %d %q", r.StatusCode, r.body)
	}
	for _, rec := range e.tape.completed(t, 6) {
		if rec.Verdict == verdictAllow != (rec.Run != nil && rec.Run.ID == "r-ci") {
			t.Errorf("record %s", dump(e.tape.recs))
		}
	}
	if _, err := CertificateOf([]byte("nothing")); err == nil {
		t.Error("no certificate is one")
	}
}
