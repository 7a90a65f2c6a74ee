// Package vaulttest starts a real Vault for a test and sets it up as an operator
// would. It never runs in the product.
//
// Invariants: the server listens on loopback and ends with the test, also when
// the test binary is killed; a server that cannot be had fails the test, it never
// skips it; nothing is taken from PATH.
package vaulttest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TokenRole is the role that Setup makes for the tokens of runs.
const TokenRole = "agent-run"

// Server is a running, unsealed Vault.
type Server struct {
	Addr   string // http://127.0.0.1:PORT, https:// with TLS
	CAFile string // with TLS, the authority of its certificate
	Root   string // its root token
	Unseal string // its only unseal key

	data string // folder of a durable one
	env  []string
	cmd  *exec.Cmd
	in   io.Closer
}

// Start runs a Vault until the test ends, with env added to its environment.
func Start(t testing.TB, env ...string) *Server {
	t.Helper()
	s := &Server{env: env}
	s.run(t, "-listen", "127.0.0.1:0")
	return s
}

// StartDurable runs a Vault that keeps everything in a folder, so that Restart
// finds it again.
func StartDurable(t testing.TB) *Server {
	t.Helper()
	s := &Server{data: t.TempDir()}
	s.run(t, "-listen", "127.0.0.1:0", "-data", s.data)
	return s
}

// StartTLS runs a Vault that serves https and takes client certificates. files are
// its certificate, for 127.0.0.1, its key, and the authority that signed it.
func StartTLS(t testing.TB, certFile, keyFile, caFile string) *Server {
	t.Helper()
	s := &Server{CAFile: caFile}
	s.run(t, "-listen", "127.0.0.1:0", "-cert", certFile, "-key", keyFile)
	return s
}

// Restart starts a durable server again that has been killed, at its old address.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if s.data == "" || s.cmd != nil {
		t.Fatal("test Vault: only a durable server that has been killed can be restarted")
	}
	s.run(t, "-listen", strings.TrimPrefix(s.Addr, "http://"), "-data", s.data, "-unseal", s.Unseal)
}

// run starts the process and takes over what it says of itself.
func (s *Server) run(t testing.TB, args ...string) {
	t.Helper()
	cmd := exec.Command(Binary(t), append(args, "-parent")...)
	cmd.Env = append([]string{"HOME=/nonexistent"}, s.env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal("test Vault:", err)
	}
	s.cmd, s.in = cmd, in
	t.Cleanup(s.Kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.Kill()
		t.Fatalf("test Vault: no address: %v\n%s", err, log.String())
	}
	for _, f := range strings.Fields(line) {
		k, v, _ := strings.Cut(f, "=")
		switch {
		case k == "addr":
			s.Addr = v
		case k == "root" && v != "": // a restarted one does not know it
			s.Root = v
		case k == "unseal":
			s.Unseal = v
		}
	}
	if s.Addr == "" || s.Root == "" || s.Unseal == "" {
		t.Fatalf("test Vault: an odd first line of %d bytes", len(line))
	}
}

// Binary returns the path of the server, which is built when it is not there.
func Binary(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("WARDER_TEST_VAULT"); p != "" {
		return p
	}
	cmd := exec.Command(filepath.Join(moduleRoot(t), "tools", "vaultserver", "ensure.sh"))
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("test Vault: tools/vaultserver/ensure.sh: %v\n%s", err, log.String())
	}
	return strings.TrimSpace(string(out))
}

func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if raw, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && bytes.HasPrefix(raw, []byte("module warder\n")) {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("test Vault: the source of the module is not above the working directory; set WARDER_TEST_VAULT to the output of tools/vaultserver/ensure.sh")
		}
		dir = up
	}
}

// Kill ends the server at once, as a crash would. It may be called again.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.in.Close()
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Do calls the API with a token and returns status and decoded answer, which is
// nil when there is none. Only a failed connection ends the test.
func (s *Server) Do(t testing.TB, token, method, path string, body any) (int, map[string]any) {
	t.Helper()
	var rd io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		rd = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.Addr+"/v1/"+path, rd)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Vault-Token", token)
	tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.trust(t)} // no proxy, nothing left open
	resp, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		t.Fatalf("test Vault: %s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &out); err != nil {
			t.Fatalf("test Vault: %s %s: %v", method, path, err)
		}
	}
	return resp.StatusCode, out
}

// trust is the server's own authority, with TLS.
func (s *Server) trust(t testing.TB) *tls.Config {
	t.Helper()
	if s.CAFile == "" {
		return nil
	}
	raw, err := os.ReadFile(s.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(raw)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// Must calls the API as root and returns the "data" of the answer, or its
// "auth" when it is a login. Any status of 300 or more ends the test.
func (s *Server) Must(t testing.TB, method, path string, body any) map[string]any {
	t.Helper()
	status, out := s.Do(t, s.Root, method, path, body)
	if status >= 300 {
		t.Fatalf("test Vault: %s %s: status %d %v", method, path, status, out["errors"])
	}
	for _, k := range []string{"auth", "data"} {
		if m, ok := out[k].(map[string]any); ok {
			return m
		}
	}
	return out
}

// Mount enables a secrets engine.
func (s *Server) Mount(t testing.TB, path, typ string, options map[string]string) {
	t.Helper()
	s.Must(t, http.MethodPost, "sys/mounts/"+path, map[string]any{"type": typ, "options": options})
}

// KV mounts a key-value engine of version 1 or 2 and waits until it takes writes:
// version 2 sets itself up after the answer.
func (s *Server) KV(t testing.TB, path string, version int) {
	t.Helper()
	s.Mount(t, path, "kv", map[string]string{"version": fmt.Sprint(version)})
	probe := path + "/probe"
	if version == 2 {
		probe = path + "/data/probe"
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		status, out := s.Do(t, s.Root, http.MethodPost, probe, map[string]any{"data": map[string]any{"k": "v"}})
		if status < 300 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("test Vault: %s takes no writes: %d %v", path, status, out["errors"])
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Put writes a secret of a version 2 engine.
func (s *Server) Put(t testing.TB, mount, path string, data map[string]any) {
	t.Helper()
	s.Must(t, http.MethodPost, mount+"/data/"+path, map[string]any{"data": data})
}

// Policy writes an ACL policy in HCL.
func (s *Server) Policy(t testing.TB, name, hcl string) {
	t.Helper()
	s.Must(t, http.MethodPut, "sys/policies/acl/"+name, map[string]any{"policy": hcl})
}

// BrokerPolicy is all that the broker's own token may do: make tokens of one
// role, look them up, extend and revoke them. It reads no secret.
const BrokerPolicy = `
path "auth/token/create/` + TokenRole + `" { capabilities = ["update"] }
path "auth/token/lookup-accessor"  { capabilities = ["update"] }
path "auth/token/renew-accessor"   { capabilities = ["update"] }
path "auth/token/revoke-accessor"  { capabilities = ["update"] }
path "auth/token/lookup-self"      { capabilities = ["read"] }
path "auth/token/renew-self"       { capabilities = ["update"] }
path "auth/token/revoke-self"      { capabilities = ["update"] }
path "sys/leases/revoke/*"         { capabilities = ["update"] }
`

// Setup mounts a version 2 engine at secret/, holding github with field token,
// writes the policies broker, run-base and run-github, and makes the token role.
func (s *Server) Setup(t testing.TB, githubToken string) {
	t.Helper()
	s.KV(t, "secret", 2)
	s.Put(t, "secret", "github", map[string]any{"token": githubToken})
	s.Policy(t, "broker", BrokerPolicy)
	s.Policy(t, "run-base", `path "auth/token/lookup-self" { capabilities = ["read"] }`)
	s.Policy(t, "run-github", `path "secret/data/github" { capabilities = ["read"] }`)
	s.Must(t, http.MethodPost, "auth/token/roles/"+TokenRole, map[string]any{
		"allowed_policies_glob": "run-*", "disallowed_policies": "root,broker", "orphan": false, "renewable": true,
		"token_type": "service", "token_explicit_max_ttl": "1h", "token_no_default_policy": true,
	})
}

// BrokerToken makes a periodic token with the broker's policy and returns it with its accessor.
func (s *Server) BrokerToken(t testing.TB) (token, accessor string) {
	t.Helper()
	a := s.Must(t, http.MethodPost, "auth/token/create-orphan", map[string]any{
		"policies": []string{"broker"}, "period": "10m", "no_default_policy": true,
	})
	token, _ = a["client_token"].(string)
	accessor, _ = a["accessor"].(string)
	return token, accessor
}

// AppRole mounts AppRole with the role broker and returns a role id and a SecretID.
func (s *Server) AppRole(t testing.TB) (roleID, secretID string) {
	t.Helper()
	if status, _ := s.Do(t, s.Root, http.MethodGet, "auth/approle/role/broker/role-id", nil); status != http.StatusOK {
		s.Must(t, http.MethodPost, "sys/auth/approle", map[string]any{"type": "approle"})
		s.Must(t, http.MethodPost, "auth/approle/role/broker", map[string]any{
			"token_policies": "broker", "token_period": "10m", "token_no_default_policy": true,
		})
	}
	roleID, _ = s.Must(t, http.MethodGet, "auth/approle/role/broker/role-id", nil)["role_id"].(string)
	secretID, _ = s.Must(t, http.MethodPost, "auth/approle/role/broker/secret-id", map[string]any{})["secret_id"].(string)
	return roleID, secretID
}

// Alive reports whether Vault still knows the accessor of a token, and gives what it knows.
func (s *Server) Alive(t testing.TB, accessor string) (bool, map[string]any) {
	t.Helper()
	status, out := s.Do(t, s.Root, http.MethodPost, "auth/token/lookup-accessor", map[string]any{"accessor": accessor})
	data, _ := out["data"].(map[string]any)
	return status == http.StatusOK, data
}

// Seal closes the server; Open unseals it again.
func (s *Server) Seal(t testing.TB) {
	t.Helper()
	s.Must(t, http.MethodPut, "sys/seal", nil)
}

// Open unseals the server.
func (s *Server) Open(t testing.TB) {
	t.Helper()
	s.Must(t, http.MethodPut, "sys/unseal", map[string]any{"key": s.Unseal})
}

// AuditFile turns on a file audit device and returns its path.
func (s *Server) AuditFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vault-audit.json")
	s.Must(t, http.MethodPut, "sys/audit/file", map[string]any{"type": "file", "options": map[string]string{"file_path": path}})
	return path
}
