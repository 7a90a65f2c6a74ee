package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
)

// fake answers as Vault does where a real one cannot be brought to: broken,
// hostile and rare answers. What a test does not override is answered well.
type fake struct {
	*httptest.Server
	mu     sync.Mutex
	seen   []string            // "METHOD path"
	header map[string][]string // X-Vault-Token of each path
	answer map[string]http.HandlerFunc
	minted int
}

func newFake(t *testing.T, answers map[string]http.HandlerFunc) *fake {
	t.Helper()
	f := &fake{answer: answers, header: map[string][]string{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	f.mu.Lock()
	f.seen = append(f.seen, r.Method+" "+path)
	f.header[path] = append(f.header[path], r.Header.Get("X-Vault-Token"))
	h := f.answer[path]
	f.minted++
	n := f.minted
	f.mu.Unlock()
	switch {
	case h != nil:
		h(w, r)
	case path == "auth/token/create/agent-run":
		jsonAnswer(200, fmt.Sprintf(`{"auth":{"client_token":"S3CR3T-CANARY-run-%d","accessor":"acc-%d","lease_duration":900,"token_policies":["run-base"]}}`, n, n))(w, r)
	case path == "secret/data/github":
		jsonAnswer(200, `{"request_id":"req","data":{"data":{"token":"`+githubCanary+`"},"metadata":{"version":1}}}`)(w, r)
	case strings.HasPrefix(path, "auth/token/lookup"):
		jsonAnswer(200, `{"data":{}}`)(w, r)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func (f *fake) count(call string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.seen {
		if s == call {
			n++
		}
	}
	return n
}

func (f *fake) total() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seen)
}

func (f *fake) set(path string, h http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answer == nil {
		f.answer = map[string]http.HandlerFunc{}
	}
	f.answer[path] = h
}

func jsonAnswer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func fakeRig(t *testing.T, f *fake) *rig {
	t.Helper()
	return newRig(t, tokenFile(t, f.URL, "S3CR3T-CANARY-broker"), map[string]config.Credential{"github-read": githubCred()})
}

// TestFailClosed is the table of Vault's answers: each refuses the one request.
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
		"204":                    {read, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "empty answer", time.Second},
		"403 HTML":               {read, jsonAnswer(403, `<html>WAF</html>`), "not Vault's JSON", time.Second},
		"404 HTML":               {read, jsonAnswer(404, `<html>nginx</html>`), "not Vault's JSON", time.Second},
		"endless":                {read, endless, "too long", time.Second},
		"cut off":                {read, hangUp, "EOF", time.Second},
		"control characters":     {read, jsonAnswer(500, `{"errors":["a\u001b[31m\r\nb"]}`), "a [31m b", time.Second},
		"mint 403":               {mint, jsonAnswer(403, `{"errors":["permission denied"]}`), "auth/token/create/agent-run", time.Second},
		"mint without auth":      {mint, jsonAnswer(200, `{"data":{}}`), "gave no token", time.Second},
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
			if c.path == mint && (len(j.list()) != 0 || (strings.Contains(name, "mint ") && name != "mint 403" && name != "mint without auth" && f.count("POST auth/token/revoke-self") != 1)) {
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
	if r.vault.conn.client.Transport.(*http.Transport).Proxy != nil { // net/http asks no proxy for loopback anyway
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
	dial := r.vault.conn.client.Transport.(*http.Transport).DialContext
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

func TestF135OddLeaseDurationsAreNeverCached(t *testing.T) {
	for _, d := range []string{"0", "-1", "-5"} {
		f := newFake(t, nil)
		n := 0
		f.set("db/creds/ro", func(w http.ResponseWriter, r *http.Request) {
			n++
			jsonAnswer(200, fmt.Sprintf(`{"lease_id":"db/creds/ro/%d","lease_duration":%s,"data":{"password":"S3CR3T-CANARY-%d"}}`, n, d, n))(w, r)
		})
		r := newRig(t, tokenFile(t, f.URL, "x"), map[string]config.Credential{"db": dbCred()})
		sess, j := r.begin(t)
		a, b := grant(t, sess, "db"), grant(t, sess, "db")
		if a.LeaseID == b.LeaseID || n != 2 {
			t.Error(d, "cached")
		}
		if e := j.list(); len(e) != 1 || !slices.Equal(e[0].LeaseIDs, []string{"db/creds/ro/1", "db/creds/ro/2"}) {
			t.Error(d, "journal", e)
		}
	}
	f := newFake(t, map[string]http.HandlerFunc{"db/creds/ro": jsonAnswer(200, `{"lease_id":"db/creds/ro/1","lease_duration":1000000000000,"data":{"password":"S3CR3T-CANARY"}}`)})
	r := newRig(t, tokenFile(t, f.URL, "x"), map[string]config.Credential{"db": dbCred()})
	sess, _ := r.begin(t)
	g := grant(t, sess, "db")
	if life := g.Expires.Sub(r.clock.Now()); life <= 0 || life > 15*time.Minute {
		t.Error("a lease outlives its token:", life)
	}
	grant(t, sess, "db")
	if f.count("GET db/creds/ro") != 1 {
		t.Error("a long lease is not cached")
	}
}

func dbCred() config.Credential {
	c := valid()
	c.Source = config.Source{Vault: &config.VaultSource{Read: "db/creds/ro", Field: "password", Policies: []string{"run-base"}}}
	return c
}

func TestF136TooLittleLifeIsFetchedAnew(t *testing.T) {
	f := newFake(t, nil)
	n := 0
	f.set("db/creds/ro", func(w http.ResponseWriter, r *http.Request) {
		n++
		jsonAnswer(200, fmt.Sprintf(`{"lease_id":"db/creds/ro/%d","lease_duration":60,"data":{"password":"S3CR3T-CANARY-%d"}}`, n, n))(w, r)
	})
	r := newRig(t, tokenFile(t, f.URL, "x"), map[string]config.Credential{"db": dbCred()})
	sess, _ := r.begin(t)
	one := grant(t, sess, "db")
	r.clock.add(51 * time.Second) // 9 s are left, less than the margin
	two := grant(t, sess, "db")
	if one.LeaseID == two.LeaseID {
		t.Fatal("a value at its end was handed out")
	}
	if one.Secrets()[0].Reveal() == "" {
		t.Fatal("the old value is gone before its last use")
	}
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusRevoked || out[0].LeaseID != two.LeaseID {
		t.Fatalf("%+v", out)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	tail := f.seen[len(f.seen)-3:]
	want := []string{"POST sys/leases/revoke/" + one.LeaseID, "POST sys/leases/revoke/" + two.LeaseID, "POST auth/token/revoke-accessor"}
	if !slices.Equal(tail, want) {
		t.Fatal("order of revocation", tail)
	}
}

func TestF141TheFetchOutlivesItsFirstCaller(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{})
	f := newFake(t, nil)
	f.set("secret/data/github", func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-hold
		jsonAnswer(200, `{"data":{"data":{"token":"`+githubCanary+`"}}}`)(w, r)
	})
	sess, _ := fakeRig(t, f).begin(t)
	first, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := sess.Grant(first, "github-read", issues); gone <- err }()
	<-entered
	cancel()
	refused(t, <-gone, ReasonUnavailable)
	close(hold)
	if injected(t, grant(t, sess, "github-read")) != "Bearer "+githubCanary || f.count("GET secret/data/github") != 1 {
		t.Fatal("the fetch was cut off or repeated")
	}
}

func TestEndWaitsForAFetchSoThatALateTokenIsRevoked(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{})
	f := newFake(t, nil)
	f.set("auth/token/create/agent-run", func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-hold
		jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY","accessor":"late","lease_duration":900}}`)(w, r)
	})
	sess, j := fakeRig(t, f).begin(t)
	go func() { _, _ = sess.Grant(t.Context(), "github-read", issues) }()
	<-entered
	ended := make(chan []Outcome, 1)
	go func() { ended <- end(t, sess) }()
	for !sess.isClosed() {
		time.Sleep(time.Millisecond)
	}
	_, err := sess.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable)
	close(hold)
	<-ended
	if f.count("POST auth/token/revoke-accessor") != 1 || len(j.list()) != 0 {
		t.Fatal("the late token was not revoked")
	}
}

func TestF137VaultAwayForAMinuteIsAskedRarely(t *testing.T) {
	f := newFake(t, map[string]http.HandlerFunc{"auth/token/create/agent-run": jsonAnswer(503, `{"errors":["Vault is sealed"]}`)})
	r := fakeRig(t, f)
	sess, _ := r.begin(t)
	for range 600 { // a minute, ten requests a second
		_, err := sess.Grant(t.Context(), "github-read", issues)
		refused(t, err, ReasonUnavailable)
		r.clock.add(100 * time.Millisecond)
	}
	if n := f.total(); n < 3 || n >= 10 {
		t.Fatal("calls in a minute:", n)
	}
}

func TestF140OneRunsBackoffIsSharedByAll(t *testing.T) {
	f := newFake(t, map[string]http.HandlerFunc{"auth/token/create/agent-run": jsonAnswer(503, `{"errors":["Vault is sealed"]}`)})
	r := fakeRig(t, f)
	for range 50 {
		sess, _ := r.begin(t)
		_, err := sess.Grant(t.Context(), "github-read", issues)
		refused(t, err, ReasonUnavailable)
	}
	if f.total() != 1 {
		t.Fatal("calls:", f.total())
	}
}

func TestF144AValueIsDeadByEitherClock(t *testing.T) {
	now := time.Now()
	d := deadlineAt(now.Add(time.Minute))
	for name, c := range map[string]struct {
		now  time.Time
		want bool
	}{
		"before":                    {now.Add(59 * time.Second), false},
		"after":                     {now.Add(61 * time.Second), true},
		"the monotonic clock stood": {skew(now, time.Hour), true},
		"the wall clock went back":  {skew(now.Add(61*time.Second), -time.Hour), true},
	} {
		if got := d.passed(c.now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// skew moves the wall clock of t and leaves its monotonic reading: t - now is
// the same as before.
func skew(t time.Time, by time.Duration) time.Time {
	return shiftWall(t, by)
}

func TestLeaseRevocationThatTheTargetRefusesIsUnconfirmed(t *testing.T) {
	f := newFake(t, nil)
	f.set("db/creds/ro", jsonAnswer(200, `{"lease_id":"db/creds/ro/1","lease_duration":60,"data":{"password":"S3CR3T-CANARY"}}`))
	var body string
	f.set("sys/leases/revoke/db/creds/ro/1", func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		body = string(raw)
		jsonAnswer(500, `{"errors":["failed to revoke entry"]}`)(w, r)
	})
	r := newRig(t, tokenFile(t, f.URL, "x"), map[string]config.Credential{"db": dbCred()})
	sess, j := r.begin(t)
	grant(t, sess, "db")
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	out := sess.End(ctx)
	if body != `{"sync":true}` {
		t.Fatal("the revocation does not wait for the target:", body)
	}
	if len(out) != 1 || out[0].Status != StatusUnconfirmed || !strings.Contains(out[0].Detail, "failed to revoke") || len(j.list()) != 1 {
		t.Fatalf("%+v", out)
	}
	if f.count("POST sys/leases/revoke/db/creds/ro/1") < 2 || f.count("POST auth/token/revoke-accessor") < 1 {
		t.Fatal("not repeated, or the token was left")
	}
	f.set("sys/leases/revoke/db/creds/ro/1", nil)
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusRevoked || len(j.list()) != 0 {
		t.Fatalf("%+v", out)
	}
	if !slices.Contains(*r.events, "unconfirmed token unconfirmed") || (*r.events)[len(*r.events)-1] != "revoke token revoked" {
		t.Fatal(*r.events)
	}
}

func TestOddLeaseIDsNeverBecomeAPath(t *testing.T) {
	for _, id := range []string{"../../sys/seal", "a//b", "a?b", "a\nb", strings.Repeat("a", 2000)} {
		raw, _ := json.Marshal(map[string]any{"lease_id": id, "lease_duration": 60, "data": map[string]any{"password": "S3CR3T-CANARY"}})
		f := newFake(t, map[string]http.HandlerFunc{"db/creds/ro": jsonAnswer(200, string(raw))})
		r := newRig(t, tokenFile(t, f.URL, "x"), map[string]config.Credential{"db": dbCred()})
		sess, _ := r.begin(t)
		_, err := sess.Grant(t.Context(), "db", issues)
		refused(t, err, ReasonUnavailable)
	}
}

func TestRotatedTokenFileIsReadAgainWhenTheOldTokenIsDead(t *testing.T) {
	f := newFake(t, nil)
	denyOld := func(ok http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Vault-Token") == "old-S3CR3T-CANARY" {
				jsonAnswer(403, `{"errors":["permission denied"]}`)(w, r)
				return
			}
			ok(w, r)
		}
	}
	f.set("auth/token/create/agent-run", denyOld(jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY","accessor":"a","lease_duration":900}}`)))
	f.set("auth/token/lookup-self", denyOld(jsonAnswer(200, `{"data":{}}`)))
	v := tokenFile(t, f.URL, "old-S3CR3T-CANARY")
	r := newRig(t, v, map[string]config.Credential{"github-read": githubCred()})
	sess, _ := r.begin(t)
	_, err := sess.Grant(t.Context(), "github-read", issues)
	if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "not valid any more") {
		t.Fatal(e)
	}
	v2 := secretFile(t, "new-S3CR3T-CANARY")
	r.vault.auth.TokenFile = v2
	r.clock.add(time.Minute)
	grant(t, sess, "github-read")
}

func TestPanickingSourceRefusesAndTheProcessLives(t *testing.T) {
	r := newRig(t, nil, map[string]config.Credential{"a": valid()}, func(o *Options) {
		o.Getenv = func(string) (string, bool) { panic("S3CR3T-CANARY") }
	})
	s, err := r.Begin(identity.Run{ID: "r-1"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Grant(t.Context(), "a", issues)
	refused(t, err, ReasonUnavailable)
	if out := end(t, s); len(out) != 0 {
		t.Fatal(out)
	}
}

func TestRefreshAheadDoesNotHoldRequestsUp(t *testing.T) {
	f := newFake(t, nil)
	r := fakeRig(t, f)
	sess, _ := r.begin(t)
	grant(t, sess, "github-read")
	hold, entered := make(chan struct{}), make(chan struct{}, 10)
	f.set("secret/data/github", func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-hold
		jsonAnswer(200, `{"data":{"data":{"token":"S3CR3T-CANARY-next"}}}`)(w, r)
	})
	r.clock.add(kvKeep * 3 / 4)
	for range 10 { // while the next value is on its way
		if injected(t, grant(t, sess, "github-read")) != "Bearer "+githubCanary {
			t.Fatal("not the value of the cache")
		}
	}
	<-entered
	close(hold)
	e := sess.entries["github-read"]
	for done := false; !done; {
		e.mu.Lock()
		done = e.call == nil
		e.mu.Unlock()
	}
	if injected(t, grant(t, sess, "github-read")) != "Bearer S3CR3T-CANARY-next" || len(entered) != 0 {
		t.Fatal("not refreshed, or more than once")
	}
}

func TestF137FailedRefreshServesUntilTheEndAndThenRefuses(t *testing.T) {
	f := newFake(t, nil)
	r := fakeRig(t, f)
	sess, _ := r.begin(t)
	grant(t, sess, "github-read")
	f.set("secret/data/github", jsonAnswer(503, `{"errors":["Vault is sealed"]}`))
	start := r.clock.Now()
	for r.clock.Now().Sub(start) < kvKeep-margin-time.Second {
		if injected(t, grant(t, sess, "github-read")) != "Bearer "+githubCanary {
			t.Fatal("a live value was not used")
		}
		r.clock.add(time.Second)
	}
	r.clock.add(2 * time.Second)
	_, err := sess.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable)
	if n := f.count("GET secret/data/github"); n < 2 || n > 20 {
		t.Fatal("calls in a minute and a half of refreshing:", n)
	}
}

func TestLongSessionsDoNotKeepEveryOldValue(t *testing.T) {
	f := newFake(t, nil)
	f.set("db/creds/ro", jsonAnswer(200, `{"data":{"password":"S3CR3T-CANARY"}}`)) // no lease: never cached
	r := newRig(t, tokenFile(t, f.URL, "x"), map[string]config.Credential{"db": dbCred()})
	sess, _ := r.begin(t)
	for range 3 * maxOld {
		grant(t, sess, "db")
	}
	if n := len(sess.entries["db"].old); n != maxOld {
		t.Fatal("kept", n)
	}
}

func TestF142EndDuringGrantsLeavesNoToken(t *testing.T) {
	f := newFake(t, nil)
	creds := map[string]config.Credential{}
	for i := range 8 {
		c := githubCred()
		c.Source.Vault.Policies = []string{"run-base", fmt.Sprintf("run-%d", i)} // a token each
		creds[fmt.Sprintf("c%d", i)] = c
	}
	r := newRig(t, tokenFile(t, f.URL, "x"), creds)
	for range 20 {
		sess, j := r.begin(t)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				g, err := sess.Grant(t.Context(), fmt.Sprintf("c%d", i), issues)
				if err == nil {
					req, _ := http.NewRequest(http.MethodGet, "https://api.github.com/", nil)
					_ = g.Inject(req) // whole, or refused because the run has ended
					if v := req.Header.Get("Authorization"); v != "" && v != "Bearer "+githubCanary {
						t.Error("a torn value")
					}
				} else {
					refused(t, err, ReasonUnavailable)
				}
			})
		}
		out := end(t, sess)
		wg.Wait()
		if len(j.list()) != 0 || slices.ContainsFunc(out, func(o Outcome) bool { return o.Status == StatusUnconfirmed }) {
			t.Fatal("a token was left", out)
		}
	}
	if made, gone := f.count("POST auth/token/create/agent-run"), f.count("POST auth/token/revoke-accessor"); made != gone {
		t.Fatal("made", made, "revoked", gone)
	}
}
