package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warder/internal/config"
)

// target is the management API that Vault's RabbitMQ engine makes users in, as
// far as that engine calls it.
type target struct {
	*httptest.Server
	mu     sync.Mutex
	users  []string
	refuse bool // to delete
}

func newTarget(t testing.TB) *target {
	t.Helper()
	g := &target{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		name, ok := strings.CutPrefix(r.URL.Path, "/api/users/")
		switch {
		case ok && r.Method == http.MethodPut:
			g.users = append(g.users, name)
			w.WriteHeader(http.StatusCreated)
		case ok && r.Method == http.MethodDelete && g.refuse:
			jsonAnswer(500, `{"error":"refused"}`)(w, r)
		case ok && r.Method == http.MethodDelete:
			g.users = slices.DeleteFunc(g.users, func(u string) bool { return u == name })
			w.WriteHeader(http.StatusNoContent)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *target) names() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.users)
}

func (g *target) setRefuse(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuse = on
}

func TestLeasedValueIsGoneFromItsTargetAfterEnd(t *testing.T) {
	s := startVault(t)
	g := newTarget(t)
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(t, http.MethodPost, "rabbit/config/lease", map[string]any{"ttl": 600, "max_ttl": 3600})
	s.Must(t, http.MethodPost, "rabbit/roles/ro", map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	s.Policy(t, "run-rabbit", `path "rabbit/creds/ro" { capabilities = ["read"] }`)
	token, _ := s.BrokerToken(t)
	c := valid()
	c.Source = config.Source{Vault: &config.VaultSource{Read: "rabbit/creds/ro", Field: "password", Policies: []string{"run-base", "run-rabbit"}}}
	r := newRig(t, tokenFile(t, s.Addr, token), map[string]config.Credential{"mq": c})

	sess, j := r.begin(t)
	one := grant(t, sess, "mq")
	if users := g.names(); len(users) != 1 || !strings.HasPrefix(one.LeaseID, "rabbit/creds/ro/") || one.Kind != KindRead || injected(t, one) == "Bearer " {
		t.Fatal("no leased user", users)
	}
	if life := one.Expires.Sub(r.clock.Now()); life <= 0 || life > 10*time.Minute {
		t.Fatal("life", life)
	}
	if e := j.list(); len(e) != 1 || !slices.Equal(e[0].LeaseIDs, []string{one.LeaseID}) {
		t.Fatalf("journal %+v", e)
	}
	if grant(t, sess, "mq").LeaseID != one.LeaseID || len(g.names()) != 1 {
		t.Fatal("I9 a hit made another user")
	}
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusRevoked || out[0].LeaseID != one.LeaseID {
		t.Fatalf("%+v", out)
	}
	if users := g.names(); len(users) != 0 {
		t.Fatal("I7 the user is alive when End returns", users)
	}

	// The target refuses: Vault would take the token and call it done.
	sess, j = r.begin(t)
	two := grant(t, sess, "mq")
	g.setRefuse(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if out := sess.End(ctx); len(out) != 1 || out[0].Status != StatusUnconfirmed || out[0].Accessor != two.Accessor {
		t.Fatalf("%+v", out)
	}
	if alive, _ := s.Alive(t, two.Accessor); alive || len(g.names()) != 1 || len(j.list()) != 1 {
		t.Fatal("the token must be gone, the user and the journal entry not")
	}
	g.setRefuse(false)
	if done, err := r.Recover(t.Context(), j.list()); err != nil || !slices.Equal(done, []string{two.Accessor}) {
		t.Fatal(done, err)
	}
	if users := g.names(); len(users) != 0 {
		t.Fatal("the user is alive after Recover", users)
	}
}

// login answers with a short renewable token.
func renewable(f *fake, logins *atomic.Int32) {
	f.set("auth/approle/login", func(w http.ResponseWriter, r *http.Request) {
		logins.Add(1)
		jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY-login","accessor":"login","lease_duration":1,"renewable":true}}`)(w, r)
	})
}

func appRoleFake(t *testing.T, f *fake) *config.Vault {
	t.Helper()
	return &config.Vault{Address: f.URL, TokenRole: "agent-run", Auth: config.Auth{
		Method: "approle", RoleIDFile: secretFile(t, "role"), SecretIDFile: secretFile(t, "S3CR3T-CANARY-id"),
	}}
}

func TestLoginIsRenewedWhileInUse(t *testing.T) {
	f := newFake(t, nil)
	var logins atomic.Int32
	renewable(f, &logins)
	renewed := make(chan struct{}, 100)
	f.set("auth/token/renew-self", func(w http.ResponseWriter, r *http.Request) {
		renewed <- struct{}{}
		jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY-login","accessor":"login","lease_duration":1,"renewable":true}}`)(w, r)
	})
	r := newRig(t, appRoleFake(t, f), map[string]config.Credential{"github-read": githubCred()}, func(o *Options) { o.Clock = time.Now })
	sess, _ := r.begin(t)
	grant(t, sess, "github-read")
	first := r.journal.list()[0].NotAfter
	for range 4 { // longer than the one second that a login lives
		<-renewed
	}
	other, _ := r.begin(t)
	grant(t, other, "github-read")
	if logins.Load() != 1 || !r.journal.list()[0].NotAfter.After(first) {
		t.Fatal("logins", logins.Load())
	}
	end(t, sess)
	end(t, other)
	if err := r.Close(t.Context()); err != nil || f.count("POST auth/token/revoke-self") != 1 || len(r.journal.list()) != 0 {
		t.Fatal("Close", err)
	}
	if _, err := r.vault.session(t.Context()); err == nil {
		t.Fatal("a closed broker logs in")
	}
}

func TestF134LoginLostWhileRenewingIsNoticedAtOnce(t *testing.T) {
	f := newFake(t, nil)
	var logins atomic.Int32
	renewable(f, &logins)
	f.set("auth/token/renew-self", jsonAnswer(403, `{"errors":["permission denied"]}`))
	f.set("auth/token/lookup-self", jsonAnswer(403, `{"errors":["permission denied"]}`))
	r := newRig(t, appRoleFake(t, f), map[string]config.Credential{"github-read": githubCred()})
	sess, _ := r.begin(t)
	grant(t, sess, "github-read")
	l := r.vault.current
	<-l.done // the keeper gives up
	if !l.isDead(r.clock.Now()) {
		t.Fatal("not dead")
	}
	other, _ := r.begin(t)
	grant(t, other, "github-read")
	if logins.Load() != 2 {
		t.Fatal("logins", logins.Load())
	}
}

// A fault in what renews the login ends neither the process nor the service of it.
func TestAPanicOfTheRenewalCostsALogin_I10(t *testing.T) {
	f := newFake(t, nil)
	var logins atomic.Int32
	renewable(f, &logins)
	f.set("auth/token/renew-self", func(w http.ResponseWriter, r *http.Request) {
		jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY-login","accessor":"login","lease_duration":1,"renewable":true}}`)(w, r)
	})
	r := newRig(t, appRoleFake(t, f), map[string]config.Credential{"github-read": githubCred()})
	sess, _ := r.begin(t)
	grant(t, sess, "github-read")
	l := r.vault.current
	r.journal.mu.Lock()
	r.journal.onPut = func(e JournalEntry) error {
		if e.Login && e.Accessor == "login" && logins.Load() == 1 {
			panic("S3CR3T-CANARY-login")
		}
		return nil
	}
	r.journal.mu.Unlock()
	<-l.done
	if !l.isDead(r.clock.Now()) {
		t.Error("the login is taken for renewed")
	}
	other, _ := r.begin(t)
	grant(t, other, "github-read")
	if logins.Load() != 2 {
		t.Error("logins", logins.Load())
	}
}

func TestLoginsThatAreUnsafeAreRefusedAndGivenBack(t *testing.T) {
	for name, answer := range map[string]string{
		"root":        `{"auth":{"client_token":"S3CR3T-CANARY","accessor":"a","lease_duration":60,"policies":["root"]}}`,
		"endless":     `{"auth":{"client_token":"S3CR3T-CANARY","accessor":"a","lease_duration":0}}`,
		"no accessor": `{"auth":{"client_token":"S3CR3T-CANARY","lease_duration":60}}`,
		"no token":    `{"auth":{"accessor":"a","lease_duration":60}}`,
		"no auth":     `{"data":{}}`,
	} {
		f := newFake(t, map[string]http.HandlerFunc{"auth/approle/login": jsonAnswer(200, answer)})
		r := newRig(t, appRoleFake(t, f), map[string]config.Credential{"github-read": githubCred()})
		sess, _ := r.begin(t)
		_, err := sess.Grant(t.Context(), "github-read", issues)
		refused(t, err, ReasonUnavailable)
		if len(r.journal.list()) != 0 || f.count("POST auth/token/create/agent-run") != 0 {
			t.Error(name, "was used")
		}
		if gaveBack := f.count("POST auth/token/revoke-self"); (name == "root" || name == "endless") != (gaveBack == 1) {
			t.Error(name, "revoked:", gaveBack)
		}
	}
}

func TestOtherLoginMethodsSendWhatVaultWants(t *testing.T) {
	for method, c := range map[string]struct {
		auth config.Auth
		want string
	}{
		"jwt":        {config.Auth{Role: "r", JWTFile: secretFile(t, "S3CR3T-CANARY-jwt")}, `{"jwt":"S3CR3T-CANARY-jwt","role":"r"}`},
		"kubernetes": {config.Auth{Role: "r", JWTFile: secretFile(t, "S3CR3T-CANARY-sa"), Mount: "k8s/prod"}, `{"jwt":"S3CR3T-CANARY-sa","role":"r"}`},
	} {
		f := newFake(t, nil)
		var body string
		path := "auth/" + method + "/login"
		if c.auth.Mount != "" {
			path = "auth/" + c.auth.Mount + "/login"
		}
		f.set(path, func(w http.ResponseWriter, r *http.Request) {
			raw := make([]byte, 200)
			n, _ := r.Body.Read(raw)
			body = string(raw[:n])
			jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY","accessor":"a","lease_duration":600}}`)(w, r)
		})
		c.auth.Method = method
		v := &config.Vault{Address: f.URL, TokenRole: "agent-run", Auth: c.auth}
		r := newRig(t, v, map[string]config.Credential{"github-read": githubCred()})
		sess, _ := r.begin(t)
		grant(t, sess, "github-read")
		if body != c.want {
			t.Error(method, "body differs")
		}
	}
}

func BenchmarkGrantHit(b *testing.B) {
	r, err := New(Options{Credentials: map[string]config.Credential{"a": valid()}, Getenv: func(string) (string, bool) { return "S3CR3T-CANARY", true }})
	if err != nil {
		b.Fatal(err)
	}
	s, err := r.Begin(testRun, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.End(b.Context())
	for b.Loop() {
		if _, err := s.Grant(b.Context(), "a", issues); err != nil {
			b.Fatal(err)
		}
	}
}

func TestMayPassLooksAtEachPart(t *testing.T) {
	denied, away := &vaultError{class: classDenied}, &vaultError{class: classUnavailable}
	for _, c := range []struct {
		err  error
		want bool
	}{
		{denied, false},
		{away, true},
		{errors.Join(denied, away), true},
		{errors.Join(away, denied), true},
		{errors.Join(denied, denied), false},
		{fmt.Errorf("x: %w", denied), false},
		{errors.Join(fmt.Errorf("x: %w", denied)), false},
		{errors.New("disk"), true},
	} {
		if mayPass(c.err) != c.want {
			t.Errorf("%v: %v", c.err, !c.want)
		}
	}
}

func TestOnlyVaultsOwnWordMeansGone(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&vaultError{class: classInvalid, status: 400, text: "invalid accessor"}, true},
		{&vaultError{class: classNotFound, status: 404, text: "lease not found"}, true},
		{&vaultError{class: classUnavailable, status: 500, text: "lease not found"}, false},
		{&vaultError{class: classDenied, status: 403, text: "invalid accessor"}, false},
		{&vaultError{class: classInvalid, status: 400, text: "bad request"}, false},
		{errors.New("lease not found"), false},
		{nil, false},
	} {
		if saysGone(c.err, "invalid accessor", "lease not found") != c.want {
			t.Errorf("%v: %v", c.err, !c.want)
		}
	}
}
