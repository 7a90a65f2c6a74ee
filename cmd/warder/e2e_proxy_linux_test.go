package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"warder/audit"
)

// proxyCAFiles makes a CA for `warder proxy`, as an operator would.
func (l *lab) proxyCAFiles() {
	l.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "proxy CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		l.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		l.t.Fatal(err)
	}
	l.write("proxy-ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	l.write("proxy-ca.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
}

// proxyLab is a lab with a `warder proxy` under way.
func proxyLab(t *testing.T, clients string) (l *lab, addr string, cmd *exec.Cmd, stop func() string) {
	t.Helper()
	return proxyLabWith(t, clients, func(*lab) string { return "{path: ./policies}" })
}

// proxyLabWith takes the policy section of the configuration too.
func proxyLabWith(t *testing.T, clients string, policy func(*lab) string) (l *lab, addr string, cmd *exec.Cmd, stop func() string) {
	t.Helper()
	l = newLab(t)
	l.proxyCAFiles()
	l.write("token", "S3CR3T-CANARY-proxy-client-token")
	l.write("token2", "S3CR3T-CANARY-proxy-client-token-2")
	l.write("warder.yaml", fmt.Sprintf(`version: 1
policy: %s
credentials:
  api:
    source: {local: {file: ./secret}}
    inject: {header: Authorization, format: "Bearer {value}"}
    hosts: [api.allowed.test]
proxy:
  listen: 127.0.0.1:0
  ca: {cert_file: ./proxy-ca.pem, key_file: ./proxy-ca.key}
  %s
  upstream:
    ca_files: [./ca.pem]
    hosts: {%s: "%s"}
    allow_addresses: ["%s"]
audit: {dir: ./audit}
`, policy(l), clients, allowedHost, l.up.addr, l.up.addr))
	cmd = l.command(context.Background(), "proxy")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	br := bufio.NewReader(stderr)
	var log strings.Builder
	for addr == "" {
		line, err := br.ReadString('\n')
		log.WriteString(line)
		if err != nil {
			t.Fatalf("the proxy did not start: %s", log.String())
		}
		if _, a, ok := strings.Cut(strings.TrimSpace(line), "listening on "); ok {
			addr = a
		}
	}
	rest := make(chan string, 1)
	said := &screen{}
	l.said = said.text
	go func() { _, _ = io.Copy(said, br); rest <- said.text() }()
	stopped := false
	stop = func() string {
		if stopped {
			return ""
		}
		stopped = true
		_ = cmd.Process.Signal(syscall.SIGTERM)
		out := <-rest
		err := cmd.Wait()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signal() == syscall.SIGKILL {
			err = nil // the test's doing
		}
		if err != nil {
			t.Errorf("proxy: %v\n%s%s", err, log.String(), out)
		}
		return log.String() + out
	}
	t.Cleanup(func() { stop() })
	return l, addr, cmd, stop
}

func (l *lab) curl(addr string, args ...string) string {
	l.t.Helper()
	cmd := exec.CommandContext(l.t.Context(), "curl", append([]string{"-sS", "-m", "20", "--cacert", filepath.Join(l.dir, "proxy-ca.pem"), "-x", "http://" + addr, "-w", "\nSTATUS %{http_code} %{http_connect}\n"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir}
	out, _ := cmd.CombinedOutput() // a refused CONNECT is an error of curl's, and stands in the output
	return string(out)
}

// TestE2EProxyServesTheSamePipeline: CONNECT and absolute-form on a listener.
func TestE2EProxyServesTheSamePipeline(t *testing.T) {
	l, addr, cmd, stop := proxyLab(t, "clients: [{name: ci, token_file: ./token}]")
	auth := []string{"--proxy-user", "ci:S3CR3T-CANARY-proxy-client-token"}
	if out := l.curl(addr, append(auth, "https://api.allowed.test/v1/x")...); !strings.Contains(out, "answer to GET /v1/x") || !strings.Contains(out, "STATUS 200 200") {
		t.Errorf("allowed: %s", out)
	}
	if out := l.curl(addr, append(auth, "https://evil.test/")...); !strings.Contains(out, `"reason":"no-rule"`) || !strings.Contains(out, "STATUS 403 200") {
		t.Errorf("denied: %s", out)
	}
	if out := l.curl(addr, append(auth, "http://evil.test/")...); !strings.Contains(out, `"reason":"no-rule"`) {
		t.Errorf("denied in clear text: %s", out)
	}
	for name, args := range map[string][]string{"no token": nil, "a wrong token": {"--proxy-user", "ci:wrong"}} {
		if out := l.curl(addr, append(args, "https://api.allowed.test/v1/x")...); !strings.Contains(out, "STATUS 000 407") {
			t.Errorf("%s: %s", name, out)
		}
	}
	if got := l.up.seen(); len(got) != 1 || got[0].authorization != "Bearer "+canary || got[0].header.Get("Proxy-Authorization") != "" {
		t.Errorf("the API saw %d requests", len(got))
	}
	// A policy that does not load changes nothing; one that does is in force.
	l.write("policies/api.rego", "package warder.egress\n\nallow contains\n")
	_ = cmd.Process.Signal(syscall.SIGHUP)
	l.until(func() bool { return strings.Contains(l.said(), "stays as it was") })
	if out := l.curl(addr, append(auth, "https://api.allowed.test/v1/x")...); !strings.Contains(out, "STATUS 200") {
		t.Errorf("after a policy that does not load: %s", out)
	}
	l.write("policies/api.rego", "package warder.egress\n\nallow contains {\"rule\": \"other\"} if input.request.path == \"/none\"\n")
	_ = cmd.Process.Signal(syscall.SIGHUP)
	l.until(func() bool {
		return strings.Contains(l.curl(addr, append(auth, "https://api.allowed.test/v1/x")...), "STATUS 403")
	})
	log := stop()
	if strings.Contains(log, "S3CR3T") || !strings.Contains(log, "stays as it was") {
		t.Errorf("log: %s", log)
	}
	if n := len(l.records(func(r *audit.Record) bool { return r.Reason == "unauthenticated" })); n != 2 {
		t.Errorf("%d records of unauthenticated callers", n)
	}
	l.mustBeComplete()
}

// until waits for a condition that another process brings about.
func (l *lab) until(cond func() bool) {
	l.t.Helper()
	deadline := time.Now().Add(5 * time.Minute) // for a busy machine
	for !cond() {
		if time.Now().After(deadline) {
			l.t.Fatal("the condition never held")
		}
		time.Sleep(10 * time.Millisecond) // between looks at another process
	}
}

func TestE2EProxyWithoutClientsIsLoopbackOnly(t *testing.T) {
	l, addr, _, stop := proxyLab(t, "")
	if out := l.curl(addr, "https://api.allowed.test/v1/x"); !strings.Contains(out, "STATUS 200 200") {
		t.Errorf("anonymous on loopback: %s", out)
	}
	if log := stop(); !strings.Contains(log, "anonymous") {
		t.Errorf("no warning: %s", log)
	}
	b, err := os.ReadFile(filepath.Join(l.dir, "warder.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	l.write("warder.yaml", strings.Replace(string(b), "127.0.0.1:0", "0.0.0.0:0", 1))
	o := l.warder("proxy")
	if o.code == 0 || !strings.Contains(o.stderr, "loopback") {
		t.Errorf("open to the network without clients: exit %d, %s", o.code, o.stderr)
	}
}

func TestE2EMonitorModeLetsThroughWithoutCredential(t *testing.T) {
	l := newLab(t)
	b, err := os.ReadFile(filepath.Join(l.dir, "warder.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	l.write("warder.yaml", strings.Replace(string(b), "path: ./policies", "path: ./policies, mode: monitor", 1))
	l.mustHold(l.sh("curl -sS --fail https://api.allowed.test/other"), 0, "answer to GET /other")
	if got := l.up.seen(); len(got) != 1 || got[0].authorization != "" {
		t.Errorf("the API saw %+v", got)
	}
	recs := l.records(requestsOf)
	if len(recs) != 2 || recs[1].Would != "deny" || recs[1].Verdict != "allow" {
		t.Errorf("records: %+v", recs)
	}
}
