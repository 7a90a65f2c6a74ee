package proxy

import (
	"bufio"
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
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/broker"
	"warder/internal/config"
	"warder/policies"
)

// authorityFiles makes a certificate authority as an operator has it in files.
func authorityFiles(t *testing.T) (certFile, keyFile string, pool *x509.CertPool) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "client authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(parsed)
	return certFile, keyFile, pool
}

// certUpstream wants a client certificate of the authority and says whose it was.
func certUpstream(t *testing.T, clients *x509.CertPool, serials *sync.Map) (addr, caFile string) {
	t.Helper()
	cert, caPEM := serverCert(t, time.Now().Add(time.Hour), "api.allowed.test")
	caFile = filepath.Join(t.TempDir(), "server-ca.pem")
	if err := os.WriteFile(caFile, caPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{
		ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := r.TLS.PeerCertificates[0].Subject.CommonName
			serials.Store(r.TLS.PeerCertificates[0].SerialNumber.String(), true)
			if r.ProtoMajor == 2 {
				w.Header().Set("Grpc-Status", "0")
				w.Header().Set("Grpc-Message", name)
				return
			}
			_, _ = io.WriteString(w, name)
		}),
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, MinVersion: tls.VersionTLS12,
		},
	}
	go func() { _ = s.ServeTLS(ln, "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	return ln.Addr().String(), caFile
}

func TestClientCertificateIsPresentedForItsRunAndCredentialAlone(t *testing.T) {
	certFile, keyFile, clients := authorityFiles(t)
	var serials sync.Map
	addr, caFile := certUpstream(t, clients, &serials)
	b, err := broker.New(broker.Options{Credentials: map[string]config.Credential{"api": {
		Source: config.Source{Local: &config.LocalSource{PKI: &config.LocalPKI{CACertFile: certFile, CAKeyFile: keyFile}}},
		Inject: config.Inject{MTLS: &config.MTLS{}}, Hosts: []string{"api.allowed.test"}, Methods: &[]string{"GET", "POST"},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var s *broker.Session
	e := newEnv(t, nil, func(_ *env, o *Options, ro *RunOptions) {
		if s, err = b.Begin(ro.Run, nil, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.End(context.Background()) })
		ro.Granter = s
		o.Upstream = config.Upstream{Hosts: map[string]string{"api.allowed.test": addr}, CAFiles: []string{caFile}, AllowAddresses: []string{addr}}
	})
	e.policy.fn = func(in *policies.Input) policies.Decision {
		d := policies.Decision{Verdict: policies.Allow, Rule: "r"}
		if in.Request.Path != "/without" {
			d.Credential = "api"
		}
		return d
	}
	c := e.tls("api.allowed.test")
	br := bufio.NewReader(c)
	for range 2 { // the second on the same connection
		send(t, c, get("/", "api.allowed.test"))
		if r := readReply(t, br, "GET"); r.StatusCode != http.StatusOK || r.body != e.run.identity() {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	// So it is for gRPC.
	cc, _ := e.h2("api.allowed.test")
	if r := h2Do(t, cc, grpcRequest(t, "https://api.allowed.test/s/M", nil)); r.Header.Get("Grpc-Message") != e.run.identity() {
		t.Fatalf("%v %s %s", r.Header, r.body, dump(e.tape.recs))
	}
	// A new certificate gets connections of its own.
	s.Rejected("api")
	send(t, c, get("/", "api.allowed.test"))
	if r := readReply(t, br, "GET"); r.StatusCode != http.StatusOK {
		t.Fatal(r.StatusCode)
	}
	used := 0
	serials.Range(func(any, any) bool { used++; return true })
	if used != 2 {
		t.Fatal(used, "certificates were presented, want the old one and the new one")
	}
	// Without the credential the certificate is not there, nor a connection that has it.
	send(t, c, get("/without", "api.allowed.test"))
	if r := readReply(t, br, "GET"); r.StatusCode == http.StatusOK {
		t.Fatal("I3 the certificate was used without its credential")
	}
	// Outside of its binding it is refused as any other credential.
	if r := ask(t, e.tls("api.allowed.test"), strings.Replace(get("/", "api.allowed.test"), "GET", "DELETE", 1)); r.reason() != reasonCredentialBinding {
		t.Fatal(r.StatusCode, r.body)
	}
	recs := e.tape.completed(t, 6)
	if c := recs[0].Credential; c == nil || c.Kind != broker.KindPKI || c.Expires == "" {
		t.Fatalf("%+v", c)
	}
}

func TestFormFieldReachesTheUpstream(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		_, _ = w.Write(raw) // reflects the value
	}, func(_ *env, _ *Options, ro *RunOptions) {
		ro.Granter = testSession(t, ro.Run, config.Inject{Form: "token"})
	})
	post := func(body string) reply {
		return ask(t, e.tls("api.allowed.test"), "POST / HTTP/1.1\r\nHost: api.allowed.test\r\nContent-Type: application/x-www-form-urlencoded\r\n"+
			"Content-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
	}
	r := post("a=1&token=mine&b=2")
	if want := "a=1&b=2&token=" + strings.Repeat("*", len(canary)); r.StatusCode != http.StatusOK || r.body != want {
		t.Fatalf("I2 %d %q, want %q", r.StatusCode, r.body, want)
	}
	if !strings.Contains(e.up.bytes(), "a=1&b=2&token="+canary) {
		t.Fatal("the upstream did not get the value")
	}
	if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.reason() != reasonCredentialBinding || !strings.Contains(r.body, "not application/x-www-form-urlencoded") {
		t.Fatal(r.StatusCode, r.body)
	}
}

func TestRejectedCredentialIsFetchedAnew(t *testing.T) {
	var told []string
	e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, func(_ *env, _ *Options, ro *RunOptions) {
		ro.Granter = &teller{testSession(t, ro.Run, config.Inject{Header: "Authorization"}), &told}
	})
	if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.StatusCode != http.StatusUnauthorized {
		t.Fatal(r.StatusCode)
	}
	e.tape.completed(t, 1)
	if len(told) != 1 || told[0] != "api" {
		t.Fatal("the source was not told", told)
	}
}

type teller struct {
	*broker.Session
	told *[]string
}

func (s *teller) Rejected(name string) { *s.told = append(*s.told, name) }
