package broker

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"warder/internal/config"
)

// deadAddress is one where nobody listens.
func deadAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return "http://" + ln.Addr().String()
}

func TestAnotherServerIsAskedWhenOneDoesNotAnswerForTheCluster(t *testing.T) {
	const read = "secret/data/github"
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		moves  bool // within the same call
	}{
		"sealed":          {jsonAnswer(503, `{"errors":["Vault is sealed"]}`), true},
		"standby of DR":   {jsonAnswer(472, `{"errors":[]}`), true},
		"standby of perf": {jsonAnswer(473, `{"errors":[]}`), true},
		"standby redirects": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}, true},
		"gateway":    {jsonAnswer(503, `<html>no upstream</html>`), false},
		"one engine": {jsonAnswer(500, `{"errors":["internal error"]}`), false},
		"cut off":    {hangUp, false},
		"denied":     {jsonAnswer(403, `{"errors":["permission denied"]}`), false},
		"wrong":      {jsonAnswer(400, `{"errors":["unknown role"]}`), false},
	} {
		t.Run(name, func(t *testing.T) {
			second := newFake(t, nil)
			first := newFake(t, map[string]http.HandlerFunc{read: c.answer})
			v := tokenFile(t, first.URL, "S3CR3T-CANARY-broker")
			v.Addresses = []string{second.URL}
			r := newRig(t, v, map[string]config.Credential{"github-read": githubCred()})
			sess, j := r.begin(t)
			_, err := sess.Grant(t.Context(), "github-read", issues)
			if (err == nil) != c.moves || (second.count("GET "+read) == 1) != c.moves {
				t.Fatal(err, second.seen)
			}
			if e := j.list(); len(e) != 1 || e[0].Address != first.URL {
				t.Fatalf("the journal must name the cluster by its first address: %+v", e)
			}
			if refusal := name == "denied" || name == "wrong"; !c.moves && !refusal { // the next call begins elsewhere
				r.clock.add(maxRetryAfter)
				if grant(t, sess, "github-read"); second.count("GET "+read) != 1 {
					t.Fatal("the server that failed was asked again", second.seen)
				}
			}
		})
	}
}

func TestFailOverFromAServerThatIsGone(t *testing.T) {
	s := startVault(t)
	token, _ := s.BrokerToken(t)
	v := tokenFile(t, deadAddress(t), token)
	v.Addresses = []string{deadAddress(t), s.Addr}
	sess, _ := newRig(t, v, map[string]config.Credential{"github-read": githubCred()}).begin(t)
	if injected(t, grant(t, sess, "github-read")) != "Bearer "+githubCanary {
		t.Fatal("not the value")
	}
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusStatic {
		t.Fatalf("%+v", out)
	}
	all := tokenFile(t, deadAddress(t), token)
	all.Addresses = []string{deadAddress(t)}
	sess, _ = newRig(t, all, map[string]config.Credential{"github-read": githubCred()}).begin(t)
	_, err := sess.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable)
}

func TestFailOverKeepsCertificatesVerified(t *testing.T) {
	imposter := httptest.NewTLSServer(jsonAnswer(200, `{}`)) // of an authority that nobody trusts
	t.Cleanup(imposter.Close)
	good := newFake(t, nil)
	v := tokenFile(t, imposter.URL, "S3CR3T-CANARY-broker")
	v.Addresses = []string{good.URL}
	sess, _ := newRig(t, v, map[string]config.Credential{"github-read": githubCred()}).begin(t)
	if injected(t, grant(t, sess, "github-read")) != "Bearer "+githubCanary {
		t.Fatal("not the value")
	}
}

// staleRig has a value whose time is over and a Vault that is in the given state.
func staleRig(t *testing.T, stale time.Duration, cred config.Credential) (*fake, *rig, *Session) {
	t.Helper()
	f := newFake(t, nil)
	f.set("rabbit/creds/ro", jsonAnswer(200, `{"lease_id":"rabbit/creds/ro/x","lease_duration":120,"data":{"password":"S3CR3T-CANARY-mq"}}`))
	v := tokenFile(t, f.URL, "S3CR3T-CANARY-broker")
	v.Stale = config.Duration(stale)
	r := newRig(t, v, map[string]config.Credential{"c": cred})
	sess, _ := r.begin(t)
	if grant(t, sess, "c").Stale {
		t.Fatal("a fresh value is stale")
	}
	return f, r, sess
}

func TestGraceIsOffUnlessConfigured(t *testing.T) {
	f, r, sess := staleRig(t, 0, githubCred())
	f.set("secret/data/github", jsonAnswer(503, `{"errors":["Vault is sealed"]}`))
	r.clock.add(kvKeep)
	_, err := sess.Grant(t.Context(), "c", issues)
	refused(t, err, ReasonUnavailable)
}

func TestGraceIsBoundedAndSaid(t *testing.T) {
	f, r, sess := staleRig(t, 2*time.Minute, githubCred())
	f.set("secret/data/github", jsonAnswer(503, `{"errors":["Vault is sealed"]}`))
	r.clock.add(kvKeep)
	for range 2 { // the second without a call
		if g := grant(t, sess, "c"); !g.Stale || injected(t, g) != "Bearer "+githubCanary {
			t.Fatal("no grace")
		}
	}
	r.clock.add(2 * time.Minute)
	_, err := sess.Grant(t.Context(), "c", issues)
	refused(t, err, ReasonUnavailable)
	f.set("secret/data/github", nil)
	r.clock.add(maxRetryAfter)
	if grant(t, sess, "c").Stale {
		t.Fatal("stale although Vault is back")
	}
}

func TestGraceNeverOutlivesARefusalOrARejection(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"403": jsonAnswer(403, `{"errors":["permission denied"]}`), "404": jsonAnswer(404, `{"errors":[]}`), "400": jsonAnswer(400, `{"errors":["x"]}`),
	} {
		f, r, sess := staleRig(t, time.Hour, githubCred())
		f.set("secret/data/github", answer)
		r.clock.add(kvKeep)
		_, err := sess.Grant(t.Context(), "c", issues)
		if e := refused(t, err, ReasonUnavailable); e == nil {
			t.Error(name)
		}
	}
	f, r, sess := staleRig(t, time.Hour, githubCred())
	f.set("secret/data/github", jsonAnswer(503, `{"errors":["Vault is sealed"]}`))
	r.clock.add(kvKeep)
	if !grant(t, sess, "c").Stale {
		t.Fatal("the control is not stale")
	}
	sess.Rejected("c")
	_, err := sess.Grant(t.Context(), "c", issues)
	refused(t, err, ReasonUnavailable)
}

func TestGraceNeverOutlivesALease(t *testing.T) {
	c := githubCred()
	c.Source.Vault = &config.VaultSource{Read: "rabbit/creds/ro", Field: "password", Policies: []string{"run-base"}}
	f, r, sess := staleRig(t, time.Hour, c)
	f.set("rabbit/creds/ro", jsonAnswer(503, `{"errors":["Vault is sealed"]}`))
	r.clock.add(115 * time.Second) // within the margin before its end
	if !grant(t, sess, "c").Stale {
		t.Fatal("no grace within the lease")
	}
	r.clock.add(5 * time.Second)
	_, err := sess.Grant(t.Context(), "c", issues)
	refused(t, err, ReasonUnavailable)
}
