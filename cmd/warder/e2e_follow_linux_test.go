package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"warder/audit"
)

const nothingAllowed = "package warder.egress\n\nallow contains {\"rule\": \"other\"} if input.request.path == \"/none\"\n"

// answers reports whether the allowed request is answered with status.
func (l *lab) answers(addr, status string) func() bool {
	return func() bool {
		return strings.Contains(l.curl(addr, "https://api.allowed.test/v1/x"), "STATUS "+status)
	}
}

// replace writes a file in one step: it is never seen half written.
func (l *lab) replace(name, text string) {
	l.t.Helper()
	l.write("next", text)
	if err := os.Rename(filepath.Join(l.dir, "next"), filepath.Join(l.dir, name)); err != nil {
		l.t.Fatal(err)
	}
}

// TestE2EProxyFollowsThePolicyFolder: a changed folder is in force without a
// signal; one that does not load changes nothing, and is told once.
func TestE2EProxyFollowsThePolicyFolder(t *testing.T) {
	l, addr, _, stop := proxyLab(t, "")
	l.until(l.answers(addr, "200"))
	l.replace("policies/api.rego", nothingAllowed)
	l.until(l.answers(addr, "403"))
	l.replace("policies/api.rego", "package warder.egress\n\nallow contains {\"rule\": \"again\"} if true\n")
	l.until(l.answers(addr, "200"))
	l.replace("policies/api.rego", "package warder.egress\n\nallow contains\n") // one change, so that it is told once however slow the machine is
	if log := stop(); strings.Count(log, "proxy: policy") != 2 || strings.Count(log, "stays as it was") > 1 {
		t.Errorf("log: %s", log)
	}
	l.mustBeComplete()

	// Both decisions are explained by the policies that made them, and not by
	// the one that is there now, which does not even load.
	for verdict, says := range map[string]string{"allow": "matched  allow api-read", "deny": "stopped at"} {
		records := l.records(func(r *audit.Record) bool {
			return r.Event == audit.EventRequest && r.Verdict == verdict && r.Policy != nil
		})
		if len(records) == 0 {
			t.Fatalf("no record of %s", verdict)
		}
		o := l.warder("policy", "explain", "--decision", records[0].Policy.DecisionID)
		if o.code != 0 || !strings.HasPrefix(o.stdout, verdict) || !strings.Contains(o.stdout, says) {
			t.Errorf("%s: exit %d: %s%s", verdict, o.code, o.stdout, o.stderr)
		}
	}
	if o := l.warder("policy", "explain", "--decision", "none"); o.code != 1 || !strings.Contains(o.stderr, "is not in") {
		t.Errorf("no such decision: exit %d: %s", o.code, o.stderr)
	}
}

// TestE2EOpenStreamsAreCutByANewPolicy: an upload that never ends is open until the
// folder changes.
func TestE2EOpenStreamsAreCutByANewPolicy_F153(t *testing.T) {
	l, addr, _, _ := proxyLab(t, "")
	l.replace("policies/api.rego", "package warder.egress\n\nallow contains {\"rule\": \"all\"} if input.request.host == \"api.allowed.test\"\n")
	l.until(func() bool {
		return strings.Contains(l.curl(addr, "-X", "PUT", "https://api.allowed.test/up"), "STATUS 200")
	})
	ca, err := os.ReadFile(filepath.Join(l.dir, "proxy-ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: addr}), TLSClientConfig: &tls.Config{RootCAs: roots},
	}}
	body, more := io.Pipe()
	defer more.Close()
	ended := make(chan string, 1)
	go func() {
		r, err := client.Post("https://api.allowed.test/stream", "text/plain", body)
		if err != nil {
			ended <- err.Error()
			return
		}
		r.Body.Close()
		ended <- r.Status
	}()
	if _, err := more.Write([]byte("the first of many")); err != nil {
		t.Fatal(err)
	}
	of := func(stage string) func(*audit.Record) bool {
		return func(r *audit.Record) bool {
			return r.Stage == stage && r.Request != nil && r.Request.Path == "/stream"
		}
	}
	l.until(func() bool { return len(l.records(of(audit.StageReserved))) == 1 })
	select {
	case how := <-ended:
		t.Fatal("the upload ended by itself: ", how)
	default:
	}
	l.replace("policies/api.rego", nothingAllowed)
	if how := <-ended; strings.HasPrefix(how, "200") {
		t.Error(how)
	}
	l.until(func() bool { return len(l.records(of(audit.StageCompleted))) == 1 })
	if r := l.records(of(audit.StageCompleted))[0]; r.Verdict != "deny" || r.Reason != "no-rule" {
		t.Errorf("%s, %s", r.Verdict, r.Reason)
	}
}

// policyServer serves a bundle that can be exchanged, or nothing.
type policyServer struct {
	mu     sync.Mutex
	bundle []byte // nil: 503; guarded by mu
	etag   string // guarded by mu
	not304 int    // answers that were not 304; guarded by mu
	all    int    // answers; guarded by mu
}

func (s *policyServer) set(bundle []byte, etag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bundle, s.etag = bundle, `"`+etag+`"`
}

func (s *policyServer) counts() (all, not304 int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all, s.not304
}

func (s *policyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all++
	if s.bundle != nil && r.Header.Get("If-None-Match") == s.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	s.not304++
	if s.bundle == nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("ETag", s.etag)
	_, _ = w.Write(s.bundle)
}

// bundleOf signs a bundle of the lab's policies by the verb.
func (l *lab) bundleOf(rego string) []byte {
	l.t.Helper()
	if err := os.MkdirAll(filepath.Join(l.dir, "source"), 0o700); err != nil {
		l.t.Fatal(err)
	}
	l.write("source/api.rego", rego)
	if o := l.warder("policy", "bundle", filepath.Join(l.dir, "source"), "--key", filepath.Join(l.dir, "bundle.key"), "--algorithm", "ES256", "--out", filepath.Join(l.dir, "bundle.tar.gz")); o.code != 0 {
		l.t.Fatalf("policy bundle: %s", o.stderr)
	}
	content, err := os.ReadFile(filepath.Join(l.dir, "bundle.tar.gz"))
	if err != nil {
		l.t.Fatal(err)
	}
	return content
}

func (l *lab) bundleKeys() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	private, err1 := x509.MarshalECPrivateKey(key)
	public, err2 := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err1 != nil || err2 != nil {
		l.t.Fatal(err1, err2)
	}
	l.write("bundle.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})))
	l.write("bundle.pub", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
}

// TestE2EAnotherSettingChangesNothing: the configuration is edited while the proxy
// runs, also into one that no longer loads, and it is told to read its policy again.
func TestE2EAnotherSettingChangesNothing_F152(t *testing.T) {
	l, addr, cmd, stop := proxyLab(t, "")
	judged := func(when string) {
		t.Helper()
		if !l.answers(addr, "200")() {
			t.Errorf("%s: what is allowed is refused", when)
		}
		if out := l.curl(addr, "https://evil.test/"); !strings.Contains(out, `"reason":"no-rule"`) {
			t.Errorf("%s: evil.test: %s", when, out)
		}
	}
	judged("at first")
	text, err := os.ReadFile(filepath.Join(l.dir, "warder.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for when, edited := range map[string]string{
		"an unrelated key":  string(text) + "sandbox: {cpus: 2}\n",
		"no policy section": strings.Replace(string(text), "policy: {path: ./policies}\n", "", 1),
		"not YAML":          "{",
	} {
		l.write("warder.yaml", edited)
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		judged(when)
	}
	// The signal does arrive: with it a changed policy is in force.
	l.replace("policies/api.rego", nothingAllowed)
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	l.until(l.answers(addr, "403"))
	if log := stop(); !strings.Contains(log, "proxy: policy ") {
		t.Errorf("log: %s", log)
	}
}

// TestE2EWithoutItsBundleServerNothingStarts: there is no policy, old or new.
func TestE2EWithoutItsBundleServerNothingStarts_F150(t *testing.T) {
	server := &policyServer{}
	web := httptest.NewServer(server)
	defer web.Close()
	l := newLab(t)
	l.bundleKeys()
	l.write("warder.yaml", fmt.Sprintf(`version: 1
policy: {bundle: {url: %q, key_file: ./bundle.pub, algorithm: ES256}}
proxy: {listen: 127.0.0.1:0}
audit: {dir: ./audit}
`, web.URL+"/b.tar.gz"))
	if o := l.warder("proxy"); o.code == 0 || !strings.Contains(o.stderr, "503") || strings.Contains(o.stderr, "listening") {
		t.Errorf("exit %d: %s", o.code, o.stderr)
	}
	if all, _ := server.counts(); all == 0 {
		t.Error("the server was not asked")
	}
}

// TestE2EProxyFollowsABundleServer: by ETag; an altered bundle changes nothing;
// a server that is away leaves the last good policy until it is too old.
func TestE2EProxyFollowsABundleServer_F151(t *testing.T) {
	const allowed = "package warder.egress\n\nallow contains {\"rule\": \"all\"} if input.request.host == \"api.allowed.test\"\n"
	server := &policyServer{}
	web := httptest.NewServer(server)
	defer web.Close()
	l, addr, _, stop := proxyLabWith(t, "", func(l *lab) string {
		l.bundleKeys()
		server.set(l.bundleOf(allowed), "1")
		return fmt.Sprintf("{bundle: {url: %q, key_file: ./bundle.pub, algorithm: ES256, poll: 1s, max_age: 15s}}", web.URL+"/b.tar.gz")
	})
	l.until(l.answers(addr, "200"))
	l.until(func() bool { all, _ := server.counts(); return all > 2 })
	if _, n := server.counts(); n != 1 {
		t.Errorf("the same bundle was sent %d times", n)
	}
	server.set(l.bundleOf(nothingAllowed), "2")
	l.until(l.answers(addr, "403"))

	altered := l.bundleOf(allowed)
	altered[len(altered)-9] ^= 1
	server.set(altered, "3")
	_, before := server.counts()
	l.until(func() bool { _, n := server.counts(); return n > before })
	if !l.answers(addr, "403")() {
		t.Error("an altered bundle is in force")
	}
	server.set(l.bundleOf(allowed), "4")
	l.until(l.answers(addr, "200"))

	server.set(nil, "") // away: first the last good policy, then none
	_, before = server.counts()
	l.until(func() bool { _, n := server.counts(); return n > before })
	if !l.answers(addr, "200")() {
		t.Error("the last good policy is gone at once")
	}
	l.until(l.answers(addr, "403"))
	server.set(l.bundleOf(allowed), "4")
	l.until(l.answers(addr, "200"))
	if log := stop(); !strings.Contains(log, "stays as it was") {
		t.Errorf("log: %s", log)
	}
	l.mustBeComplete()
}
