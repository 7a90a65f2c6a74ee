package broker

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

// tap stands in front of a real Vault: it notes each call with its namespace, may
// add a header, and keeps the wrapping tokens that Vault answers.
type tap struct {
	*httptest.Server
	mu      sync.Mutex
	seen    map[string][]string // path → namespaces
	wrap    string              // calls of this path are wrapped
	tokens  []string            // of wrapped answers
	wrapped []string            // accessors of what is in them
}

func newTap(t *testing.T, s *vaulttest.Server) *tap {
	t.Helper()
	to, err := url.Parse(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{seen: map[string][]string{}}
	forward := httputil.NewSingleHostReverseProxy(to)
	forward.ModifyResponse = func(r *http.Response) error {
		raw, err := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(raw))
		var a struct {
			WrapInfo *struct {
				Token    string
				Accessor string `json:"wrapped_accessor"`
			} `json:"wrap_info"`
		}
		if json.Unmarshal(raw, &a) == nil && a.WrapInfo != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.tokens = append(p.tokens, a.WrapInfo.Token)
			p.wrapped = append(p.wrapped, a.WrapInfo.Accessor)
		}
		return err
	}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimPrefix(r.URL.Path, "/v1/")
		p.mu.Lock()
		p.seen[path] = append(p.seen[path], r.Header.Get("X-Vault-Namespace"))
		if p.wrap == path {
			r.Header.Set("X-Vault-Wrap-TTL", "60s")
		}
		p.mu.Unlock()
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *tap) setWrap(path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrap, p.tokens, p.wrapped = path, nil, nil
}

func (p *tap) answered() (tokens, wrapped []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tokens), slices.Clone(p.wrapped)
}

// TestAWrappedAnswerIsRefusedAndShowsNothing_I2: something between us and Vault has
// answers wrapped that we want plain. The wrapping token opens them to whoever reads it.
func TestAWrappedAnswerIsRefusedAndShowsNothing_I2(t *testing.T) { // I2, I7, I10
	s := startVault(t)
	s.Mount(t, "totp", "totp", nil)
	s.Must(t, http.MethodPost, "totp/keys/k", map[string]any{"generate": true, "issuer": "x", "account_name": "x"})
	s.Mount(t, "transit", "transit", nil)
	s.Must(t, http.MethodPost, "transit/keys/k", map[string]any{"type": "ecdsa-p256"})
	p := newTap(t, s)
	for path, src := range map[string]config.VaultSource{
		"auth/approle/login":                       {KV: "secret/github", Field: "token"},
		"auth/token/create/" + vaulttest.TokenRole: {KV: "secret/github", Field: "token"},
		"auth/token/renew-accessor":                {KV: "secret/github", Field: "token"},
		"secret/data/github":                       {KV: "secret/github", Field: "token"},
		"totp/code/k":                              {TOTP: "k"},
		"transit/sign/k/sha2-256":                  {JWT: "k", Audience: "a"},
	} {
		cred := vaultCred(src, bearer)
		cred.Source.Vault.Policies = []string{"run-base", "run-kind"}
		s.Policy(t, "run-kind", readRule("secret/data/github")+readRule("totp/code/k")+updateRule("transit/sign/k*")+readRule("transit/keys/k"))
		cfg := appRole(t, s)
		cfg.Address = p.URL
		r := newRig(t, cfg, map[string]config.Credential{"c": cred})
		sess, j := r.begin(t)
		p.setWrap(path)
		_, err := sess.Grant(t.Context(), "c", issues)
		if err == nil {
			t.Fatal(path, "a value came of a wrapped answer")
		}
		refused(t, err, ReasonUnavailable)
		tokens, wrapped := p.answered()
		if len(tokens) == 0 {
			t.Fatal(path, "control: nothing was wrapped", err)
		}
		if !strings.Contains(err.Error(), "the answer is wrapped") {
			t.Error(path, err)
		}
		for _, token := range tokens {
			if strings.Contains(err.Error(), token) || strings.Contains(r.log.String(), token) {
				t.Error(path, "the wrapping token is shown")
			}
		}
		for _, a := range wrapped {
			if alive, _ := s.Alive(t, a); a != "" && strings.HasPrefix(path, "auth/token/") && alive {
				t.Error(path, "the token in it is alive")
			}
		}
		p.setWrap("")
		r.clock.add(failureMost)
		if grant(t, sess, "c") == nil {
			t.Error(path, "control: no value when nothing is wrapped")
		}
		end(t, sess)
		if len(j.list()) != 0 {
			t.Error(path, "journal", len(j.list()))
		}
	}
}

// TestAWrappedUnwrappingIsNoTheft_I10: the answer of the unwrapping came wrapped. That
// is refused, and not said to be a theft.
func TestAWrappedUnwrappingIsNoTheft_I10(t *testing.T) { // I2, I10
	inner := "S3CR3T-CANARY-hvs.inner"
	f := newFake(t, map[string]http.HandlerFunc{
		"sys/wrapping/lookup": jsonAnswer(200, `{"data":{"creation_path":"auth/approle/role/broker/secret-id"}}`),
		"sys/wrapping/unwrap": jsonAnswer(200, `{"wrap_info":{"token":"`+inner+`","accessor":"a","ttl":60,"creation_time":"2026-01-01T00:00:00Z","creation_path":"sys/wrapping/unwrap"}}`),
	})
	cfg := appRoleFake(t, f)
	cfg.Auth.Wrapped = true
	r := newRig(t, cfg, map[string]config.Credential{"github-read": githubCred()})
	sess, _ := r.begin(t)
	_, err := sess.Grant(t.Context(), "github-read", issues)
	if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "the answer is wrapped") {
		t.Error(e)
	}
	if strings.Contains(r.log.String(), "somebody else") || f.count("POST auth/approle/login") != 0 {
		t.Error("taken for a theft, or for a SecretID")
	}
}

// TestTheNamespaceGoesWithEveryCall_I3: a call without it would be judged, or
// carried out, in the root namespace. The open-source Vault here ignores it.
func TestTheNamespaceGoesWithEveryCall_I3(t *testing.T) { // I3, I7
	s := startVault(t)
	g := newTarget(t)
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(t, http.MethodPost, "rabbit/roles/ro", map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	p := newTap(t, s)
	cfg := appRole(t, s)
	s.Must(t, http.MethodPost, "auth/approle/role/broker", map[string]any{"token_policies": "broker", "token_period": "2s", "token_no_default_policy": true})
	cfg.Address, cfg.Namespace, cfg.Auth.Wrapped = p.URL, "team/a", true
	wrap, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Addr+"/v1/auth/approle/role/broker/secret-id", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	wrap.Header.Set("X-Vault-Token", s.Root)
	wrap.Header.Set("X-Vault-Wrap-TTL", "60s")
	resp, err := http.DefaultClient.Do(wrap)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var a struct {
		WrapInfo struct{ Token string } `json:"wrap_info"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	cfg.Auth.SecretIDFile = secretFile(t, a.WrapInfo.Token)
	c := vaultCred(config.VaultSource{Read: "rabbit/creds/ro", Field: "password", Policies: []string{"run-base", "run-mq"}}, bearer)
	s.Policy(t, "run-mq", readRule("rabbit/creds/ro"))
	no := vaultCred(config.VaultSource{KV: "secret/nobody", Field: "x", Policies: []string{"run-base"}}, bearer)
	r := newRig(t, cfg, map[string]config.Credential{"mq": c, "no": no}, func(o *Options) { o.Clock = time.Now })
	sess, _ := r.begin(t)
	lease := grant(t, sess, "mq").LeaseID
	_, err = sess.Grant(t.Context(), "no", issues) // denied, so that the fate of its token is asked for
	refused(t, err, ReasonUnavailable)
	renewed := func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.seen["auth/token/renew-self"]) > 0 }
	for end := time.Now().Add(20 * time.Second); !renewed() && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond) // polling for the renewal of the login
	}
	r.vault.alive(t.Context(), r.vault.current.token)
	end(t, sess)
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, path := range []string{
		"sys/wrapping/lookup", "sys/wrapping/unwrap", "auth/approle/login", "auth/token/create/" + vaulttest.TokenRole, "auth/token/renew-accessor",
		"auth/token/renew-self", "auth/token/lookup-self", "auth/token/lookup-accessor", "rabbit/creds/ro", "sys/leases/revoke/" + lease,
		"auth/token/revoke-accessor", "auth/token/revoke-self",
	} {
		if len(p.seen[path]) == 0 {
			t.Error("control: not called:", path)
		}
	}
	for path, all := range p.seen {
		for _, ns := range all {
			if ns != "team/a" {
				t.Errorf("%s: namespace %q", path, ns)
			}
		}
	}
}
