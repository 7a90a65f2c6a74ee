package broker

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestTheOperatorAndTheEndOfTheRunRevokeAtOnce_I7: both take the same leases and
// tokens back, in another process each. Neither may call undone what the other did,
// nor done what is not.
func TestTheOperatorAndTheEndOfTheRunRevokeAtOnce_I7(t *testing.T) { // I7
	s, g, cfg, creds := raceLab(t)
	s.Must(t, http.MethodPost, "rabbit/config/lease", map[string]any{"ttl": 600, "max_ttl": 600})
	run := newRig(t, cfg, creds, func(o *Options) { o.Clock = time.Now })
	token, _ := s.BrokerToken(t)
	operator := newRig(t, tokenFile(t, cfg.Address, token), creds)
	before := accessors(t, s)
	for i := range 20 {
		sess, j := run.begin(t)
		for name := range creds {
			grant(t, sess, name)
		}
		if len(besides(t, s, before)) < 2 {
			t.Fatal("control: neither the login nor a token of the run is seen")
		}
		var wg sync.WaitGroup
		entries := j.list()
		for _, credential := range []string{"", "r0"} {
			wg.Go(func() {
				time.Sleep(rand.N(100 * time.Millisecond)) // the moment at which the operator comes
				if _, err := operator.Revoke(t.Context(), entries, credential); err != nil {
					t.Errorf("%d: the operator: %q: %v", i, credential, err)
				}
			})
		}
		time.Sleep(rand.N(50 * time.Millisecond)) // the moment at which the run ends
		out := end(t, sess)
		wg.Wait()
		for _, o := range out {
			if o.Status == StatusUnconfirmed {
				t.Errorf("%d: %+v", i, o)
			}
		}
		if len(out) != len(creds) || len(j.list()) != 0 || len(g.names()) != 0 || len(besides(t, s, before)) > len(run.journal.list()) {
			t.Errorf("%d: %d outcomes, journal %+v, users %v, tokens %v", i, len(out), j.list(), g.names(), besides(t, s, before))
		}
	}
	if err := run.Close(t.Context()); err != nil || len(besides(t, s, before)) > 0 {
		t.Errorf("Close: %v, tokens besides: %v", err, besides(t, s, before))
	}
}

// TestTheLoginIsLostWhileTheRunEnds_I7: the login takes the run's tokens with it, and
// Vault gives their leases back by itself, in its own time. What the receipt calls
// revoked is gone in the target system all the same when it says so.
func TestTheLoginIsLostWhileTheRunEnds_I7(t *testing.T) { // I7, I10
	s, g, cfg, creds := raceLab(t)
	s.Must(t, http.MethodPost, "rabbit/config/lease", map[string]any{"ttl": 600, "max_ttl": 600})
	before := accessors(t, s)
	r := newRig(t, cfg, creds, func(o *Options) { o.Clock = time.Now })
	for i := range 16 {
		sess, j := r.begin(t)
		stop := ask(t, sess, creds)
		time.Sleep(rand.N(200 * time.Millisecond)) // the moment at which the login is lost
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, e := range r.journal.list() {
				s.Do(t, s.Root, http.MethodPost, "auth/token/revoke-accessor", map[string]any{"accessor": e.Accessor})
			}
		})
		time.Sleep(rand.N(60 * time.Millisecond)) // the moment at which the run ends
		out := end(t, sess)
		users := g.names()
		stop()
		wg.Wait()
		for _, o := range out {
			if o.Status == StatusUnconfirmed {
				t.Errorf("%d: %+v", i, o)
			}
		}
		if len(j.list()) != 0 {
			t.Errorf("%d: journal %+v", i, j.list())
		}
		if len(users) != 0 {
			t.Errorf("%d: users alive when End returns: %v", i, users)
		}
	}
	if err := r.Close(t.Context()); err != nil || len(r.journal.list()) != 0 || len(besides(t, s, before)) > 0 {
		t.Errorf("Close: %v, journal %+v, tokens besides: %v", err, r.journal.list(), besides(t, s, before))
	}
}

// TestATokenThatSomebodyElseJustRevokesIsGone_I7: what Vault 1.14 says between the two
// steps in which it forgets a token.
func TestATokenThatSomebodyElseJustRevokesIsGone_I7(t *testing.T) { // I7
	f := newFake(t, map[string]http.HandlerFunc{"auth/token/revoke-accessor": jsonAnswer(400, `{"errors":["token not found"]}`)})
	sess, j := fakeRig(t, f).begin(t)
	grant(t, sess, "github-read")
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusStatic || len(j.list()) != 0 {
		t.Errorf("%+v, journal %+v", out, j.list())
	}
	// The same for one that was to be given back, as its extension failed.
	f.set("auth/token/create/agent-run", jsonAnswer(200, `{"auth":{"client_token":"S3CR3T-CANARY-new","accessor":"new","lease_duration":15,"renewable":true,"token_policies":["run-base"]}}`))
	f.set("auth/token/renew-accessor", jsonAnswer(400, `{"errors":["token not found"]}`))
	f.set("auth/token/revoke-self", jsonAnswer(403, `{"errors":["permission denied"]}`))
	r := fakeRig(t, f)
	sess, j = r.begin(t)
	_, err := sess.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable)
	if len(j.list()) != 0 || r.vault.extendsNone.Load() {
		t.Errorf("journal %+v", j.list())
	}
}
