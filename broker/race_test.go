package broker

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

// slowRelay stands in front of a Vault and holds each call and each answer for a
// random time, so that calls meet in every order.
func slowRelay(t *testing.T, s *vaulttest.Server, most time.Duration) string {
	t.Helper()
	to, err := url.Parse(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(to)
	forward.ModifyResponse = func(*http.Response) error {
		time.Sleep(rand.N(most)) // the answer is late
		return nil
	}
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(rand.N(most)) // the call is late
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(relay.Close)
	return relay.URL
}

// leasesOf lists what Vault itself has of the leases of a role of the engine at rabbit/.
func leasesOf(t *testing.T, s *vaulttest.Server, role string) []any {
	t.Helper()
	_, out := s.Do(t, s.Root, "LIST", "sys/leases/lookup/rabbit/creds/"+role, nil)
	data, _ := out["data"].(map[string]any)
	keys, _ := data["keys"].([]any)
	return keys
}

// raceLab is a Vault with three roles of leased users that live for two seconds, and
// a login that is renewed several times a second.
func raceLab(t *testing.T) (s *vaulttest.Server, g *target, cfg *config.Vault, creds map[string]config.Credential) {
	t.Helper()
	s = startVault(t)
	g = newTarget(t)
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(t, http.MethodPost, "rabbit/config/lease", map[string]any{"ttl": 2, "max_ttl": 60})
	creds = map[string]config.Credential{"kv": githubCred()}
	for i := range 3 {
		role := fmt.Sprintf("r%d", i)
		s.Must(t, http.MethodPost, "rabbit/roles/"+role, map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
		s.Policy(t, "run-"+role, readRule("rabbit/creds/"+role))
		c := vaultCred(config.VaultSource{Read: "rabbit/creds/" + role, Field: "password", Policies: []string{"run-base", "run-" + role}}, bearer)
		c.Source.Vault.Policies = []string{"run-base", "run-" + role}
		creds[role] = c
	}
	cfg = appRole(t, s)
	s.Must(t, http.MethodPost, "auth/approle/role/broker", map[string]any{"token_policies": "broker", "token_period": "3s", "token_no_default_policy": true})
	cfg.Address = slowRelay(t, s, 15*time.Millisecond)
	return s, g, cfg, creds
}

// ask grants everything again and again until told to stop.
func ask(t *testing.T, sess *Session, creds map[string]config.Credential) (stop func()) {
	t.Helper()
	done := make(chan struct{})
	var wg sync.WaitGroup
	for name := range creds {
		for range 2 {
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					if _, err := sess.Grant(t.Context(), name, issues); err == nil {
						sess.Rejected(name) // so that it is fetched anew, as far as that has an effect
					}
					time.Sleep(rand.N(5 * time.Millisecond)) // the pace of the run
				}
			})
		}
	}
	return func() { close(done); wg.Wait() }
}

// TestF142ARunThatEndsWhileItsTokensAreMadeAndRenewedLeavesNothing_I7: at any moment
// of fetches, refreshes, successors and renewals of the login. What Vault lists is the truth.
func TestF142ARunThatEndsWhileItsTokensAreMadeAndRenewedLeavesNothing_I7(t *testing.T) { // I7, F142
	s, g, cfg, creds := raceLab(t)
	for _, life := range []string{"1h", "2s"} { // extended once; with successors
		s.Must(t, http.MethodPost, "auth/token/roles/"+vaulttest.TokenRole, map[string]any{"token_explicit_max_ttl": life})
		before := accessors(t, s)
		r := newRig(t, cfg, creds, func(o *Options) { o.Clock = time.Now })
		for i := range 12 {
			sess, j := r.begin(t)
			stop := ask(t, sess, creds)
			time.Sleep(rand.N(time.Duration(1+i%4*i%4) * 150 * time.Millisecond)) // the moment at which it ends
			out := end(t, sess)
			if users := g.names(); len(users) != 0 {
				t.Errorf("%s, %d: users alive when End returns: %v", life, i, users)
			}
			stop()
			for _, o := range out {
				if o.Status == StatusUnconfirmed {
					t.Errorf("%s, %d: %+v", life, i, o)
				}
			}
			if len(j.list()) != 0 {
				t.Errorf("%s, %d: journal %+v", life, i, j.list())
			}
			for role := range creds {
				if left := leasesOf(t, s, role); len(left) != 0 {
					t.Errorf("%s, %d: leases of %s: %v", life, i, role, left)
				}
			}
			logins := len(r.journal.list())
			if n := len(accessors(t, s)) - len(before); n > logins {
				t.Errorf("%s, %d: %d tokens and %d logins", life, i, n, logins)
			}
		}
		if err := r.Close(t.Context()); err != nil || !slices.Equal(accessors(t, s), before) || len(r.journal.list()) != 0 {
			t.Errorf("%s: Close: %v, tokens %d, before %d", life, err, len(accessors(t, s)), len(before))
		}
	}
}

// TestF142AnOperatorsRevocationMeetsFetchesUnderWay_I7: whatever was under way when
// the operator stopped and revoked, nothing of it lives on beside the run, and the
// run's own end has nothing left to wonder about.
func TestF142AnOperatorsRevocationMeetsFetchesUnderWay_I7(t *testing.T) { // I7, F142
	s, g, cfg, creds := raceLab(t)
	s.Must(t, http.MethodPost, "rabbit/config/lease", map[string]any{"ttl": 600, "max_ttl": 600}) // nothing ends by itself
	var stopped atomic.Pointer[string]
	before := accessors(t, s)
	r := newRig(t, cfg, creds, func(o *Options) {
		o.Clock = time.Now
		o.Stopped = func(run, credential string, _ time.Time) bool {
			what := stopped.Load()
			return what != nil && (*what == "run "+run || *what == "credential "+credential)
		}
	})
	for i := range 30 {
		sess, j := r.begin(t)
		stop := ask(t, sess, creds)
		time.Sleep(rand.N(120 * time.Millisecond)) // the moment at which the operator comes
		credential := []string{"", "r0"}[i%2]
		what := "run " + sess.run.ID
		if credential != "" {
			what = "credential " + credential
		}
		stopped.Store(&what)
		if _, err := r.Revoke(t.Context(), j.list(), credential); err != nil {
			t.Errorf("%d: %s: %v", i, what, err)
		}
		time.Sleep(50 * time.Millisecond) // the run goes on
		stop()
		sess.work.Wait() // what was under way has ended
		if credential == "" {
			if n := len(accessors(t, s)) - len(before); n > len(r.journal.list()) {
				t.Errorf("%d: %d tokens and %d logins are alive beside the run", i, n, len(r.journal.list()))
			}
			if users := g.names(); len(users) != 0 {
				t.Errorf("%d: users alive: %v", i, users)
			}
		} else if left := leasesOf(t, s, credential); len(left) != 0 {
			t.Errorf("%d: leases of %s: %v", i, credential, left)
		}
		for _, o := range end(t, sess) {
			if o.Status == StatusUnconfirmed {
				t.Errorf("%d: %+v", i, o)
			}
		}
		if len(j.list()) != 0 || len(g.names()) != 0 {
			t.Errorf("%d: at the end: journal %+v, users %v", i, j.list(), g.names())
		}
		if r.vault.extendsNone.Load() {
			t.Fatalf("%d: a revoked token was taken for a role that cannot extend", i)
		}
		stopped.Store(nil)
	}
	if strings.Contains(r.log.String(), "could not be revoked") {
		t.Error("a token that was gone is logged as not revoked")
	}
}

// TestWhatIsBornAfterTheOperatorCameIsTakenBack_I7: the journal was read when a token
// was on its way, or a lease. Each is gone as soon as the fetch has ended, and
// credentials that nobody stopped keep theirs.
func TestWhatIsBornAfterTheOperatorCameIsTakenBack_I7(t *testing.T) { // I7
	s, g, _, creds := raceLab(t)
	s.Must(t, http.MethodPost, "rabbit/config/lease", map[string]any{"ttl": 600, "max_ttl": 600})
	other := creds["r0"] // shares its token with r0, and is asked another path
	other.Source.Vault = &config.VaultSource{KV: "secret/github", Field: "token", Policies: other.Source.Vault.Policies}
	s.Policy(t, "run-r0", readRule("rabbit/creds/r0")+readRule("secret/data/github"))
	creds["shared"] = other
	to, err := url.Parse(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var at atomic.Pointer[string] // where the operator comes
	var come atomic.Pointer[func()]
	forward := httputil.NewSingleHostReverseProxy(to)
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path := at.Load(); path != nil && strings.HasPrefix(r.URL.Path, *path) {
			at.Store(nil)
			(*come.Load())()
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(relay.Close)
	token, _ := s.BrokerToken(t)
	cfg := tokenFile(t, relay.URL, token)
	for _, path := range []string{"/v1/auth/token/create/", "/v1/rabbit/creds/r0"} {
		for _, credential := range []string{"", "r0"} {
			var stopped atomic.Bool
			r := newRig(t, cfg, creds, func(o *Options) {
				o.Stopped = func(_, c string, _ time.Time) bool { return stopped.Load() && (credential == "" || credential == c) }
			})
			before := accessors(t, s)
			sess, j := r.begin(t)
			operator := func() {
				stopped.Store(true)
				if _, err := r.Revoke(t.Context(), j.list(), credential); err != nil {
					t.Error(err)
				}
			}
			come.Store(&operator)
			at.Store(&path)
			_, err := sess.Grant(t.Context(), "r0", issues)
			refused(t, err, ReasonUnavailable)
			if !stopped.Load() || len(g.names()) != 0 || len(leasesOf(t, s, "r0")) != 0 {
				t.Errorf("%s %q: users %v, leases %v", path, credential, g.names(), leasesOf(t, s, "r0"))
			}
			if n := len(accessors(t, s)) - len(before); (credential == "") != (n == 0) {
				t.Errorf("%s %q: %d tokens", path, credential, n)
			}
			if _, err := sess.Grant(t.Context(), "shared", issues); (err == nil) != (credential != "") {
				t.Errorf("%s %q: the other credential: %v", path, credential, err)
			}
			end(t, sess)
			if len(j.list()) != 0 || !slices.Equal(accessors(t, s), before) {
				t.Errorf("%s %q: at the end: journal %+v", path, credential, j.list())
			}
		}
	}
}

// TestATokenRevokedBeforeItsExtensionIsNoOddRole_I7: the operator is quicker than the
// call that gives a new token its whole life. Nothing is left in the journal, and the
// next run's tokens are made as before.
func TestATokenRevokedBeforeItsExtensionIsNoOddRole_I7(t *testing.T) { // I7
	s := startVault(t)
	to, err := url.Parse(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var quick atomic.Bool
	var j *journal
	forward := httputil.NewSingleHostReverseProxy(to)
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/renew-accessor") && quick.Load() {
			s.Must(t, http.MethodPost, "auth/token/revoke-accessor", map[string]any{"accessor": j.list()[0].Accessor})
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(relay.Close)
	token, _ := s.BrokerToken(t)
	r := newRig(t, tokenFile(t, relay.URL, token), map[string]config.Credential{"github-read": githubCred()})
	before := accessors(t, s)
	var sess *Session
	sess, j = r.begin(t)
	quick.Store(true)
	_, err = sess.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable)
	if r.vault.extendsNone.Load() || len(j.list()) != 0 || !slices.Equal(accessors(t, s), before) {
		t.Errorf("whole lives at once: %v, journal %+v, tokens %d", r.vault.extendsNone.Load(), j.list(), len(accessors(t, s))-len(before))
	}
	if strings.Contains(r.log.String(), "could not be revoked") {
		t.Error("a token that is gone is logged as not revoked")
	}
	quick.Store(false)
	other, _ := r.begin(t)
	if injected(t, grant(t, other, "github-read")) != "Bearer "+githubCanary {
		t.Error("control: no value")
	}
}

// TestATokenWhoseGivingBackFailsIsTakenBackAtTheEnd_I7: its extension was carried out
// and the answer lost, and Vault was away for its revocation too.
func TestATokenWhoseGivingBackFailsIsTakenBackAtTheEnd_I7(t *testing.T) { // I7
	s := startVault(t)
	to, err := url.Parse(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var away atomic.Bool
	forward := httputil.NewSingleHostReverseProxy(to)
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case away.Load() && strings.HasSuffix(path, "/renew-accessor"):
			forward.ServeHTTP(httptest.NewRecorder(), r)
			w.WriteHeader(http.StatusBadGateway)
		case away.Load() && strings.Contains(path, "/revoke-"):
			w.WriteHeader(http.StatusBadGateway)
		default:
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(relay.Close)
	token, _ := s.BrokerToken(t)
	r := newRig(t, tokenFile(t, relay.URL, token), map[string]config.Credential{"github-read": githubCred()})
	before := accessors(t, s)
	sess, j := r.begin(t)
	away.Store(true)
	_, err = sess.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable)
	if len(j.list()) != 1 || len(accessors(t, s)) != len(before)+1 {
		t.Fatalf("control: journal %+v, tokens %d", j.list(), len(accessors(t, s))-len(before))
	}
	away.Store(false)
	end(t, sess)
	if len(j.list()) != 0 || !slices.Equal(accessors(t, s), before) {
		t.Errorf("after the end: journal %+v, tokens %d", j.list(), len(accessors(t, s))-len(before))
	}
}

// TestALoginThatAFaultEndedIsRevokedAllTheSame_I7: we take it for dead, Vault does not.
func TestALoginThatAFaultEndedIsRevokedAllTheSame_I7(t *testing.T) { // I7, I10
	s := startVault(t)
	r := newRig(t, appRole(t, s), map[string]config.Credential{"github-read": githubCred()})
	before := accessors(t, s)
	sess, _ := r.begin(t)
	grant(t, sess, "github-read")
	r.vault.current.kill() // as after a panic of what renews it
	other, _ := r.begin(t)
	grant(t, other, "github-read")
	if n := len(r.journal.list()); n != 2 {
		t.Fatal("control: logins", n)
	}
	end(t, sess)
	end(t, other)
	if err := r.Close(t.Context()); err != nil || len(r.journal.list()) != 0 || !slices.Equal(accessors(t, s), before) {
		t.Errorf("%v: journal %+v, tokens %d", err, r.journal.list(), len(accessors(t, s))-len(before))
	}
}
