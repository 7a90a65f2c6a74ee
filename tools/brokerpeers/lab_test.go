// Package brokerpeers proves each kind of credential of Warder on servers of other
// people: what a sandboxed client is granted is judged by RabbitMQ, PostgreSQL,
// nginx, versitygw, a second Vault, oathtool or openssl, and by nothing of ours.
//
// It is a module of its own, so that none of this is linked into the product. All
// servers listen on loopback with TLS, run as an unprivileged account on data in a
// temporary folder, and end with the test.
package brokerpeers

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warder/audit"
	"warder/internal/vaulttest"
)

// Values that must never be seen where the task can see them.
const (
	staticPassword = "S3CR3T-CANARY-static-0123456789"
	queryKey       = "S3CR3T-CANARY-query-0123456789"
	s3Secret       = "S3CR3T-CANARY-s3-0123456789abcdef"
	s3Access       = "AKIACANARY0123456789"
	totpKey        = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
	hmacKey        = "S3CR3T-CANARY-hmac-0123456789"
)

// lab is one home with configuration, policy and log, and all servers.
type lab struct {
	dir, warder string
	ca          *authority
	vault       *vaulttest.Server // where credentials come from
	judge       *vaulttest.Server // verifies tokens
	mq          *rabbit
	pg          *postgres
	front       *front // verifies by running other programs
	nginx, s3   string
}

// newLab is a home with the command in it, and no server yet.
func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{dir: t.TempDir(), ca: newAuthority(t)}
	for _, d := range []string{"policies", "state"} {
		if err := os.Mkdir(filepath.Join(l.dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(l.dir, "ca.pem"), string(l.ca.pem))
	l.warder = filepath.Join(l.dir, "warder")
	build(t, "../..", l.warder, "./cmd/warder")
	return l
}

// startLab starts every server once.
func startLab(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	l.vault = vaulttest.Start(t, "SSL_CERT_FILE="+filepath.Join(l.dir, "ca.pem"))
	l.judge = vaulttest.Start(t)
	l.pg = startPostgres(t, l.ca)
	l.mq = startRabbit(t, l.ca)
	clientCA := writeClientCA(t, l.dir)
	l.setUpVault(t)
	own, err := os.ReadFile(clientCA)
	if err != nil {
		t.Fatal(err)
	}
	l.nginx = startNginx(t, l.ca, l.vaultCA(t)+"\n"+string(own), l.judge.Addr, queryKey)
	gateway := filepath.Join(home(t, "bin"), "versitygw")
	build(t, ".", gateway, "github.com/versity/versitygw/cmd/versitygw")
	for _, p := range []string{filepath.Dir(gateway), gateway} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.s3 = startS3(t, l.ca, gateway, s3Access, s3Secret)
	l.front = startFront(t, l)
	l.configure(t, l.vault.Addr, "{method: approle, role_id_file: ./role-id, secret_id_file: ./secret-id}", "20s")
	return l
}

// build compiles a command as `make build` does, so that both share a cache.
func build(t *testing.T, dir, out, pkg string) {
	t.Helper()
	args := []string{"build", "-o", out, pkg}
	if dir == "." {
		args = []string{"build", "-mod=mod", "-o", out, pkg} // go.sum follows that of the product
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, b)
	}
}

// result is what `warder run -o json` says.
type result struct {
	RunID       string `json:"run_id"`
	ExitCode    int    `json:"exit_code"`
	Stdout      string
	Stderr      string
	Credentials []struct{ Name, Status string }
	raw         string
}

// run runs a script in the sandbox with one credential offered.
func (l *lab) run(t *testing.T, credential, script string, flags ...string) result {
	t.Helper()
	args := append([]string{"run", "-o", "json", "--credential", credential, "--timeout", "2m"}, flags...)
	out, errs, code := l.command(t, append(args, "--", "/bin/sh", "-c", script)...)
	r := result{raw: out + errs}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != r.ExitCode {
		t.Fatalf("exit %d: %v\n%s%s", code, err, out, errs)
	}
	return r
}

func (l *lab) command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := l.process(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// process is the command, not yet started; it is ended with the test.
func (l *lab) process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, l.warder, args...)
	cmd.Dir = l.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir, "WARDER_STATE_DIR=" + filepath.Join(l.dir, "state"),
		"WARDER_CACHE_DIR=" + filepath.Join(l.dir, "cache"), "WARDER_CONFIG=" + filepath.Join(l.dir, "warder.yaml"),
		"LAB_STATIC=" + staticPassword,
	}
	return cmd
}

// status is what a credential's receipt says.
func (r result) status(name string) string {
	for _, c := range r.Credentials {
		if c.Name == name {
			return c.Status
		}
	}
	return ""
}

// completed are the records of requests of one run, by credential.
func (l *lab) completed(t *testing.T, run string) []*audit.Record {
	t.Helper()
	var out []*audit.Record
	for r, err := range audit.Read(t.Context(), filepath.Join(l.dir, "audit"), audit.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Event == audit.EventRequest && r.Stage == audit.StageCompleted && r.Run.ID == run {
			out = append(out, r)
		}
	}
	return out
}

// front is an HTTPS server that judges nothing itself: it hands what it was sent
// to the program that verifies, and keeps what the request carried.
type front struct {
	*httptest.Server
	requests atomic.Int64
	mu       sync.Mutex
	sent     map[string]string // path → Authorization or signature

	reflected []string // what was sent back
	listed    []string // processes that showed one of these
	held      *held
}

func startFront(t *testing.T, l *lab) *front {
	t.Helper()
	f := &front{sent: map[string]string{}, held: &held{values: map[string][]string{}, certs: map[string]bool{}, release: make(chan struct{})}}
	mux := http.NewServeMux()
	mux.HandleFunc("/db", f.keep(func(w http.ResponseWriter, r *http.Request, _ []byte) error {
		user, pass, _ := r.BasicAuth()
		who, err := l.pg.sql(user, pass, "select current_user")
		if err == nil {
			fmt.Fprintf(w, "connected as %s\n", who)
		}
		return err
	}))
	mux.HandleFunc("/db-held", f.keep(func(_ http.ResponseWriter, r *http.Request, _ []byte) error {
		user, pass, _ := r.BasicAuth()
		if _, err := l.pg.sql(user, pass, "select 1"); err != nil {
			return err
		}
		// Now PostgreSQL will not drop the role.
		_, err := l.pg.sql("admin", l.pg.pass, `create table held(); alter table held owner to "`+user+`"`)
		return err
	}))
	mux.HandleFunc("/otp", f.keep(func(w http.ResponseWriter, r *http.Request, _ []byte) error {
		// With a code oathtool verifies it, one step around now included.
		return exec.Command("oathtool", "--totp=sha1", "--base32", "--window=1", "--now=30 seconds ago", totpKey, r.Header.Get("X-Code")).Run()
	}))
	mux.HandleFunc("/hook", f.keep(func(_ http.ResponseWriter, r *http.Request, body []byte) error {
		return opensslAgrees(r.Header.Get("X-Key"), l, r.Method+"\n"+r.URL.Path+"\n"+string(body), r.Header.Get("X-Signature"))
	}))
	mux.HandleFunc("/mq/", f.keep(func(w http.ResponseWriter, r *http.Request, _ []byte) error {
		status, body := l.mq.ask(t, r.Header.Get("Authorization"), "/api/whoami")
		if status != http.StatusOK {
			return fmt.Errorf("RabbitMQ says %d", status)
		}
		_, err := io.WriteString(w, body)
		return err
	}))
	f.Server = httptest.NewUnstartedServer(mux)
	f.Server.Config.ErrorLog = log.New(io.Discard, "", 0)
	mux.HandleFunc("/reflect", f.serveReflection)
	mux.Handle("/held", f.held)
	crt, key := l.ca.server(t, l.dir, frontHost, reflectHost)
	f.Server.TLS = serverTLS(t, crt, key)
	f.Server.TLS.ClientAuth = tls.RequestClientCert
	f.Server.StartTLS()
	t.Cleanup(f.Close)
	return f
}

// keep notes what a request carried and answers 401 when the judge refuses.
func (f *front) keep(judge func(w http.ResponseWriter, r *http.Request, body []byte) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f.requests.Add(1)
		body, _ := io.ReadAll(r.Body)
		carried := r.Header.Get("Authorization") + r.Header.Get("X-Code") + r.Header.Get("X-Signature")
		f.mu.Lock()
		f.sent[r.URL.Path] = carried
		f.mu.Unlock()
		if err := judge(w, r, body); err != nil {
			http.Error(w, "refused", http.StatusUnauthorized)
			return
		}
		fmt.Fprintln(w, "verified")
	}
}

func (f *front) carried(path string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent[path]
}

// opensslAgrees has openssl compute the HMAC with the key of that name.
func opensslAgrees(name string, l *lab, text, signature string) error {
	key := fmt.Sprintf("key:%s", hmacKey)
	if name == "vault" {
		key = "hexkey:" + l.exportedHMACKey()
	}
	cmd := exec.Command("openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", key, "-r")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	if sum, _, _ := strings.Cut(string(out), " "); sum != signature {
		return errors.New("openssl has another sum")
	}
	return nil
}
