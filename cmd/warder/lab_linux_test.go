package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/audit"
	"warder/runner"
)

// TestMain lets the test binary be warder itself, under that name, and each of
// the sandbox's processes.
func TestMain(m *testing.M) {
	runner.Reexec()
	if filepath.Base(os.Args[0]) == "warder" {
		noCore()
		os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// canary is the credential of the tests. It must never be seen where the task
// can see it, nor in anything that we write.
const canary = "S3CR3T-CANARY-0123456789abcdef"

const allowedHost = "api.allowed.test"

// lab is one caller's home with configuration, policy, log and an upstream.
type lab struct {
	t   testing.TB
	dir string
	up  *upstream

	said func() string // what warder proxy has printed since it listens
}

const labRego = `package warder.egress

# METADATA
# title: Read the API
allow contains {"rule": "api-read", "credential": "api"} if {
	input.request.host == "api.allowed.test"
	input.request.method == "GET"
	startswith(input.request.path, "/v1/")
}

allow contains {"rule": "git-read", "credential": "api"} if {
	input.request.host == "api.allowed.test"
	startswith(input.request.path, "/repo.git/")
}
`

func newLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{t: t, dir: t.TempDir(), up: startUpstream(t, allowedHost)}
	for _, d := range []string{"policies", "state"} {
		if err := os.Mkdir(filepath.Join(l.dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l.write("ca.pem", string(l.up.caPEM))
	l.write("secret", canary)
	l.write("policies/api.rego", labRego)
	l.configure(`
credentials:
  api:
    source: {local: {file: ./secret}}
    inject: {header: Authorization, format: "Bearer {value}"}
    hosts: [api.allowed.test]
`)
	return l
}

func (l *lab) write(name, text string) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, name), []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) read(name string) string {
	l.t.Helper()
	b, err := os.ReadFile(filepath.Join(l.dir, name))
	if err != nil {
		l.t.Fatal(err)
	}
	return string(b)
}

// configure writes warder.yaml: the lab's upstream, policy and log, and rest.
func (l *lab) configure(rest string) {
	l.t.Helper()
	l.write("warder.yaml", fmt.Sprintf(`version: 1
policy: {path: ./policies}
proxy:
  upstream:
    ca_files: [./ca.pem]
    hosts: {%s: "%s"}
    allow_addresses: ["%s"]
audit: {dir: ./audit}
`, allowedHost, l.up.addr, l.up.addr)+rest)
}

// env is the whole environment of the warder process.
func (l *lab) env() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir, "WARDER_STATE_DIR=" + filepath.Join(l.dir, "state"),
		"WARDER_CACHE_DIR=" + filepath.Join(l.dir, "cache"),
		"WARDER_CONFIG=" + filepath.Join(l.dir, "warder.yaml"), "WARDER_TEST_HOST_ONLY=HOST-ENVIRONMENT-CANARY",
	}
}

// command is a warder process, not yet started.
func (l *lab) command(ctx context.Context, args ...string) *exec.Cmd {
	l.t.Helper()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Args[0] = "warder"
	cmd.Env = l.env()
	cmd.Dir = l.dir
	return cmd
}

type outcomeOf struct {
	code           int
	stdout, stderr string
}

// warder runs one command line to its end.
func (l *lab) warder(args ...string) outcomeOf {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := l.command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		l.t.Fatalf("warder %v: %v", args, err)
	}
	return outcomeOf{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// sh runs a shell script in the sandbox.
func (l *lab) sh(script string, flags ...string) outcomeOf {
	l.t.Helper()
	return l.warder(append(append([]string{"run"}, flags...), "--", "/bin/sh", "-c", script)...)
}

// jsonRun is `warder run -o json`.
type jsonRun struct {
	RunID     string `json:"run_id"`
	ExitCode  int    `json:"exit_code"`
	Cause     string
	Stdout    string
	Stderr    string
	Truncated bool
	Detail    string
	Denied    []struct {
		Host, Method, Path, Reason, Rule, Hint string
		Port                                   int
		DecisionID                             string `json:"decision_id"`
	}
	Artifacts []struct {
		Path, SHA256, Mode, Refused string
		Size                        int64
	}
	Credentials []struct{ Name, Status string }
	NotEnforced []string `json:"not_enforced"`
}

func (l *lab) json(script string, flags ...string) (jsonRun, outcomeOf) {
	l.t.Helper()
	o := l.sh(script, append([]string{"-o", "json"}, flags...)...)
	var r jsonRun
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
		l.t.Fatalf("result is no JSON: %v\nstdout: %s\nstderr: %s", err, o.stdout, o.stderr)
	}
	return r, o
}

// records are the lines of the log that the filter lets through.
func (l *lab) records(keep func(*audit.Record) bool) []*audit.Record {
	l.t.Helper()
	var out []*audit.Record
	if _, err := os.Stat(filepath.Join(l.dir, "audit")); os.IsNotExist(err) {
		return nil // nothing has run yet
	}
	for r, err := range audit.Read(context.Background(), filepath.Join(l.dir, "audit"), audit.Filter{}) {
		if err != nil {
			l.t.Fatalf("read log: %v", err)
		}
		if keep == nil || keep(r) {
			out = append(out, r)
		}
	}
	return out
}

func requestsOf(r *audit.Record) bool { return r.Event == audit.EventRequest }

// mustBeComplete verifies the log through the command.
func (l *lab) mustBeComplete() {
	l.t.Helper()
	if o := l.warder("audit", "verify"); o.code != 0 || !strings.Contains(o.stdout, "complete") {
		l.t.Errorf("audit verify: exit %d\n%s%s", o.code, o.stdout, o.stderr)
	}
}

// mustHold fails unless the outcome has this exit code and the text somewhere.
func (l *lab) mustHold(o outcomeOf, code int, text string) {
	l.t.Helper()
	if o.code != code || !strings.Contains(o.stdout+o.stderr, text) {
		l.t.Errorf("exit %d, want %d with %q\nstdout: %s\nstderr: %s", o.code, code, text, o.stdout, o.stderr)
	}
}

// upstream is an HTTPS server on loopback that keeps what it received.
type upstream struct {
	addr  string
	caPEM []byte

	mu       sync.Mutex
	requests []received
	accepted int
	handler  http.Handler
}

type received struct {
	method, target, host, authorization string
	header                              http.Header
	body                                string
}

func startUpstream(t testing.TB, host string) *upstream {
	t.Helper()
	u := &upstream{}
	cert := u.certificate(t, host)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.addr = ln.Addr().String()
	srv := &http.Server{
		Handler: u, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				u.mu.Lock()
				u.accepted++
				u.mu.Unlock()
			}
		},
	}
	go func() { _ = srv.ServeTLS(ln, "", "") }()
	t.Cleanup(func() { srv.Close() })
	return u
}

func (u *upstream) certificate(t testing.TB, host string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	u.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	u.mu.Lock()
	u.requests = append(u.requests, received{r.Method, r.RequestURI, r.Host, r.Header.Get("Authorization"), r.Header.Clone(), string(body)})
	h := u.handler
	u.mu.Unlock()
	if h != nil {
		r.Body = io.NopCloser(bytes.NewReader(body))
		h.ServeHTTP(w, r)
		return
	}
	w.Header().Set("X-Reflected", r.Header.Get("Authorization"))
	fmt.Fprintf(w, "answer to %s %s, you sent %s\n", r.Method, r.URL.Path, r.Header.Get("Authorization"))
}

func (u *upstream) seen() []received {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]received(nil), u.requests...)
}

func (u *upstream) connections() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.accepted
}

// serveGit answers /repo.git/ with git's own server (git-http-backend(1)).
func (u *upstream) serveGit(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t.test", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t.test")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	repo := filepath.Join(dir, "repo.git")
	git("init", "-q", "--bare", "-b", "main", repo)
	tree := git("-C", repo, "hash-object", "-t", "tree", "-w", "/dev/null")
	git("-C", repo, "update-ref", "refs/heads/main", git("-C", repo, "commit-tree", "-m", "first", tree))
	backend := filepath.Join(git("--exec-path"), "git-http-backend")
	u.mu.Lock()
	defer u.mu.Unlock()
	u.handler = &cgi.Handler{
		Path: backend, Root: "/", Dir: dir, Logger: log.New(io.Discard, "", 0),
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
}

// phases follows a trace file until want appears, and returns that line.
func followTrace(t testing.TB, path, want string) runner.Phase {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		if f, err := os.Open(path); err == nil {
			for sc := bufio.NewScanner(f); sc.Scan(); {
				var p runner.Phase
				if json.Unmarshal(sc.Bytes(), &p) == nil && p.Name == want {
					f.Close()
					return p
				}
			}
			f.Close()
		}
		time.Sleep(time.Millisecond) // polling for a line that another process writes
	}
	t.Fatalf("phase %q never came", want)
	return runner.Phase{}
}
