package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"warder/internal/vaulttest"
)

// benchKinds are the sources and slots that are measured, by kind.
var benchKinds = map[string][2]string{
	"kv":            {"{vault: {kv: secret/github, field: token, policies: [run-bench]}}", benchBearer},
	"read":          {"{vault: {read: rabbit/creds/ro, field: password, policies: [run-bench]}}", "{basic: {username_field: username}}"},
	"oidc":          {"{vault: {oidc: agent, policies: [run-bench]}}", benchBearer},
	"jwt":           {"{vault: {jwt: agent, audience: bench, policies: [run-bench]}}", benchBearer},
	"pki":           {"{vault: {pki: pki/sign/agent, policies: [run-bench]}}", "{mtls: {}}"},
	"totp":          {"{vault: {totp: vpn, policies: [run-bench]}}", benchBearer},
	"hmac":          {"{vault: {hmac: hook, policies: [run-bench]}}", benchSigned},
	"aws":           {"{vault: {aws: secret/aws, policies: [run-bench]}}", "{sigv4: {region: eu-central-1, service: s3}}"},
	"local-env":     {"{local: {env: BENCH_TOKEN}}", benchBearer},
	"local-file":    {"{local: {file: ./secret}}", benchBearer},
	"local-command": {"{local: {command: [/bin/cat, ./secret]}}", benchBearer},
	"local-jwt":     {"{local: {jwt: {audience: bench}}}", benchBearer},
	"local-pki":     {"{local: {pki: {ca_cert_file: ./proxy-ca.pem, ca_key_file: ./proxy-ca.key, common_name: bench, ttl: 10m}}}", "{mtls: {}}"},
	"local-totp":    {"{local: {totp: {key_file: ./totp-key}}}", benchBearer},
	"local-hmac":    {"{local: {hmac: {key_file: ./secret}}}", benchSigned},
}

const (
	benchBearer  = `{header: Authorization, format: "Bearer {value}"}`
	benchSigned  = "{hmac: {header: X-Signature, parts: [method, path]}}"
	benchTOTP    = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
	benchRounds  = 5
	benchMisses  = 6  // of a kind in a round, each of a credential of its own
	benchPairs   = 40 // of a kind in a round: with a kept value, and without a credential
	benchCounted = 1000
	benchAtOnce  = 8 // of these, so that they share the log's waits for the disk
)

// credentialBench is `warder proxy` with a real Vault and all kinds of credentials.
type credentialBench struct {
	*lab
	b     *testing.B
	vault string // Vault's audit file
}

func newCredentialBench(b *testing.B) *credentialBench {
	b.Helper()
	l := newLab(b)
	// An upstream that asks for a client certificate, and refuses a value on request.
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery == "refuse" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(w, "an answer")
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{l.up.certificate(b, allowedHost)}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	b.Cleanup(srv.Close)
	l.up.addr = srv.Listener.Addr().String()
	l.write("ca.pem", string(l.up.caPEM))
	l.write("totp-key", benchTOTP)
	l.write("token", "S3CR3T-CANARY-bench-client")
	l.proxyCAFiles()
	l.write("policies/api.rego", `package warder.egress

allow contains {"rule": "credential", "credential": input.request.segments[1]} if input.request.segments[0] == "with"
allow contains {"rule": "bare"} if input.request.segments[0] == "without"
`)
	c := &credentialBench{lab: l, b: b}
	v := c.startVault()
	var y strings.Builder
	fmt.Fprintf(&y, `
vault:
  address: %s
  auth: {method: approle, role_id_file: ./role-id, secret_id_file: ./secret-id}
  token_role: %s
credentials:
`, v.Addr, vaulttest.TokenRole)
	for _, kind := range slices.Sorted(maps.Keys(benchKinds)) {
		for i := range benchRounds*benchMisses + 1 {
			fmt.Fprintf(&y, "  %s-%d:\n    source: %s\n    inject: %s\n    hosts: [%s]\n", kind, i, benchKinds[kind][0], benchKinds[kind][1], allowedHost)
		}
	}
	l.configure(y.String())
	raw, err := os.ReadFile(filepath.Join(l.dir, "warder.yaml"))
	if err != nil {
		b.Fatal(err)
	}
	l.write("warder.yaml", strings.Replace(string(raw), "proxy:\n", `proxy:
  listen: 127.0.0.1:0
  ca: {cert_file: ./proxy-ca.pem, key_file: ./proxy-ca.key}
  clients: [{name: bench, token_file: ./token}]
`, 1))
	return c
}

func (c *credentialBench) startVault() *vaulttest.Server {
	b := c.b
	v := vaulttest.Start(b)
	v.Setup(b, canary)
	users := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusCreated)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	b.Cleanup(users.Close)
	for path, engine := range map[string]string{"rabbit": "rabbitmq", "transit": "transit", "totp": "totp", "pki": "pki"} {
		v.Mount(b, path, engine, nil)
	}
	for path, body := range map[string]map[string]any{
		"rabbit/config/connection": {"connection_uri": users.URL, "username": "admin", "password": "x", "verify_connection": false},
		"rabbit/roles/ro":          {"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`},
		"transit/keys/agent":       {"type": "ecdsa-p256"}, "transit/keys/hook": {},
		"totp/keys/vpn":              {"key": benchTOTP},
		"pki/root/generate/internal": {"common_name": "bench", "key_type": "ec"},
		"pki/roles/agent":            {"allow_any_name": true, "enforce_hostnames": false, "key_type": "any", "no_store": true},
		"identity/oidc/key/bench":    {"allowed_client_ids": "*", "algorithm": "ES256"},
		"secret/data/aws":            {"data": map[string]any{"access_key": "AKIDEXAMPLE", "secret_key": canary}},
		"sys/policies/acl/run-bench": {"policy": `path "*" { capabilities = ["read", "update"] }`},
	} {
		v.Must(b, http.MethodPost, path, body)
	}
	v.Must(b, http.MethodPost, "identity/oidc/role/agent", map[string]any{"key": "bench", "ttl": "5m", "client_id": "bench"})
	role, secretID := v.AppRole(b)
	c.write("role-id", role)
	c.write("secret-id", secretID)
	c.vault = v.AuditFile(b)
	return v
}

// start runs `warder proxy` and returns a client that goes through it.
func (c *credentialBench) start() (ask func(path string) time.Duration, stop func()) {
	b := c.b
	cmd := c.command(context.Background(), "proxy")
	cmd.Env = append(cmd.Env, "BENCH_TOKEN="+canary)
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	addr, said := "", ""
	for addr == "" {
		line, err := lines.ReadString('\n')
		if said += line; err != nil {
			b.Fatalf("the proxy did not start: %s", said)
		}
		_, addr, _ = strings.Cut(strings.TrimSpace(line), "listening on ")
	}
	rest := make(chan string, 1)
	go func() { raw, _ := io.ReadAll(lines); rest <- string(raw) }()
	ca, err := os.ReadFile(filepath.Join(c.dir, "proxy-ca.pem"))
	if err != nil {
		b.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	tr := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: addr, User: url.UserPassword("bench", "S3CR3T-CANARY-bench-client")}),
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}
	ask = func(path string) time.Duration {
		began := time.Now()
		resp, err := tr.RoundTrip(httptest.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+allowedHost+path, nil))
		if err != nil {
			b.Error(path, err)
			return 0
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		took := time.Since(began)
		want := http.StatusOK
		if strings.HasSuffix(path, "?refuse") {
			want = http.StatusUnauthorized
		}
		if resp.StatusCode != want {
			b.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
		return took
	}
	return ask, func() {
		tr.CloseIdleConnections()
		c.end(cmd, rest)
	}
}

func (c *credentialBench) end(cmd *exec.Cmd, rest chan string) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	said := <-rest
	if err := cmd.Wait(); err != nil {
		c.b.Fatalf("the proxy: %v\n%s", err, said)
	}
}

// ofRuns counts the calls that Vault answered for runs: all but those of the login.
func (c *credentialBench) ofRuns() (n int) {
	raw, err := os.ReadFile(c.vault)
	if err != nil {
		c.b.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var a struct {
			Type    string
			Request struct{ Path string }
		}
		if err := json.Unmarshal(line, &a); err != nil {
			c.b.Fatal(err)
		}
		own := []string{"auth/approle/login", "auth/token/renew-self", "auth/token/revoke-self"}
		if a.Type == "response" && !slices.Contains(own, a.Request.Path) {
			n++
		}
	}
	return n
}

func middle(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkProxiedCredential measures, for each kind, what a credential adds to a
// request through `warder proxy`, against the same request without one: when the
// value is kept (hit), and when it has to be fetched again by a run that has its
// token and its connection (miss). All kinds are measured in each round, and each
// value is the median of the rounds' medians. The calls of Vault are those of a run
// of 1,000 requests, its end included.
func BenchmarkProxiedCredential(b *testing.B) {
	c := newCredentialBench(b)
	kinds := slices.Sorted(maps.Keys(benchKinds))
	bare, hits, misses := map[string][]time.Duration{}, map[string][]time.Duration{}, map[string][]time.Duration{}
	ask, stop := c.start()
	for _, kind := range kinds {
		ask("/with/" + kind + "-0")
	}
	ask("/without")
	for round := range benchRounds {
		for _, kind := range kinds {
			var without, with, fetched []time.Duration
			for range benchPairs {
				without = append(without, ask("/without"))
				with = append(with, ask("/with/"+kind+"-0"))
			}
			for i := range benchMisses {
				path := fmt.Sprintf("/with/%s-%d", kind, 1+round*benchMisses+i)
				ask(path)
				ask(path + "?refuse")
				fetched = append(fetched, ask(path))
			}
			base := middle(without)
			bare[kind] = append(bare[kind], base)
			hits[kind] = append(hits[kind], middle(with)-base)
			misses[kind] = append(misses[kind], middle(fetched)-base)
		}
	}
	stop()
	for _, kind := range kinds {
		before := c.ofRuns()
		ask, stop := c.start()
		var wg sync.WaitGroup
		for range benchAtOnce {
			wg.Go(func() {
				for range benchCounted / benchAtOnce {
					ask("/with/" + kind + "-0")
				}
			})
		}
		wg.Wait()
		stop()
		calls := c.ofRuns() - before
		b.Run(kind, func(b *testing.B) {
			us := func(d []time.Duration) float64 { return float64(middle(d).Nanoseconds()) / 1e3 }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(us(bare[kind]), "bare-us")
			b.ReportMetric(us(hits[kind]), "hit-us")
			b.ReportMetric(us(misses[kind]), "miss-us")
			b.ReportMetric(float64(calls), "calls/1000")
		})
	}
}
