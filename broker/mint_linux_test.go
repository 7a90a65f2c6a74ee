package broker

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

// TestF142ATokenThatNobodyHeardOfEndsByItself_I7: the login is the operator's own and
// lives on, so no start and no dead man's switch ends a token whose making was
// answered to nobody. It ends in seconds all the same.
func TestF142ATokenThatNobodyHeardOfEndsByItself_I7(t *testing.T) { // I7, F142
	t.Parallel()
	s := startVault(t)
	token, login := s.BrokerToken(t)
	relay := newDeadlyRelay(t, s.Addr)
	before := accessors(t, s)
	j := fileJournal{filepath.Join(t.TempDir(), "journal")}
	dieAt(t, relay, "token made, answer not heard", "POST auth/token/create/", true, []string{
		"BROKER_KILL_ADDRESS=" + relay.URL, "BROKER_KILL_TOKEN=" + secretFile(t, token), "BROKER_KILL_JOURNAL=" + j.path,
	})
	lost := slices.DeleteFunc(accessors(t, s), func(a string) bool { return slices.Contains(before, a) })
	if len(lost) != 1 || len(j.left(t)) != 0 {
		t.Fatalf("control: %d tokens are left, %d in the journal", len(lost), len(j.left(t)))
	}
	// Vault's own word, and the whole life that it could have had.
	if alive, data := s.Alive(t, lost[0]); alive && (data["ttl"].(float64) > unheardLife.Seconds() || data["explicit_max_ttl"].(float64) != runTokenLife.Seconds()) {
		t.Errorf("it lives %v s", data["ttl"])
	}
	for end := time.Now().Add(time.Minute); !slices.Equal(accessors(t, s), before); {
		if time.Now().After(end) {
			t.Fatal("it is still there")
		}
		time.Sleep(100 * time.Millisecond) // polling Vault, which ends it by itself
	}
	if alive, _ := s.Alive(t, login); !alive {
		t.Error("control: the operator's token has ended, which ends all")
	}
}

// TestTokensThatCannotBeExtendedHaveTheirWholeLifeAtOnce: with a policy or a role
// of an earlier setup nothing is lost but the short life of what nobody hears of,
// and that is said once.
func TestTokensThatCannotBeExtendedHaveTheirWholeLifeAtOnce(t *testing.T) { // I10
	s := startVault(t)
	s.Policy(t, "broker-old", strings.ReplaceAll(vaulttest.BrokerPolicy, `path "auth/token/renew-accessor"`, `path "auth/token/none"`))
	s.Must(t, http.MethodPost, "auth/token/roles/fixed", map[string]any{
		"allowed_policies_glob": "run-*", "orphan": false, "renewable": false, "token_type": "service", "token_explicit_max_ttl": "1h", "token_no_default_policy": true,
	})
	s.Policy(t, "broker-fixed", strings.ReplaceAll(vaulttest.BrokerPolicy, vaulttest.TokenRole, "fixed"))
	for role, policy := range map[string]string{vaulttest.TokenRole: "broker-old", "fixed": "broker-fixed"} {
		a := s.Must(t, http.MethodPost, "auth/token/create-orphan", map[string]any{"policies": []string{policy}, "period": "10m", "no_default_policy": true})
		cfg := tokenFile(t, s.Addr, a["client_token"].(string))
		cfg.TokenRole = role
		r := newRig(t, cfg, map[string]config.Credential{"github-read": githubCred()})
		before := accessors(t, s)
		var granted []*Grant
		for range 2 {
			sess, j := r.begin(t)
			g := grant(t, sess, "github-read")
			if injected(t, g) != "Bearer "+githubCanary || len(j.list()) != 1 {
				t.Fatal(role, "no value, or a journal of", len(j.list()))
			}
			if alive, data := s.Alive(t, g.Accessor); !alive || data["ttl"].(float64) < 600 {
				t.Fatal(role, "not its whole life", data["ttl"])
			}
			granted = append(granted, g)
		}
		if n := len(accessors(t, s)) - len(before); n != len(granted) {
			t.Error(role, "tokens alive:", n)
		}
		if n := strings.Count(r.log.String(), "tokens of runs cannot be extended"); n != 1 {
			t.Error(role, "said", n, "times")
		}
	}
}

// TestF142ATokenWhoseExtensionFailsIsGivenBack_I7: it is refused, revoked, and in no
// journal; the next request gets another one.
func TestF142ATokenWhoseExtensionFailsIsGivenBack_I7(t *testing.T) { // I7, I10
	s := startVault(t)
	to, err := url.Parse(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var broken atomic.Pointer[string]
	forward := httputil.NewSingleHostReverseProxy(to)
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body := broken.Load(); body != nil && strings.HasSuffix(r.URL.Path, "/renew-accessor") {
			w.Header().Set("Content-Type", "application/json")
			if *body == "" {
				w.WriteHeader(http.StatusInternalServerError)
			}
			_, _ = io.WriteString(w, *body)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(relay.Close)
	token, _ := s.BrokerToken(t)
	r := newRig(t, tokenFile(t, relay.URL, token), map[string]config.Credential{"github-read": githubCred()})
	before := accessors(t, s)
	sess, j := r.begin(t)
	for _, body := range []string{"", `{"auth":{"lease_duration":0}}`, `{"data":{}}`} {
		broken.Store(&body)
		_, err := sess.Grant(t.Context(), "github-read", issues)
		refused(t, err, ReasonUnavailable)
		if !slices.Equal(accessors(t, s), before) || len(j.list()) != 0 {
			t.Errorf("%q: %d tokens are left, %d in the journal", body, len(accessors(t, s))-len(before), len(j.list()))
		}
		r.clock.add(failureMost)
	}
	broken.Store(nil)
	if injected(t, grant(t, sess, "github-read")) != "Bearer "+githubCanary {
		t.Error("control: no value when it can be extended")
	}
	if out := sess.End(context.Background()); len(out) != 1 || out[0].Status != StatusStatic || !slices.Equal(accessors(t, s), before) {
		t.Errorf("I7 %+v", out)
	}
}
