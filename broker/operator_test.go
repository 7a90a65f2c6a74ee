package broker

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"warder/internal/config"
)

func TestOperatorStopsOneCredentialOfALiveRun(t *testing.T) {
	var stop atomic.Bool
	f := newFake(t, nil)
	r := newRig(t, tokenFile(t, f.URL, "S3CR3T-CANARY-broker"), map[string]config.Credential{"a": githubCred(), "b": githubCred()}, func(o *Options) {
		o.Stopped = func(run, credential string, since time.Time) bool {
			return stop.Load() && strings.HasPrefix(run, "r-") && credential == "a" && !since.IsZero()
		}
	})
	sess, _ := r.begin(t)
	grant(t, sess, "a")
	grant(t, sess, "b")
	stop.Store(true)
	calls := f.total()
	_, err := sess.Grant(t.Context(), "a", issues)
	refused(t, err, ReasonUnavailable)
	grant(t, sess, "b")
	if f.total() != calls {
		t.Fatal("a stopped credential was fetched")
	}
}

func TestOperatorRevokesLeasesOfOneCredentialOrAll(t *testing.T) {
	s := startVault(t)
	g := newTarget(t)
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	creds := map[string]config.Credential{"kv": vaultCred(config.VaultSource{KV: "secret/github", Field: "token"}, bearer)}
	for _, role := range []string{"ro", "rw"} {
		s.Must(t, http.MethodPost, "rabbit/roles/"+role, map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
		creds[role] = vaultCred(config.VaultSource{Read: "rabbit/creds/" + role, Field: "password"}, bearer)
	}
	r := kindRig(t, s, creds, readRule("rabbit/creds/*"), readRule("secret/data/github"))
	sess, j := r.begin(t)
	ro := grant(t, sess, "ro")
	grant(t, sess, "rw")
	grant(t, sess, "kv")
	if len(g.names()) != 2 {
		t.Fatal(g.names())
	}
	done, err := r.Revoke(t.Context(), j.list(), "ro")
	if err != nil || len(done) != 1 || done[0].LeaseID != ro.LeaseID || len(g.names()) != 1 {
		t.Fatal(done, err, g.names())
	}
	if alive, _ := s.Alive(t, ro.Accessor); !alive {
		t.Fatal("the token of the other credentials was revoked")
	}
	if done, err := r.Revoke(t.Context(), j.list(), "kv"); err != nil || len(done) != 0 {
		t.Fatal(done, err)
	}
	g.setRefuse(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := r.Revoke(ctx, j.list(), "rw"); err == nil {
		t.Fatal("a target that refuses is no error")
	}
	g.setRefuse(false)
	done, err = r.Revoke(t.Context(), j.list(), "")
	if err != nil || len(done) != 1 || done[0].Accessor != ro.Accessor || len(g.names()) != 0 {
		t.Fatal(done, err, g.names())
	}
	if alive, _ := s.Alive(t, ro.Accessor); alive {
		t.Fatal("the token is alive")
	}
	if out := end(t, sess); len(out) != 3 || out[1].Status != StatusRevoked || len(j.list()) != 0 {
		t.Fatalf("the owner's own end: %+v", out)
	}
	foreign := []JournalEntry{{Run: "r-x", Address: "https://other.test", Accessor: "a"}}
	if _, err := r.Revoke(t.Context(), foreign, ""); err == nil || !strings.Contains(err.Error(), "another Vault") {
		t.Fatal(err)
	}
	if _, err := r.Revoke(t.Context(), nil, "nope"); err == nil {
		t.Fatal("no error for a credential that is not there")
	}
}
