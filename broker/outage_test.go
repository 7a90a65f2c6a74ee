package broker

import (
	"context"
	"strings"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
)

func TestVaultSealedMidRunRefusesAndRecovers(t *testing.T) {
	s := startVault(t)
	token, _ := s.BrokerToken(t)
	r := newRig(t, tokenFile(t, s.Addr, token), map[string]config.Credential{"github-read": githubCred(), "second": githubCred()})
	sess, j := r.begin(t)
	g := grant(t, sess, "github-read")
	s.Seal(t)
	if grant(t, sess, "github-read").VaultRequestID != g.VaultRequestID {
		t.Fatal("not from the cache")
	}
	_, err := sess.Grant(t.Context(), "second", issues)
	e := refused(t, err, ReasonUnavailable)
	if e.RetryAfter <= 0 || !strings.Contains(e.Error(), "503") {
		t.Fatal(e)
	}
	r.clock.add(kvKeep)
	_, err = sess.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable) // F137 never the stale value

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	out := sess.End(ctx)
	if len(out) != 2 || out[0].Status != StatusUnconfirmed || out[0].Expires.IsZero() || out[0].Detail == "" || len(j.list()) != 1 {
		t.Fatalf("a sealed Vault cannot have confirmed: %+v", out)
	}
	s.Open(t)
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusStatic || len(j.list()) != 0 {
		t.Fatalf("End does not try again: %+v", out)
	}
	if alive, _ := s.Alive(t, g.Accessor); alive {
		t.Fatal("alive")
	}
	r.clock.add(failureMost) // the gate
	again, _ := r.begin(t)
	grant(t, again, "second")
}

func TestF086VaultAwayAtTheStartIsNoFaultForLife(t *testing.T) {
	s := startVault(t)
	token, _ := s.BrokerToken(t)
	s.Seal(t)
	r := newRig(t, tokenFile(t, s.Addr, token), map[string]config.Credential{"github-read": githubCred()})
	sess, _ := r.begin(t)
	_, err := sess.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable)
	s.Open(t)
	r.clock.add(failureMost)
	grant(t, sess, "github-read")
}

func TestVaultKilledMidRun(t *testing.T) {
	s := startVault(t)
	token, _ := s.BrokerToken(t)
	r := newRig(t, tokenFile(t, s.Addr, token), map[string]config.Credential{"github-read": githubCred(), "second": githubCred()})
	sess, j := r.begin(t)
	g := grant(t, sess, "github-read")
	s.Kill()
	grant(t, sess, "github-read") // still in the cache
	_, err := sess.Grant(t.Context(), "second", issues)
	refused(t, err, ReasonUnavailable)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	out := sess.End(ctx)
	e := j.list()
	if len(out) == 0 || out[0].Status != StatusUnconfirmed || len(e) != 1 || e[0].Accessor != g.Accessor {
		t.Fatalf("%+v %+v", out, e)
	}
	if done, err := r.Recover(t.Context(), e); len(done) != 0 || err == nil {
		t.Fatal("an unreachable Vault confirmed a revocation", done)
	}
	r.clock.add(time.Hour)
	if done, err := r.Recover(t.Context(), e); len(done) != 1 || err != nil {
		t.Fatal("an entry past its latest end is not done", done, err)
	}
}

func TestBeginRefusesWhatIsNotConfigured(t *testing.T) {
	r := newRig(t, tokenFile(t, "http://127.0.0.1:9", "x"), map[string]config.Credential{"github-read": githubCred()})
	run := identity.Run{ID: "r-1"}
	if _, err := r.Begin(run, []string{"nope"}, &journal{}); err == nil {
		t.Error("unknown name")
	}
	if _, err := r.Begin(identity.Run{}, nil, &journal{}); err == nil {
		t.Error("no run id")
	}
	if _, err := r.Begin(run, nil, nil); err == nil {
		t.Error("no journal")
	}
	s, err := r.Begin(run, []string{}, nil)
	if err != nil || len(s.Offered()) != 0 {
		t.Fatal("an empty offer is not empty", err)
	}
	_, err = s.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonBinding)
}
