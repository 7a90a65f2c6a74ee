package broker

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"warder/internal/config"
)

// shortLife is the longest life of a run's token and the length of a run that
// outlives many of them. make soak takes the whole: 10 s and a minute.
func shortLife(t *testing.T) (token, run time.Duration) {
	t.Helper()
	if v := os.Getenv("WARDER_SOAK_TOKENS"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatal(err)
		}
		return d, 6 * d
	}
	return 3 * time.Second, 12 * time.Second
}

// TestARunOutlivesItsTokensWithoutAFailedRequest: a token role of a short maximum,
// in real time, against a real Vault and a target that knows its users: no request
// fails, and each value that is handed out is alive at its target.
func TestARunOutlivesItsTokensWithoutAFailedRequest(t *testing.T) { // I7, I10
	t.Parallel()
	life, length := shortLife(t)
	s := startVault(t)
	s.Must(t, http.MethodPost, "auth/token/roles/agent-run", map[string]any{
		"allowed_policies_glob": "run-*", "orphan": false, "renewable": true, "token_type": "service",
		"token_explicit_max_ttl": life.String(), "token_no_default_policy": true,
	})
	g := newTarget(t)
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(t, http.MethodPost, "rabbit/roles/ro", map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	mq := vaultCred(config.VaultSource{Read: "rabbit/creds/ro", Field: "password"}, config.Inject{Basic: &config.Basic{UsernameField: "username"}})
	r := kindRig(t, s, map[string]config.Credential{"mq": mq, "github-read": githubCred()}, readRule("rabbit/creds/ro"), readRule("secret/data/github"))
	r.Broker.opts.Clock, r.vault.conn.clock = time.Now, time.Now
	sess, _ := r.begin(t)
	tokens := map[string]bool{}
	n := 0
	for end := time.Now().Add(length); time.Now().Before(end); n++ {
		began := time.Now()
		leased, stored := grant(t, sess, "mq"), grant(t, sess, "github-read")
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.github.com/", nil)
		if err := leased.Inject(req); err != nil {
			t.Fatal(err)
		}
		// A machine that stood still in between says nothing.
		if user, _, _ := req.BasicAuth(); !slices.Contains(g.names(), user) && time.Since(began) < life/8 {
			t.Fatal("a leased user was handed out that its target does not know any more")
		}
		if injected(t, stored) != "Bearer "+githubCanary {
			t.Fatal("no value")
		}
		tokens[leased.Accessor] = true
		time.Sleep(life / 100) // the pace of the requests
	}
	if want := int(length/life) - 1; len(tokens) < want {
		t.Errorf("%d requests with %d tokens, want %d at least", n, len(tokens), want)
	}
	if out := end(t, sess); len(out) != 2 || out[1].Status != StatusRevoked {
		t.Errorf("%+v", out)
	}
	if users := g.names(); len(users) != 0 {
		t.Errorf("I7 users are left: %d", len(users))
	}
}

// TestTwoRunsNeverShareALease: also of the same credential at the same time.
func TestTwoRunsNeverShareALease(t *testing.T) { // I9
	s := startVault(t)
	g := newTarget(t)
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(t, http.MethodPost, "rabbit/roles/ro", map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	mq := vaultCred(config.VaultSource{Read: "rabbit/creds/ro", Field: "password"}, config.Inject{Basic: &config.Basic{UsernameField: "username"}})
	r := kindRig(t, s, map[string]config.Credential{"mq": mq, "github-read": githubCred()}, readRule("rabbit/creds/ro"), readRule("secret/data/github"))
	type got struct{ lease, token, stored string }
	results := make(chan got, 8)
	var sessions []*Session
	for range 8 {
		sess, _ := r.begin(t)
		sessions = append(sessions, sess)
		go func() {
			a, err1 := sess.Grant(context.Background(), "mq", issues)
			b, err2 := sess.Grant(context.Background(), "github-read", issues)
			if err1 != nil || err2 != nil {
				t.Error(err1, err2)
				results <- got{}
				return
			}
			results <- got{a.LeaseID, a.Accessor, b.VaultRequestID}
		}()
	}
	seen := map[string]bool{}
	for range sessions {
		x := <-results
		for _, k := range []string{x.lease, x.token, x.stored} {
			if seen[k] || k == "" {
				t.Fatal("two runs share", k)
			}
			seen[k] = true
		}
	}
	if len(g.names()) != len(sessions) {
		t.Fatal("users", len(g.names()))
	}
	end(t, sessions[0])
	if len(g.names()) != len(sessions)-1 {
		t.Fatal("the end of one run took the users of others:", len(g.names()))
	}
}

// TestF137ALifeCountsFromTheAsking: Vault began to count before a slow answer
// arrived, for a token as for a lease.
func TestF137ALifeCountsFromTheAsking(t *testing.T) { // I10, F137
	f := newFake(t, nil)
	r := newRig(t, tokenFile(t, f.URL, "x"), map[string]config.Credential{"db": dbCred()})
	lease := 20
	f.set("db/creds/ro", func(w http.ResponseWriter, q *http.Request) {
		r.clock.add(8 * time.Second)
		jsonAnswer(200, fmt.Sprintf(`{"lease_id":"db/creds/ro/1","lease_duration":%d,"data":{"password":"S3CR3T-CANARY"}}`, lease))(w, q)
	})
	sess, _ := r.begin(t)
	grant(t, sess, "db")
	r.clock.add(6 * time.Second)
	grant(t, sess, "db")
	if n := f.count("GET db/creds/ro"); n != 1 {
		t.Fatal("control: it is not kept:", n)
	}
	r.clock.add(2 * time.Second) // 16 s of 20, a quarter of them margin
	grant(t, sess, "db")
	if n := f.count("GET db/creds/ro"); n < 2 {
		t.Error("a value is used until 8 seconds after its margin")
	}

	lease = 900
	f.set("auth/token/create/agent-run", func(w http.ResponseWriter, q *http.Request) {
		r.clock.add(8 * time.Second)
		jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY-run","accessor":"acc","lease_duration":20,"token_policies":["run-base"]}}`)(w, q)
	})
	sess, _ = r.begin(t)
	set := sess.vault.set([]string{"run-base"})
	first, err := sess.vault.get(t.Context(), set, "")
	if err != nil {
		t.Fatal(err)
	}
	r.clock.add(8 * time.Second)
	if next, err := sess.vault.get(t.Context(), set, ""); err != nil || next == first {
		t.Error("a token is used until 8 seconds after its margin", err)
	}
}
