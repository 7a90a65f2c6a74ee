package proxy

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"warder/audit"
	"warder/policies"
)

// byConnection lets connections through as a whole: verdict for
// plain.allowed.test, nothing for any other host.
func byConnection(verdict policies.Verdict) setting {
	return func(e *env, _ *Options, _ *RunOptions) {
		e.policy.need.Connection = true
		e.policy.fn = func(in *policies.Input) policies.Decision {
			if in.Stage == policies.StageRequest {
				return byHost(in)
			}
			if in.Request.Host == "plain.allowed.test" && !strings.HasPrefix(in.Destination.SNI, "evil") {
				return policies.Decision{Verdict: verdict, Rule: "whole"}
			}
			return policies.Decision{Verdict: policies.Intercept}
		}
	}
}

func stages(e *env) string {
	var s []string
	for _, in := range e.policy.inputs() {
		s = append(s, in.Stage)
	}
	return strings.Join(s, " ")
}

func TestPassthroughIsOpaqueAndRecorded(t *testing.T) {
	for _, way := range []string{"transparent", "CONNECT"} {
		t.Run(way, func(t *testing.T) {
			e := newEnv(t, nil, byConnection(policies.Passthrough))
			var c net.Conn
			if way == "CONNECT" {
				c = e.explicit()
				send(t, c, "CONNECT plain.allowed.test:443 HTTP/1.1\r\nHost: plain.allowed.test:443\r\n\r\n")
				head := make([]byte, len("HTTP/1.1 200 Connection Established\r\n\r\n"))
				if _, err := io.ReadFull(c, head); err != nil || !strings.Contains(string(head), " 200 ") {
					t.Fatalf("%q %v", head, err)
				}
			} else {
				var s net.Conn
				c, s = pair(t)
				e.run.ServeConn(s, dest("plain.allowed.test", 443))
			}
			// The client sees the upstream's own certificate.
			tc := tls.Client(c, &tls.Config{RootCAs: e.up.pool, ServerName: "plain.allowed.test"})
			r := ask(t, tc, "GET /x HTTP/1.1\r\nHost: plain.allowed.test\r\nConnection: close\r\n\r\n")
			if r.StatusCode != 200 || r.body != "hello" {
				t.Fatalf("answer %v %q", r.Response, r.body)
			}
			tc.Close()
			rec := e.tape.completed(t, 1)[0]
			if rec.Mode != "passthrough" || rec.Verdict != verdictAllow || rec.Rule != "whole" || rec.Credential != nil || rec.Policy == nil ||
				rec.Request.Host != "plain.allowed.test" || rec.Request.Port != 443 || rec.Request.Path != "" || rec.Request.Bytes == 0 ||
				rec.Response == nil || rec.Response.Bytes == 0 || rec.Dst == nil || rec.Dst.IP != "127.0.0.1" || rec.Dst.SNI != "plain.allowed.test" {
				t.Errorf("record %s", dump(e.tape.recs))
			}
			if e.tape.count("reserved") != 1 || stages(e) != "connection" || strings.Contains(e.up.bytes(), canary) {
				t.Errorf("%s; judged at %q; records %s", e.up.bytes(), stages(e), dump(e.tape.recs))
			}
		})
	}
}

func TestPassthroughNeedsTheNameInTheSNI_I5(t *testing.T) {
	for name, c := range map[string]struct {
		sni  string
		ech  bool
		want string // mode and reason of the record
	}{
		"another name":         {sni: "api.allowed.test", want: "refused authority-mismatch"},
		"no name":              {sni: "", want: "intercepted "},
		"an encrypted part":    {sni: "plain.allowed.test", ech: true, want: "refused bad-request"},
		"the name, upper case": {sni: "PLAIN.Allowed.test", want: "passthrough "},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil, byConnection(policies.Passthrough))
			client, s := pair(t)
			e.run.ServeConn(s, dest("plain.allowed.test", 443))
			cfg := &tls.Config{InsecureSkipVerify: true, ServerName: c.sni}
			if c.ech {
				cfg.MinVersion = tls.VersionTLS13
				cfg.EncryptedClientHelloConfigList = echConfig(t, c.sni)
				cfg.ServerName = "hidden.test"
			}
			tc := tls.Client(client, cfg)
			if err := tc.Handshake(); err == nil {
				ask(t, tc, "GET / HTTP/1.1\r\nHost: plain.allowed.test\r\nConnection: close\r\n\r\n")
			}
			tc.Close()
			rec := e.tape.completed(t, 1)[0]
			if got := rec.Mode + " " + rec.Reason; got != c.want {
				t.Errorf("%q; records %s", got, dump(e.tape.recs))
			}
			refused := strings.HasPrefix(c.want, "refused")
			if refused != (e.up.connections() == 0) {
				t.Errorf("%d connections to the upstream", e.up.connections())
			}
			if name == "another name" && rec.Request.Asked != c.sni {
				t.Errorf("asked %q", rec.Request.Asked)
			}
		})
	}
}

// echConfig is an ECHConfigList (RFC 9849 §4) for a key that nobody holds.
func echConfig(t *testing.T, public string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pub := key.PublicKey().Bytes()
	b := []byte{7, 0, 0x20}
	b = binary.BigEndian.AppendUint16(b, uint16(len(pub)))
	b = append(b, pub...)
	b = append(b, 0, 4, 0, 1, 0, 1, 32, byte(len(public)))
	b = append(b, public...)
	b = append(b, 0, 0)
	b = append([]byte{0xfe, 0x0d, 0, byte(len(b))}, b...)
	return append([]byte{0, byte(len(b))}, b...)
}

// rawServer speaks first, then echoes what it gets until the end, then says how
// much that was.
func rawServer(t *testing.T, conns *atomic.Int64) setting {
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
			conns.Add(1)
			go func() {
				defer c.Close()
				io.WriteString(c, "220 ready\r\n")
				io.Copy(c, c)
				io.WriteString(c, "bye")
			}()
		}
	}()
	return func(_ *env, o *Options, _ *RunOptions) {
		o.Upstream.Hosts["plain.allowed.test"] = ln.Addr().String()
		o.Upstream.AllowAddresses = append(o.Upstream.AllowAddresses, ln.Addr().String())
	}
}

func TestTunnelCarriesAnyBytesAndHalfClose_F064(t *testing.T) {
	for _, first := range []string{"the server", "the client"} {
		t.Run(first, func(t *testing.T) {
			var conns atomic.Int64
			e := newEnv(t, nil, byConnection(policies.Tunnel), rawServer(t, &conns))
			c, s := pair(t)
			if first == "the client" {
				send(t, c, "\x00\x01EHLO")
			}
			e.run.ServeConn(s, dest("plain.allowed.test", 25))
			banner := make([]byte, 11)
			if _, err := io.ReadFull(c, banner); err != nil || string(banner) != "220 ready\r\n" {
				t.Fatalf("%q %v", banner, err)
			}
			if first == "the server" {
				send(t, c, "\x00\x01EHLO")
			}
			if err := c.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(c)
			if err != nil || string(rest) != "\x00\x01EHLObye" {
				t.Fatalf("%q %v", rest, err)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Mode != "tunnel" || rec.Rule != "whole" || rec.Request.Bytes != 6 || rec.Response.Bytes != 20 || rec.Request.Port != 25 || e.tape.count("reserved") != 1 {
				t.Errorf("records %s", dump(e.tape.recs))
			}
		})
	}
}

func TestTunnelChecksTheSNIAlsoOfALateHello_I5(t *testing.T) {
	for name, late := range map[string]bool{"at once": false, "after silence": true} {
		t.Run(name, func(t *testing.T) {
			var conns atomic.Int64
			e := newEnv(t, nil, byConnection(policies.Tunnel), rawServer(t, &conns))
			c, s := pair(t)
			e.run.ServeConn(s, dest("plain.allowed.test", 443))
			if late {
				banner := make([]byte, 11)
				if _, err := io.ReadFull(c, banner); err != nil {
					t.Fatal(err)
				}
			}
			tc := tls.Client(c, &tls.Config{ServerName: "evil.test", MinVersion: tls.VersionTLS12})
			if err := tc.Handshake(); err == nil {
				t.Error("the handshake was completed")
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Verdict != verdictDeny || rec.Request.Bytes != 0 || conns.Load() != map[bool]int64{true: 1}[late] {
				t.Errorf("records %s", dump(e.tape.recs))
			}
		})
	}
}

func TestOpaqueConnectionsPassTheDialGuard_F011(t *testing.T) {
	for _, verdict := range []policies.Verdict{policies.Passthrough, policies.Tunnel} {
		t.Run(string(verdict), func(t *testing.T) {
			e := newEnv(t, nil, byConnection(verdict), func(_ *env, o *Options, _ *RunOptions) { o.Upstream.AllowAddresses = nil })
			c, s := pair(t)
			e.run.ServeConn(s, dest("plain.allowed.test", 443))
			if err := tls.Client(c, &tls.Config{RootCAs: e.up.pool, ServerName: "plain.allowed.test"}).Handshake(); err == nil {
				t.Error("the handshake was completed")
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != reasonInternalAddress || rec.Mode != string(verdict) || e.up.connections() != 0 {
				t.Errorf("%d connections, records %s", e.up.connections(), dump(e.tape.recs))
			}
			if d := e.run.Denials(); len(d) != 1 || d[0].Reason != reasonInternalAddress {
				t.Errorf("denials %v", d)
			}
		})
	}
}

func TestNothingIsCarriedWithoutARecord_I6(t *testing.T) {
	dead, err := audit.Open(t.Context(), audit.Options{Dir: t.TempDir() + "/a", SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var conns atomic.Int64
	var f *failing
	e := newEnv(t, nil, byConnection(policies.Tunnel), rawServer(t, &conns), func(_ *env, o *Options, _ *RunOptions) {
		f = &failing{Recorder: o.Audit, done: dead}
		o.Audit = f
	})
	try := func() string {
		c, s := pair(t)
		send(t, c, "\x00")
		e.run.ServeConn(s, dest("plain.allowed.test", 25))
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(c)
		return string(b)
	}
	f.fail.Store(true)
	if got := try(); got != "" || conns.Load() != 0 {
		t.Errorf("%q came back, %d connections", got, conns.Load())
	}
	f.fail.Store(false)
	if got := try(); got != "220 ready\r\n\x00bye" || conns.Load() != 1 {
		t.Errorf("with a log: %q, %d connections", got, conns.Load())
	}
}

func TestIdleTunnelEnds_F064(t *testing.T) {
	var conns atomic.Int64
	e := newEnv(t, nil, byConnection(policies.Tunnel), rawServer(t, &conns), withLimits(Limits{TunnelIdleTimeout: 50 * time.Millisecond}))
	c, s := pair(t)
	send(t, c, "\x00")
	e.run.ServeConn(s, dest("plain.allowed.test", 25))
	if b, _ := io.ReadAll(c); !strings.HasPrefix(string(b), "220 ready\r\n\x00") {
		t.Errorf("%q", b)
	}
	if rec := e.tape.completed(t, 1)[0]; rec.Request.Bytes != 1 {
		t.Errorf("record %s", dump(e.tape.recs))
	}
	if n := e.policy.inputs(); len(n) != 1 {
		t.Errorf("%d decisions", len(n))
	}
}

func TestRegoConnectionRules(t *testing.T) {
	e := newEnv(t, nil, rego(`package warder.egress

allow contains {"rule": "read"} if input.request.host == "other.allowed.test"

passthrough contains {"rule": "pinned"} if {
	input.stage == "connection"
	input.request.host == "plain.allowed.test"
	input.destination.sni == "plain.allowed.test"
}
`))
	c, s := pair(t)
	e.run.ServeConn(s, dest("plain.allowed.test", 443))
	tc := tls.Client(c, &tls.Config{RootCAs: e.up.pool, ServerName: "plain.allowed.test"})
	if r := ask(t, tc, "GET / HTTP/1.1\r\nHost: plain.allowed.test\r\nConnection: close\r\n\r\n"); r.StatusCode != 200 {
		t.Errorf("passthrough: %d", r.StatusCode)
	}
	tc.Close()
	if r := ask(t, e.tls("other.allowed.test"), get("/", "other.allowed.test")); r.StatusCode != 200 {
		t.Errorf("intercepted: %d", r.StatusCode)
	}
	recs := e.tape.completed(t, 2)
	if recs[0].Mode+recs[1].Mode != "passthroughintercepted" && recs[1].Mode+recs[0].Mode != "passthroughintercepted" {
		t.Errorf("records %s", dump(recs))
	}
}
