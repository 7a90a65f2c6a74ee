package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
)

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
		time.Sleep(time.Millisecond) // nothing tells that the end has begun
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
		"the monotonic clock stood": {shiftWall(now, time.Hour), true},
		"the wall clock went back":  {shiftWall(now.Add(61*time.Second), -time.Hour), true},
	} {
		if got := d.passed(c.now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
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
