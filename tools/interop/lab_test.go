// Package interop holds the proxy against peers of other people, with the
// interception between them: gRPC's own interoperability tests, h2spec, nghttp2,
// curl, two WebSocket libraries, git behind nginx, npm and go. It is a module of
// its own, so that none of this is linked into the product.
package interop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"warder/audit"
	"warder/broker"
	"warder/internal/config"
	"warder/internal/identity"
	"warder/policies"
	"warder/proxy"
)

// canary is the value that the proxy injects and nobody in front of it may see.
const canary = "S3CR3T-CANARY-0123456789"

// authority signs the certificates of the upstreams.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // PEM
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := newKey(t)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "upstreams"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, write(t, "CERTIFICATE", der)}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// leaf gives a certificate and the files of it and of its key.
func (a *authority) leaf(t *testing.T, names ...string) (cert tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, write(t, "CERTIFICATE", der), write(t, "EC PRIVATE KEY", keyDER)
}

func write(t *testing.T, kind string, der []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "x.pem")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// serve is an upstream over TLS, HTTP/1 alone, and its address.
func (a *authority) serve(t *testing.T, h http.Handler, names ...string) string {
	t.Helper()
	cert, _, _ := a.leaf(t, names...)
	ln := listen(t)
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second}
	go s.Serve(tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}}))
	t.Cleanup(func() { s.Close() })
	return ln.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// lab is a proxy with one run.
type lab struct {
	t      *testing.T
	run    *proxy.Run
	caFile string // what clients trust
	dir    string // of the log
	close  func()
}

type labOptions struct {
	upstreams   map[string]string // name → address of a server over TLS
	authority   *authority
	policy      string // Rego; "": everything on the upstreams is allowed
	credentials map[string]config.Credential
	secrets     map[string]string // variables of the proxy's process
}

func newLab(t *testing.T, o labOptions) *lab {
	t.Helper()
	l := &lab{t: t, dir: filepath.Join(t.TempDir(), "audit")}
	lg, err := audit.Open(t.Context(), audit.Options{Dir: l.dir, SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	up := config.Upstream{Hosts: map[string]string{}, CAFiles: []string{o.authority.file}}
	for name, addr := range o.upstreams {
		up.Hosts[name] = addr
		up.AllowAddresses = append(up.AllowAddresses, addr)
	}
	engine := engineOf(t, o)
	p, err := proxy.New(proxy.Options{Policy: func() proxy.Decider { return engine }, Audit: lg, Upstream: up})
	if err != nil {
		t.Fatal(err)
	}
	id := identity.Run{ID: identity.NewRunID()}
	b, err := broker.New(broker.Options{Credentials: o.credentials, Getenv: func(k string) (string, bool) { v, ok := o.secrets[k]; return v, ok }})
	if err != nil {
		t.Fatal(err)
	}
	sess, err := b.Begin(id, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var offered []string
	for name := range o.credentials {
		offered = append(offered, name)
	}
	if l.run, err = p.NewRun(proxy.RunOptions{Run: id, Offered: offered, Granter: sess}); err != nil {
		t.Fatal(err)
	}
	l.caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(l.caFile, l.run.CACertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	closed := false
	l.close = func() {
		if closed {
			return
		}
		closed = true
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
		sess.End(ctx)
		b.Close(ctx)
		if err := lg.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(l.close)
	return l
}

func engineOf(t *testing.T, o labOptions) *policies.Engine {
	t.Helper()
	text := o.policy
	if text == "" {
		names := make([]string, 0, len(o.upstreams))
		for name := range o.upstreams {
			names = append(names, `"`+name+`"`)
		}
		text = `allow contains {"rule": "peers"} if input.request.host in {` + strings.Join(names, ", ") + "}\n"
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "peers.rego"), []byte("package warder.egress\n\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	engine, err := policies.Load(policies.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// transparent is an address whose every connection is one to name, on port, or on
// the address's own where port is 0.
func (l *lab) transparent(name string, port uint16) string {
	ln := listen(l.t)
	to := netip.MustParseAddrPort(ln.Addr().String())
	if port != 0 {
		to = netip.AddrPortFrom(netip.MustParseAddr("100.64.0.1"), port)
	}
	go accept(ln, func(c net.Conn) { l.run.ServeConn(c, proxy.Destination{Name: name, Addr: to}) })
	return ln.Addr().String()
}

// explicit is the address of a proxy.
func (l *lab) explicit() string {
	ln := listen(l.t)
	go accept(ln, l.run.ServeExplicit)
	return ln.Addr().String()
}

func accept(ln net.Listener, serve func(net.Conn)) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		serve(c)
	}
}

// trust is what the run's clients trust.
func (l *lab) trust() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(l.run.CACertPEM())
	return pool
}

// completed ends the proxy and gives the completed records of its requests.
func (l *lab) completed() []*audit.Record {
	l.t.Helper()
	l.close()
	var out []*audit.Record
	for r, err := range audit.Read(context.Background(), l.dir, audit.Filter{}) {
		if err != nil {
			l.t.Fatal(err)
		}
		if r.Event == audit.EventRequest && r.Stage == audit.StageCompleted {
			out = append(out, r)
		}
	}
	return out
}

// output runs a program and gives all that it said; a failure ends the test.
func output(t *testing.T, env []string, dir string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = append(environ(), env...), dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// environ is ours without what would lead a client elsewhere.
func environ() []string {
	var out []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(strings.ToLower(kv), "=")
		if !strings.HasSuffix(name, "_proxy") && !strings.HasPrefix(name, "npm_") && !strings.HasPrefix(name, "git_") && !strings.HasPrefix(name, "go") && name != "home" {
			out = append(out, kv)
		}
	}
	return out
}
