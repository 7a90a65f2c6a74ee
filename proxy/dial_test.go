package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"warder/internal/config"
	"warder/policies"
)

// nameServer answers A queries from a table and remembers what it was asked.
type nameServer struct {
	addr  string
	mu    sync.Mutex
	asked []string
}

func newNameServer(t *testing.T, table map[string][]string) *nameServer {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ns := &nameServer{addr: pc.LocalAddr().String()}
	done := make(chan struct{})
	t.Cleanup(func() { pc.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			ns.mu.Lock()
			ns.asked = append(ns.asked, q.Name.String())
			ns.mu.Unlock()
			out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
			addrs, known := table[strings.TrimSuffix(q.Name.String(), ".")]
			if !known {
				out.RCode = dnsmessage.RCodeNameError
			}
			for _, a := range addrs {
				ip := net.ParseIP(a)
				h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
				if v4 := ip.To4(); v4 != nil && q.Type == dnsmessage.TypeA {
					out.Answers = append(out.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: [4]byte(v4)}})
				} else if v4 == nil && q.Type == dnsmessage.TypeAAAA {
					out.Answers = append(out.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: [16]byte(ip)}})
				}
			}
			if b, err := out.Pack(); err == nil {
				pc.WriteTo(b, from)
			}
		}
	}()
	return ns
}

func (n *nameServer) names() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := slices.Clone(n.asked)
	slices.Sort(s)
	return slices.Compact(s)
}

// resolved makes names go through DNS instead of upstream.hosts.
func resolved(ns *nameServer, allow ...string) setting {
	return func(_ *env, o *Options, _ *RunOptions) {
		o.Upstream.Hosts, o.Upstream.Resolver, o.Upstream.AllowAddresses = nil, ns.addr, allow
	}
}

func TestNoQueryAndNoDialBeforeAnAllow_I1_F108(t *testing.T) {
	ns := newNameServer(t, map[string][]string{"plain.allowed.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}})
	e := newEnv(t, nil, resolved(ns))
	secretName := strings.Repeat("0a", 30) + ".evil.test"
	for _, c := range []net.Conn{e.tls(secretName), e.plain(secretName), e.tunnel(secretName)} {
		if r := ask(t, c, get("/", secretName)); r.reason() != "no-rule" {
			t.Fatalf("answer %q", r.body)
		}
	}
	if r := ask(t, e.explicit(), get("http://"+secretName+"/", secretName)); r.reason() != "no-rule" {
		t.Fatalf("answer %q", r.body)
	}
	if got := ns.names(); len(got) != 0 {
		t.Errorf("queries %v", got)
	}
	// Positive control: the allowed name is asked for.
	ask(t, e.plain("plain.allowed.test"), get("/", "plain.allowed.test"))
	if got := ns.names(); !slices.Equal(got, []string{"plain.allowed.test."}) {
		t.Errorf("queries %v", got)
	}
}

const wsRequest = "GET /ws HTTP/1.1\r\nHost: plain.allowed.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"

// F010, F011: the guard on every path; F004 to F009, F012, F021, F022: what it refuses.
func TestInternalAddressesAreNeverDialled(t *testing.T) {
	for path, open := range map[string]func(*env) (net.Conn, string){
		"clear text": func(e *env) (net.Conn, string) { return e.plain("plain.allowed.test"), get("/", "plain.allowed.test") },
		"absolute form": func(e *env) (net.Conn, string) {
			return e.explicit(), get("http://plain.allowed.test/", "plain.allowed.test")
		},
		"TLS":                func(e *env) (net.Conn, string) { return e.tls("plain.allowed.test"), get("/", "plain.allowed.test") },
		"CONNECT":            func(e *env) (net.Conn, string) { return e.tunnel("plain.allowed.test"), get("/", "plain.allowed.test") },
		"WebSocket":          func(e *env) (net.Conn, string) { return e.plain("plain.allowed.test"), wsRequest },
		"WebSocket over TLS": func(e *env) (net.Conn, string) { return e.tls("plain.allowed.test"), wsRequest },
		"address in the URL": func(e *env) (net.Conn, string) { return e.explicit(), get("http://127.0.0.1:1/", "127.0.0.1:1") },
		"mapped address": func(e *env) (net.Conn, string) {
			return e.explicit(), get("http://[::ffff:127.0.0.1]:1/", "[::ffff:127.0.0.1]:1")
		},
		"metadata in the URL": func(e *env) (net.Conn, string) {
			return e.explicit(), get("http://169.254.169.254/", "169.254.169.254")
		},
		"unspecified":       func(e *env) (net.Conn, string) { return e.explicit(), get("http://0.0.0.0:1/", "0.0.0.0:1") },
		"unspecified, IPv6": func(e *env) (net.Conn, string) { return e.explicit(), get("http://[::]:1/", "[::]:1") },
		"NAT64 in the URL": func(e *env) (net.Conn, string) {
			return e.explicit(), get("http://[64:ff9b::7f00:1]:1/", "[64:ff9b::7f00:1]:1")
		},
		"localhost, by DNS":    func(e *env) (net.Conn, string) { return e.explicit(), get("http://localhost:1/", "localhost:1") },
		"mixed answers (F012)": func(e *env) (net.Conn, string) { return e.explicit(), get("http://mixed.test:1/", "mixed.test:1") },
		"link-local (F008)":    func(e *env) (net.Conn, string) { return e.explicit(), get("http://ll.test:1/", "ll.test:1") },
	} {
		t.Run(path, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			dialled := make(chan struct{}, 16)
			go func() {
				for {
					c, err := ln.Accept()
					if err != nil {
						return
					}
					dialled <- struct{}{}
					c.Close()
				}
			}()
			port := portOf(ln.Addr().String())
			ns := newNameServer(t, map[string][]string{
				"plain.allowed.test": {"127.0.0.1"}, "localhost": {"127.0.0.1"}, "mixed.test": {"127.0.0.1", "10.0.0.1"}, "ll.test": {"fe80::1", "fd00::1"},
			})
			// An allowance for a name of upstream.hosts says nothing about DNS.
			e := newEnv(t, nil, resolved(ns, "127.0.0.1"+port, "127.0.0.1:80", "127.0.0.1:443"), policy(allowEverything))
			c, raw := open(e)
			raw = strings.ReplaceAll(raw, ":1/", port+"/")
			raw = strings.ReplaceAll(raw, ":1\r", port+"\r")
			r := ask(t, c, raw)
			if r.StatusCode != 403 || r.reason() != "internal-address" {
				t.Errorf("answer %d %q", r.StatusCode, r.body)
			}
			if strings.Contains(r.body, "127.0.0.1"+port) {
				t.Errorf("the answer names the address: %q", r.body)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Verdict != "deny" || rec.Reason != "internal-address" || e.tape.count("reserved") != 1 {
				t.Errorf("records %s", dump(e.tape.recs))
			}
			select {
			case <-dialled:
				t.Error("the internal listener was reached")
			default:
			}
			// Positive control: the listener notices a connection.
			x, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			x.Close()
			<-dialled
		})
	}
}

func TestControlHookJudgesTheFinalAddress(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	up, err := newUpstreams(config.Upstream{})
	if err != nil {
		t.Fatal(err)
	}
	d := newDialer(up, time.Second, newBuffers())
	a := netip.MustParseAddrPort(ln.Addr().String())
	if c, err := d.dialOne(context.Background(), "any.test", a); err == nil {
		c.Close()
		t.Error("dialled")
	}
	up.allowed["any.test"] = map[netip.AddrPort]bool{a: true}
	c, err := d.dialOne(context.Background(), "any.test", a) // positive control
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestUpstreamFailures_F088_F104(t *testing.T) {
	silent := func(t *testing.T) string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		return ln.Addr().String()
	}
	closed := func(t *testing.T) string {
		ln, _ := net.Listen("tcp", "127.0.0.1:0")
		ln.Close()
		return ln.Addr().String()
	}
	talking := func(say string) func(*testing.T) string {
		return func(t *testing.T) string {
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
						io.WriteString(c, say)
					}()
				}
			}()
			return ln.Addr().String()
		}
	}
	withCert := func(end time.Duration, names ...string) func(*testing.T) string {
		return func(t *testing.T) string {
			cert, _ := serverCert(t, time.Now().Add(end), names...)
			ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
			if err != nil {
				t.Fatal(err)
			}
			s := &http.Server{Handler: http.HandlerFunc(ok200), ReadHeaderTimeout: time.Second, ErrorLog: log.New(io.Discard, "", 0)}
			go s.Serve(ln)
			t.Cleanup(func() { s.Close() })
			return ln.Addr().String()
		}
	}
	for name, c := range map[string]struct {
		at     func(*testing.T) string
		tls    bool
		status int
		reason string
	}{
		"refused":                  {closed, true, 502, "upstream-refused"},
		"refused in clear":         {closed, false, 502, "upstream-refused"},
		"unknown authority (F088)": {withCert(time.Hour, "api.allowed.test"), true, 502, "upstream-tls"},
		"wrong name (F088)":        {nil, true, 502, "upstream-tls"},
		"not TLS":                  {talking("HTTP/1.1 200 OK\r\n\r\n"), true, 502, "upstream-tls"},
		"handshake never ends":     {silent, true, 504, "upstream-timeout"},
		"no answer":                {silent, false, 504, "upstream-timeout"},
		"not HTTP":                 {talking("220 smtp ready\r\n"), false, 502, "upstream-protocol"},
		"closes without an answer": {talking(""), false, 502, "upstream-protocol"},
		"unasked 101 (F055)":       {talking("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"), false, 502, "upstream-protocol"},
		"two lengths":              {talking("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"), false, 502, "upstream-protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			host := "plain.allowed.test"
			if c.tls {
				host = "api.allowed.test"
			}
			if c.at == nil {
				host = "wrong.test" // the upstream's certificate does not name it
			}
			e := newEnv(t, nil, func(e *env, o *Options, _ *RunOptions) {
				if c.at != nil {
					at := c.at(t)
					o.Upstream.Hosts[host] = at
					o.Upstream.AllowAddresses = append(o.Upstream.AllowAddresses, at)
				}
				if c.reason == "upstream-timeout" { // elsewhere a busy machine must not come first
					o.Limits.UpstreamHeaderTimeout = 300 * time.Millisecond
					o.Limits.DialTimeout = 300 * time.Millisecond
				}
			}, policy(func(in *policies.Input) policies.Decision {
				if in.Request.Host == "wrong.test" {
					return allowEverything(in)
				}
				return byHost(in)
			}))
			var conn net.Conn
			if c.tls {
				conn = e.tls(host)
			} else {
				conn = e.plain(host)
			}
			r := ask(t, conn, get("/x?q="+canary, host))
			if r.StatusCode != c.status || r.reason() != c.reason {
				t.Errorf("answer %d %q", r.StatusCode, r.body)
			}
			for _, leak := range []string{"127.0.0.1", canary, "x509", "dial", "tcp"} { // F079
				if strings.Contains(r.body, leak) {
					t.Errorf("the answer has %q: %q", leak, r.body)
				}
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != c.reason || rec.Verdict != "error" || e.tape.count("reserved") != 1 || rec.Request.Attempts != 1 {
				t.Errorf("record %s", dump(e.tape.recs))
			}
			if len(e.run.Denials()) != 0 {
				t.Errorf("a failure of the upstream is no denial: %+v", e.run.Denials())
			}
			if strings.Contains(e.up.bytes(), canary) {
				t.Error("the credential was sent")
			}
		})
	}
	t.Run("no such name", func(t *testing.T) {
		ns := newNameServer(t, nil)
		e := newEnv(t, nil, resolved(ns))
		if r := ask(t, e.plain("plain.allowed.test"), get("/", "plain.allowed.test")); r.StatusCode != 502 || r.reason() != "upstream-dns" {
			t.Errorf("answer %d %q", r.StatusCode, r.body)
		}
	})
}

func TestOverrideIsRecordedOncePerRun(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	for range 3 {
		c := e.plain("plain.allowed.test")
		send(t, c, strings.Replace(get("/", "plain.allowed.test"), "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
		readReply(t, bufio.NewReader(c), "GET")
		e.run.transport("").CloseIdleConnections()
	}
	e.tape.completed(t, 3)
	n := 0
	for _, r := range e.tape.recs {
		if r.Event == "override" {
			n++
			if r.Override.Value != "plain.allowed.test="+e.up.plain || r.Override.Setting != "proxy.upstream.hosts" {
				t.Errorf("override %+v", r.Override)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d override records", n)
	}
}

func TestAmbientSettingsNeverApply(t *testing.T) {
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	for _, v := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(v, "http://"+trap.Addr().String())
	}
	e := newEnv(t, nil)
	if r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test")); r.StatusCode != 200 {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
	if d := e.p.forward.ConnectDial; d != nil {
		if _, err := d("tcp", e.up.plain); err == nil {
			t.Error("goproxy's own dialler works")
		}
	}
	req, _ := http.NewRequest("GET", "http://"+e.up.plain+"/", nil)
	if _, err := e.p.forward.Tr.RoundTrip(req); err == nil {
		t.Error("goproxy's own transport works")
	}
}

func TestViaOuterProxyKeepsEndToEndTLS(t *testing.T) {
	var asked []string
	var mu sync.Mutex
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	e := newEnv(t, nil, func(e *env, o *Options, _ *RunOptions) {
		o.Upstream = config.Upstream{CAFiles: o.Upstream.CAFiles, Via: "http://" + ln.Addr().String()}
	}, policy(func(in *policies.Input) policies.Decision {
		if in.Request.Host == "10.0.0.1" {
			return allowEverything(in)
		}
		return byHost(in)
	}))
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				br := bufio.NewReader(c)
				req, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				mu.Lock()
				asked = append(asked, req.Method+" "+req.RequestURI)
				mu.Unlock()
				u, err := net.Dial("tcp", e.up.tls)
				if err != nil {
					return
				}
				defer u.Close()
				io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
				go io.Copy(u, br)
				io.Copy(c, u)
			}()
		}
	}()
	if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.StatusCode != 200 {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
	mu.Lock()
	got := slices.Clone(asked)
	mu.Unlock()
	if !slices.Equal(got, []string{"CONNECT api.allowed.test:443"}) || !strings.Contains(e.up.bytes(), canary) {
		t.Errorf("outer proxy was asked %v", got)
	}
	if r := ask(t, e.explicit(), get("http://10.0.0.1/", "10.0.0.1")); r.reason() != "internal-address" {
		t.Errorf("answer %q", r.body)
	}
}

func TestCARootsComeFromTheConfiguration(t *testing.T) {
	f := filepath.Join(t.TempDir(), "x.pem")
	if err := os.WriteFile(f, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newUpstreams(config.Upstream{CAFiles: []string{f}}); err == nil {
		t.Error("a file without certificates was accepted")
	}
}

func TestMixedAnswersDropTheInternalOne_F012(t *testing.T) {
	up, err := newUpstreams(config.Upstream{})
	if err != nil {
		t.Fatal(err)
	}
	d := newDialer(up, time.Second, newBuffers())
	d.lookup = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("9.9.9.9"), netip.MustParseAddr("fd00::1")}, nil
	}
	got, err := d.resolve(context.Background(), "mixed.test", 443)
	if err != nil || !slices.Equal(got, []netip.AddrPort{netip.MustParseAddrPort("9.9.9.9:443")}) {
		t.Errorf("%v %v", got, err)
	}
}
