package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/config"
)

// TestI10EveryOddAnswerOfVaultRefuses is the table of Vault's answers: each refuses the one request.
func TestI10EveryOddAnswerOfVaultRefuses(t *testing.T) {
	const read, mint = "secret/data/github", "auth/token/create/agent-run"
	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
		cause  string
		after  time.Duration // at least
	}{
		"400":                    {read, jsonAnswer(400, `{"errors":["unknown role"]}`), "unknown role", time.Second},
		"403":                    {read, jsonAnswer(403, `{"errors":["permission denied"]}`), "need capability read", time.Second},
		"404":                    {read, jsonAnswer(404, `{"errors":[]}`), "404", time.Second},
		"405":                    {read, jsonAnswer(405, `{"errors":["unsupported operation"]}`), "unsupported", time.Second},
		"412":                    {read, jsonAnswer(412, `{"errors":["required index state not present"]}`), "412", time.Second},
		"429":                    {read, retryIn("7", 429), "429", 7 * time.Second},
		"429 hostile":            {read, retryIn("999999", 429), "429", maxRetryAfter},
		"472":                    {read, jsonAnswer(472, `{"errors":[]}`), "472", time.Second},
		"473":                    {read, jsonAnswer(473, `{"errors":[]}`), "473", time.Second},
		"500":                    {read, jsonAnswer(500, `{"errors":["internal error"]}`), "internal error", time.Second},
		"502 HTML":               {read, jsonAnswer(502, `<html>Bad gateway S3CR3T-CANARY</html>`), "not Vault's JSON", time.Second},
		"503 sealed":             {read, jsonAnswer(503, `{"errors":["Vault is sealed"]}`), "sealed", time.Second},
		"200 HTML":               {read, jsonAnswer(200, `<html>Welcome</html>`), "not Vault's JSON", time.Second},
		"200 empty":              {read, jsonAnswer(200, ``), "not Vault's JSON", time.Second},
		"200 null":               {read, jsonAnswer(200, `null`), "missing or not a text", time.Second},
		"200 no data":            {read, jsonAnswer(200, `{"data":null}`), "missing or not a text", time.Second},
		"200 deleted":            {read, jsonAnswer(200, `{"data":{"data":null,"metadata":{}}}`), "missing or not a text", time.Second},
		"200 wrapped":            {read, jsonAnswer(200, `{"wrap_info":{"token":"S3CR3T-CANARY-wrap","accessor":"w","ttl":60,"creation_time":"2026-01-01T00:00:00Z","creation_path":"x"}}`), "the answer is wrapped", time.Second},
		"204":                    {read, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "empty answer", time.Second},
		"403 HTML":               {read, jsonAnswer(403, `<html>WAF</html>`), "not Vault's JSON", time.Second},
		"404 HTML":               {read, jsonAnswer(404, `<html>nginx</html>`), "not Vault's JSON", time.Second},
		"endless":                {read, endless, "too long", time.Second},
		"cut off":                {read, hangUp, "EOF", time.Second},
		"control characters":     {read, jsonAnswer(500, `{"errors":["a\u001b[31m\r\nb"]}`), "a [31m b", time.Second},
		"mint 403":               {mint, jsonAnswer(403, `{"errors":["permission denied"]}`), "auth/token/create/agent-run", time.Second},
		"mint without auth":      {mint, jsonAnswer(200, `{"data":{}}`), "gave no token", time.Second},
		"mint wrapped":           {mint, jsonAnswer(200, `{"wrap_info":{"token":"S3CR3T-CANARY-wrap","accessor":"w","ttl":60,"creation_time":"2026-01-01T00:00:00Z","creation_path":"x","wrapped_accessor":"a"}}`), "the answer is wrapped", time.Second},
		"mint without accessor":  {mint, jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY","lease_duration":900}}`), "without an accessor", time.Second},
		"mint without end":       {mint, jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY","accessor":"a","lease_duration":0}}`), "never end", time.Second},
		"mint with negative end": {mint, jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY","accessor":"a","lease_duration":-5}}`), "never end", time.Second},
		"mint orphan":            {mint, jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY","accessor":"a","lease_duration":9,"orphan":true}}`), "orphan=false", time.Second},
		"mint other policy":      {mint, jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY","accessor":"a","lease_duration":9,"token_policies":["root"]}}`), "was not asked for", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, map[string]http.HandlerFunc{c.path: c.answer})
			r := fakeRig(t, f)
			sess, j := r.begin(t)
			_, err := sess.Grant(t.Context(), "github-read", issues)
			e := refused(t, err, ReasonUnavailable)
			if !strings.Contains(e.Cause.Error(), c.cause) || e.RetryAfter < c.after || e.RetryAfter > maxRetryAfter {
				t.Fatal(e, e.RetryAfter)
			}
			if c.path == mint && (len(j.list()) != 0 || (strings.Contains(name, "mint ") && name != "mint 403" && name != "mint without auth" && name != "mint wrapped" && f.count("POST auth/token/revoke-self") != 1)) {
				t.Fatal("a refused token was journaled or not revoked")
			}
			calls := f.total()
			_, err = sess.Grant(t.Context(), "github-read", issues)
			refused(t, err, ReasonUnavailable)
			if f.total() != calls {
				t.Fatal("F141 a failure was not kept for a moment")
			}
			f.set(c.path, nil) // and Vault is well again
			r.clock.add(maxRetryAfter)
			if injected(t, grant(t, sess, "github-read")) != "Bearer "+githubCanary {
				t.Fatal("no recovery")
			}
		})
	}
}

func retryIn(after string, status int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", after)
		jsonAnswer(status, `{"errors":["quota"]}`)(w, r)
	}
}

func endless(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte(`{"data":{"data":{"token":"`))
	chunk := []byte(strings.Repeat("a", 1<<20))
	for range 8 {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

func hangUp(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "100")
	_, _ = w.Write([]byte(`{"data":`))
	panic(http.ErrAbortHandler)
}

func TestTimeoutRefuses(t *testing.T) {
	hold := make(chan struct{})
	f := newFake(t, map[string]http.HandlerFunc{"secret/data/github": func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}})
	defer close(hold)
	v := tokenFile(t, f.URL, "x")
	v.Timeout = config.Duration(50 * time.Millisecond)
	r := newRig(t, v, map[string]config.Credential{"github-read": githubCred()})
	sess, _ := r.begin(t)
	_, err := sess.Grant(t.Context(), "github-read", issues)
	if e := refused(t, err, ReasonUnavailable); !errors.Is(e, context.DeadlineExceeded) {
		t.Fatal(e)
	}
}

func TestF139RedirectIsNeverFollowedAndNoTokenLeaves(t *testing.T) {
	var mu sync.Mutex
	var got []string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Header.Get("X-Vault-Token"))
	}))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		f := newFake(t, nil)
		f.set("secret/data/github", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+r.URL.Path, status) })
		sess, _ := fakeRig(t, f).begin(t)
		_, err := sess.Grant(t.Context(), "github-read", issues)
		if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "never followed") {
			t.Error(status, e)
		}
	}
	if len(got) != 0 {
		t.Fatal("the other host was asked")
	}
	resp, err := http.Get(other.URL) // the control: the recorder records
	if err != nil || len(got) != 1 {
		t.Fatal("the recorder does not work", err)
	}
	_ = resp.Body.Close()
}

func TestAmbientSettingsHaveNoSay(t *testing.T) {
	wrong := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("an ambient address was used") }))
	defer wrong.Close()
	for k, v := range map[string]string{
		"VAULT_TOKEN": "ambient", "VAULT_ADDR": wrong.URL, "VAULT_AGENT_ADDR": wrong.URL, "VAULT_NAMESPACE": "ambient", "VAULT_SKIP_VERIFY": "true",
		"VAULT_HEADERS": `{"X-Ambient":"1"}`, "VAULT_CACERT": "/nonexistent", "VAULT_MAX_RETRIES": "x", "VAULT_CLIENT_TIMEOUT": "x",
		"VAULT_PROXY_ADDR": wrong.URL, "HTTP_PROXY": wrong.URL, "HTTPS_PROXY": wrong.URL, "ALL_PROXY": wrong.URL, "http_proxy": wrong.URL, "https_proxy": wrong.URL,
	} {
		t.Setenv(k, v)
	}
	var mu sync.Mutex
	heads := map[string]http.Header{}
	f := newFake(t, nil)
	inner := f.Config.Handler
	f.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		heads[r.URL.Path] = r.Header.Clone()
		mu.Unlock()
		inner.ServeHTTP(w, r)
	})
	r := fakeRig(t, f)
	if r.vault.conn.servers[0].transport.Proxy != nil { // net/http asks no proxy for loopback anyway
		t.Fatal("a proxy may be used")
	}
	sess, _ := r.begin(t)
	grant(t, sess, "github-read")
	h := heads["/v1/auth/token/create/agent-run"]
	if h.Get("X-Vault-Token") != "S3CR3T-CANARY-broker" || h.Get("X-Vault-Namespace") != "" || h.Get("X-Ambient") != "" || h.Get("X-Vault-Request") != "true" {
		t.Fatal("the header of a call is not ours alone")
	}
	if !strings.HasSuffix(h.Get("X-Correlation-Id"), "/q1") {
		t.Fatal("no correlation id")
	}
}

func TestTLSIsVerifiedWhateverTheEnvironmentSays(t *testing.T) {
	f := &fake{header: map[string][]string{}}
	f.Server = httptest.NewTLSServer(f)
	f.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(f.Close)
	pem := secretFile(t, certPEM(f.Certificate().Raw))
	t.Setenv("SSL_CERT_FILE", pem)
	t.Setenv("VAULT_SKIP_VERIFY", "true")
	v := tokenFile(t, f.URL, "x")
	sess, _ := newRig(t, v, map[string]config.Credential{"github-read": githubCred()}).begin(t)
	_, err := sess.Grant(t.Context(), "github-read", issues)
	if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "x509") || f.total() != 0 {
		t.Fatal(e)
	}
	v.CAFile = pem // the control: the named authority is trusted
	sess, _ = newRig(t, v, map[string]config.Credential{"github-read": githubCred()}).begin(t)
	grant(t, sess, "github-read")
}

func TestClearTextNeverLeavesTheMachine(t *testing.T) {
	f := newFake(t, nil)
	r := fakeRig(t, f)
	dial := r.vault.conn.servers[0].transport.DialContext
	if c, err := dial(t.Context(), "tcp", "192.0.2.1:80"); err == nil || !strings.Contains(err.Error(), "not a loopback") { // as "localhost" may resolve
		t.Fatal(c, err)
	}
	c, err := dial(t.Context(), "tcp", f.Listener.Addr().String())
	if err != nil {
		t.Fatal("the control:", err)
	}
	_ = c.Close()
}

func TestNamespaceAndUnixSocket(t *testing.T) {
	f := &fake{header: map[string][]string{}}
	var ns string
	sock := filepath.Join(t.TempDir(), "v.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	f.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ns = r.Header.Get("X-Vault-Namespace")
		f.ServeHTTP(w, r)
	})}}
	f.Start()
	t.Cleanup(f.Close)
	v := tokenFile(t, "unix://"+sock, "x")
	v.Namespace = "team/a/"
	sess, j := newRig(t, v, map[string]config.Credential{"github-read": githubCred()}).begin(t)
	grant(t, sess, "github-read")
	if e := j.list(); ns != "team/a" || len(e) != 1 || e[0].Namespace != "team/a" {
		t.Fatal(ns, e)
	}
}

func TestNewRefusesUnsafeVaultSections(t *testing.T) {
	good := config.Vault{Address: "https://vault.test", TokenRole: "r", Auth: config.Auth{Method: "token_file", TokenFile: "/x"}}
	if _, err := New(Options{Vault: &good, Journal: &journal{}}); err != nil {
		t.Fatal("the control:", err)
	}
	for want, edit := range map[string]func(*config.Vault){
		"vault.address: a URL":         func(v *config.Vault) { v.Address = "" },
		"http:// only to a loopback":   func(v *config.Vault) { v.Address = "http://vault.test:8200" },
		"http:// only to a loop":       func(v *config.Vault) { v.Address = "http://10.0.0.1" },
		"vault.address: scheme":        func(v *config.Vault) { v.Address = "ftp://127.0.0.1" },
		"the host is missing":          func(v *config.Vault) { v.Address = "https://" },
		"no user, query":               func(v *config.Vault) { v.Address = "https://u:p@vault.test" },
		"unix:// is followed":          func(v *config.Vault) { v.Address = "unix://host/path" },
		"vault.timeout":                func(v *config.Vault) { v.Timeout = -1 },
		"vault.addresses[1]: scheme":   func(v *config.Vault) { v.Addresses = []string{"https://b.test", "ftp://c.test"} },
		"vault.stale":                  func(v *config.Vault) { v.Stale = config.Duration(2 * time.Hour) },
		"vault.namespace":              func(v *config.Vault) { v.Namespace = "a\nb" },
		"vault.ca_file":                func(v *config.Vault) { v.CAFile = "/nonexistent" },
		"vault.token_role":             func(v *config.Vault) { v.TokenRole = "" },
		"vault.token_role: ":           func(v *config.Vault) { v.TokenRole = "../x" },
		"vault.auth.method":            func(v *config.Vault) { v.Auth.Method = "" },
		"vault.auth.token_file":        func(v *config.Vault) { v.Auth.TokenFile = "" },
		"vault.auth.role_id_file":      func(v *config.Vault) { v.Auth.Method = "approle" },
		"vault.auth.role: needed with": func(v *config.Vault) { v.Auth.Method = "kubernetes" },
		"vault.auth.jwt_file":          func(v *config.Vault) { v.Auth.Method = "jwt"; v.Auth.Role = "r" },
		"vault.auth.cert_file":         func(v *config.Vault) { v.Auth.Method = "cert" },
		"vault.auth.mount":             func(v *config.Vault) { v.Auth.Mount = "../sys" },
		"vault.auth.wrapped":           func(v *config.Vault) { v.Auth.Wrapped = true },
	} {
		v := good
		edit(&v)
		if _, err := New(Options{Vault: &v, Journal: &journal{}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := New(Options{Vault: &good}); err == nil {
		t.Error("no journal: no error")
	}
	if _, err := New(Options{Credentials: map[string]config.Credential{"a": githubCred()}}); err == nil {
		t.Error("a vault credential without Vault: no error")
	}
}
