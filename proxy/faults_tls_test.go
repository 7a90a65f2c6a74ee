package proxy

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// rogue is an upstream over TLS for api.allowed.test that has another certificate.
// What it reads is in the env's own upstream.
func rogue(end time.Time, trusted bool, names ...string) setting {
	return func(e *env, o *Options, _ *RunOptions) {
		cert, ca := serverCert(e.t, end, names...)
		if trusted {
			file := filepath.Join(e.t.TempDir(), "ca.pem")
			if err := os.WriteFile(file, ca, 0o600); err != nil {
				e.t.Fatal(err)
			}
			o.Upstream.CAFiles = append(o.Upstream.CAFiles, file)
		}
		e.upstreamTLS(o, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}})
	}
}

// upstreamTLS serves api.allowed.test with a TLS of its own.
func (e *env) upstreamTLS(o *Options, cfg *tls.Config) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.t.Fatal(err)
	}
	s := &http.Server{Handler: e.up.handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go s.Serve(rawListener{tls.NewListener(ln, cfg), e.up})
	e.t.Cleanup(func() { s.Close() })
	o.Upstream.Hosts["api.allowed.test"] = ln.Addr().String()
	o.Upstream.AllowAddresses = append(o.Upstream.AllowAddresses, ln.Addr().String())
}

// upstreamTalking serves api.allowed.test over TLS: it says its text and listens.
func (e *env) upstreamTalking(o *Options, text string) {
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{e.up.cert}})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, text)
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	o.Upstream.Hosts["api.allowed.test"] = ln.Addr().String()
	o.Upstream.AllowAddresses = append(o.Upstream.AllowAddresses, ln.Addr().String())
}

// The credential goes to nobody whose certificate is not good for the name.
func TestUpstreamCertificates_F088(t *testing.T) {
	for name, set := range map[string]setting{
		"unknown authority": rogue(time.Now().Add(time.Hour), false, "api.allowed.test"),
		"expired":           rogue(time.Now().Add(-time.Hour), true, "api.allowed.test"),
		"wrong name":        rogue(time.Now().Add(time.Hour), true, "other.allowed.test", "allowed.test"),
	} {
		t.Run(name, func(t *testing.T) {
			onWays(t, nil, []setting{set}, func(t *testing.T, w way, e *env) {
				if !w.tls {
					return // clear text has no credential: F030
				}
				for what, a := range map[string]attempt{
					"request":   {method: "GET", target: "/"},
					"WebSocket": {method: "GET", target: "/ws", lines: []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13"}},
					"gRPC":      {method: "POST", target: "/s/M", lines: []string{"Content-Type: application/grpc", "TE: trailers"}, body: "\x00\x00\x00\x00\x00"},
				} {
					if what == "WebSocket" && w.h2 {
						continue // RFC 8441 is not offered
					}
					r, rec, sent := e.probe(w, "api.allowed.test", a)
					status := r.Response != nil && (r.StatusCode == 502 || what == "gRPC" && w.h2 && r.Header.Get("Grpc-Status") == "14")
					if !status || rec.Reason != "upstream-tls" || rec.Verdict != verdictError || strings.Contains(sent, canary) || sent != "" {
						t.Errorf("%s: %v %q, upstream saw %q, record %s", what, r.Response, r.body, sent, rec.Reason)
					}
				}
			})
		})
	}
	// Positive control: the same server with a good certificate gets it.
	e := newEnv(t, nil, rogue(time.Now().Add(time.Hour), true, "api.allowed.test"))
	if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.StatusCode != 200 || !strings.Contains(e.up.bytes(), canary) {
		t.Errorf("%d, upstream saw %q", r.StatusCode, e.up.bytes())
	}
}

// The certificate of an address has it as an address, of a name as a name; the
// client verifies the one by the other.
func TestLeafOfAnAddress_F089(t *testing.T) {
	for lit, want := range map[string]string{"10.1.2.3": "10.1.2.3", "[2001:db8::1]": "2001:db8::1", "[::ffff:10.1.2.3]": "10.1.2.3"} {
		e := newEnv(t, nil)
		tc := tls.Client(e.connectTo(lit), e.clientTLS(want))
		if err := tc.Handshake(); err != nil {
			t.Fatalf("%s: %v", lit, err)
		}
		if cert := tc.ConnectionState().PeerCertificates[0]; len(cert.IPAddresses) != 1 || len(cert.DNSNames) != 0 || cert.IPAddresses[0].String() != want {
			t.Errorf("%s: %v %v", lit, cert.IPAddresses, cert.DNSNames)
		}
		tc.Close()
		e.tape.completed(t, 1)
	}
}

// What interception changes of TLS: HTTP/2 for a client that insists on it, a
// clear error where the upstream wants a certificate that nobody configured.
func TestFeaturesOfTLS_F098(t *testing.T) {
	t.Run("a client that speaks HTTP/2 alone", func(t *testing.T) {
		e := newEnv(t, nil)
		cc, err := (&http2.Transport{}).NewClientConn(e.tlsALPN("api.allowed.test", "h2"))
		if err != nil {
			t.Fatal(err)
		}
		if r := h2Ask(t, cc, "GET", "https://api.allowed.test/", nil); r.StatusCode != 200 {
			t.Error(r.Status)
		}
	})
	t.Run("a client that speaks neither", func(t *testing.T) {
		e := newEnv(t, nil)
		c, s := pair(t)
		e.run.ServeConn(s, dest("api.allowed.test", 443))
		cfg := e.clientTLS("api.allowed.test")
		cfg.NextProtos = []string{"imap"}
		if err := tls.Client(c, cfg).Handshake(); err == nil {
			t.Error("the handshake was completed")
		}
		if rec := e.tape.completed(t, 1)[0]; rec.Verdict != verdictDeny || rec.Request.Host != "api.allowed.test" {
			t.Errorf("record %+v", rec)
		}
	})
	t.Run("an upstream that asks for a certificate", func(t *testing.T) {
		e := newEnv(t, nil, func(e *env, o *Options, _ *RunOptions) {
			e.upstreamTLS(o, &tls.Config{Certificates: []tls.Certificate{e.up.cert}, ClientAuth: tls.RequireAnyClientCert})
		})
		r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test"))
		if rec := e.tape.completed(t, 1)[0]; r.StatusCode != 502 || rec.Verdict != verdictError || strings.Contains(e.up.bytes(), canary) {
			t.Errorf("%d %q, record %+v", r.StatusCode, r.body, rec)
		}
	})
}

// An upstream that speaks HTTP/2 alone is asked for gRPC; what else is asked of it
// is answered plainly. So is gRPC of an upstream without HTTP/2.
func TestUpstreamsOfOneVersionOfHTTP(t *testing.T) {
	for _, c := range []struct {
		name, says string
		silent     bool // it is known before anything is sent
		set        setting
		a          attempt
	}{
		{"HTTP/2 alone", "the upstream does not speak HTTP/1.1", false, func(e *env, o *Options, _ *RunOptions) {
			// A server that speaks HTTP/2 whatever is offered: its SETTINGS come first.
			e.upstreamTalking(o, "\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		}, attempt{method: "GET", target: "/"}},
		{"HTTP/2 alone, and it says so", "the upstream does not speak HTTP/1.1", true, func(e *env, o *Options, _ *RunOptions) {
			// Go's server takes an offer of http/1.1 for none where h2 is all that it has.
			e.upstreamTLS(o, &tls.Config{Certificates: []tls.Certificate{e.up.cert}, NextProtos: []string{"h2-14"}})
		}, attempt{method: "GET", target: "/"}},
		{"HTTP/1.1 alone", "the upstream does not speak HTTP/2, which gRPC needs", true, func(e *env, o *Options, _ *RunOptions) {
			e.upstreamTLS(o, &tls.Config{Certificates: []tls.Certificate{e.up.cert}, NextProtos: []string{"http/1.1"}})
		}, attempt{method: "POST", target: "/s/M", lines: []string{"Content-Type: application/grpc", "TE: trailers"}, body: "\x00\x00\x00\x00\x00"}},
	} {
		onWays(t, nil, []setting{c.set}, func(t *testing.T, w way, e *env) {
			grpc := c.a.method == "POST"
			if !w.tls || grpc && !w.h2 {
				return // in clear text nothing says so; gRPC over HTTP/1 is an ordinary request
			}
			r, rec, sent := e.probe(w, "api.allowed.test", c.a)
			answered := r.StatusCode == 502 && r.reason() == reasonUpstreamProtocol && strings.Contains(r.body, c.says)
			if grpc {
				answered = r.Header.Get("Grpc-Status") == "14" && strings.Contains(r.Header.Get("Grpc-Message"), c.says)
			}
			if !answered || rec.Reason != reasonUpstreamProtocol || rec.Verdict != verdictError || c.silent && sent != "" {
				t.Errorf("%s: %d %v %q, record %s", c.name, r.StatusCode, r.Header, r.body, rec.Reason)
			}
		})
	}
}
