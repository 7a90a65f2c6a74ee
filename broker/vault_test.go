package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
	"warder/internal/vaulttest"
)

// auditLine is one line of Vault's own audit file.
type auditLine struct {
	Type    string `json:"type"`
	Request struct {
		ID        string `json:"id"`
		Operation string `json:"operation"`
		Path      string `json:"path"`
	} `json:"request"`
}

// calls counts the requests that Vault saw for a path.
func calls(t *testing.T, file, path string) (n int, last string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var a auditLine
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatal(err)
		}
		if a.Type == "response" && a.Request.Path == path {
			n++
			last = a.Request.ID
		}
	}
	return n, last
}

func startVault(t *testing.T) *vaulttest.Server {
	t.Helper()
	s := vaulttest.Start(t)
	s.Setup(t, githubCanary)
	return s
}

func accessors(t *testing.T, s *vaulttest.Server) []string {
	t.Helper()
	var out []string
	for _, k := range s.Must(t, "LIST", "auth/token/accessors", nil)["keys"].([]any) {
		out = append(out, k.(string))
	}
	slices.Sort(out)
	return out
}

func TestVault(t *testing.T) { // one server for all that leave it as it was
	s := startVault(t)
	audit := s.AuditFile(t)
	token, accessor := s.BrokerToken(t)
	creds := map[string]config.Credential{"github-read": githubCred()}
	rigOf := func(t *testing.T, edit ...func(map[string]config.Credential)) *rig {
		c := map[string]config.Credential{"github-read": githubCred()}
		for _, e := range edit {
			e(c)
		}
		return newRig(t, tokenFile(t, s.Addr, token), c)
	}

	t.Run("I3 a run's token has the named policies, a short life and the run's id", func(t *testing.T) {
		r := rigOf(t)
		sess, j := r.begin(t)
		if n := len(accessors(t, s)); n != 2 { // root's and the broker's
			t.Fatal("Begin called Vault:", n)
		}
		g := grant(t, sess, "github-read")
		if injected(t, g) != "Bearer "+githubCanary || g.Kind != KindKV || !g.Expires.IsZero() {
			t.Fatal("not the value of Vault")
		}
		alive, data := s.Alive(t, g.Accessor)
		if !alive || data["orphan"] != false || data["explicit_max_ttl"].(float64) > 900 || data["meta"].(map[string]any)["run_id"] != sess.run.ID {
			t.Fatalf("token: %v", data)
		}
		if got := data["policies"].([]any); len(got) != 2 || got[0] != "run-base" || got[1] != "run-github" {
			t.Fatalf("policies %v", got)
		}
		if _, id := calls(t, audit, "secret/data/github"); id != g.VaultRequestID || id == "" {
			t.Fatal("the grant does not name the request in Vault's audit log")
		}
		e := j.list()
		if len(e) != 1 || e[0].Accessor != g.Accessor || e[0].Run != sess.run.ID || e[0].Address != s.Addr || e[0].TokenRole != "agent-run" || e[0].NotAfter.IsZero() {
			t.Fatalf("journal: %+v", e)
		}
		if raw, _ := json.Marshal(e); bytes.Contains(raw, []byte("hvs.")) || bytes.Contains(raw, []byte("CANARY")) {
			t.Fatal("the journal holds a token or a value")
		}

		out := end(t, sess)
		if len(out) != 1 || out[0].Status != StatusStatic || out[0].Accessor != g.Accessor || out[0].Name != "github-read" {
			t.Fatalf("outcome %+v", out)
		}
		if alive, _ := s.Alive(t, g.Accessor); alive {
			t.Fatal("I7 the run's token is alive after its end")
		}
		if len(j.list()) != 0 {
			t.Fatal("the journal still has the token")
		}
		if again := end(t, sess); !slices.Equal(again, out) {
			t.Fatal("a second End differs")
		}
		_, err := sess.Grant(t.Context(), "github-read", issues)
		refused(t, err, ReasonUnavailable)
		req, _ := http.NewRequest(http.MethodGet, "https://api.github.com/", nil)
		if err := g.Inject(req); err == nil || req.Header.Get("Authorization") != "" {
			t.Fatal("a value of an ended run was injected")
		}
		if alive, _ := s.Alive(t, accessor); !alive {
			t.Fatal("the token of the file was revoked")
		}
		if want := []string{"issue token expires", "revoke token revoked"}; !slices.Equal(*r.events, want) {
			t.Fatal("events", *r.events)
		}
	})

	t.Run("I9 two runs never share a token", func(t *testing.T) {
		r := rigOf(t)
		a, _ := r.begin(t)
		b, _ := r.begin(t)
		ga, gb := grant(t, a, "github-read"), grant(t, b, "github-read")
		if ga.Accessor == gb.Accessor || ga.VaultRequestID == gb.VaultRequestID {
			t.Fatal("shared")
		}
		end(t, a)
		if alive, _ := s.Alive(t, gb.Accessor); !alive {
			t.Fatal("the end of one run took the token of another")
		}
	})

	t.Run("one token for each distinct set of policies", func(t *testing.T) {
		r := rigOf(t, func(c map[string]config.Credential) {
			same := githubCred()
			same.Source.Vault.Policies = []string{"run-github", "run-base", "run-base"}
			other := githubCred()
			other.Source.Vault.Policies = []string{"run-github"}
			c["same"], c["other"] = same, other
		})
		sess, j := r.begin(t)
		x, y, z := grant(t, sess, "github-read"), grant(t, sess, "same"), grant(t, sess, "other")
		if x.Accessor != y.Accessor || x.Accessor == z.Accessor || len(j.list()) != 2 {
			t.Fatal("not two tokens")
		}
		end(t, sess)
		for _, g := range []*Grant{x, z} {
			if alive, _ := s.Alive(t, g.Accessor); alive {
				t.Fatal("a token is alive")
			}
		}
	})

	t.Run("F140 64 requests at once make one fetch, and a hit makes none", func(t *testing.T) {
		r := rigOf(t)
		sess, _ := r.begin(t)
		before, _ := calls(t, audit, "secret/data/github")
		minted, _ := calls(t, audit, "auth/token/create/agent-run")
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				if _, err := sess.Grant(t.Context(), "github-read", issues); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for range 100 {
			grant(t, sess, "github-read")
		}
		after, _ := calls(t, audit, "secret/data/github")
		mintedAfter, _ := calls(t, audit, "auth/token/create/agent-run")
		if after-before != 1 || mintedAfter-minted != 1 {
			t.Fatal("fetches", after-before, "tokens", mintedAfter-minted)
		}
	})

	t.Run("F143 what is not a text in a field is an error", func(t *testing.T) {
		s.Put(t, "secret", "odd", map[string]any{"number": 7, "map": map[string]any{"a": "b"}, "null": nil, "empty": "", "line": githubCanary + "\n", "good": githubCanary})
		s.Policy(t, "run-odd", `path "secret/data/*" { capabilities = ["read"] }`)
		s.Put(t, "secret", "gone", map[string]any{"good": "x"})
		s.Must(t, http.MethodDelete, "secret/data/gone", nil)
		r := rigOf(t, func(c map[string]config.Credential) {
			add := func(name, path, field string) {
				g := githubCred()
				g.Source.Vault.KV, g.Source.Vault.Field, g.Source.Vault.Policies = path, field, []string{"run-odd"}
				c[name] = g
			}
			for _, f := range []string{"number", "map", "null", "empty", "line", "good", "none"} {
				add(f, "secret/odd", f)
			}
			add("missing", "secret/missing", "good")
			add("gone", "secret/gone", "good")
			add("nomount", "nowhere/x", "good")
		})
		sess, _ := r.begin(t)
		if injected(t, grant(t, sess, "good")) != "Bearer "+githubCanary {
			t.Fatal("the control does not work")
		}
		for _, name := range []string{"number", "map", "null", "empty", "line", "none", "missing", "gone", "nomount"} {
			_, err := sess.Grant(t.Context(), name, issues)
			refused(t, err, ReasonUnavailable)
		}
		if out := end(t, sess); len(out) != 1 || out[0].Name != "good" {
			t.Fatalf("outcomes of what was never given: %+v", out)
		}
	})

	t.Run("KV version 1", func(t *testing.T) {
		s.KV(t, "old", 1)
		s.Must(t, http.MethodPost, "old/github", map[string]any{"token": githubCanary, "ttl": "1s"})
		s.Policy(t, "run-old", `path "old/github" { capabilities = ["read"] }`)
		r := rigOf(t, func(c map[string]config.Credential) {
			g := githubCred()
			g.Source.Vault.KV, g.Source.Vault.Version, g.Source.Vault.Policies = "old/github", 1, []string{"run-old"}
			c["old"] = g
			m := githubCred()
			m.Source.Vault.Mount, m.Source.Vault.KV = "secret/", "github"
			c["mount"] = m
		})
		sess, _ := r.begin(t)
		if g := grant(t, sess, "old"); injected(t, g) != "Bearer "+githubCanary || g.LeaseID != "" {
			t.Fatal("not the value of version 1")
		}
		if injected(t, grant(t, sess, "mount")) != "Bearer "+githubCanary {
			t.Fatal("not the value of the named mount")
		}
	})

	t.Run("I10 a refused path refuses one credential and the run goes on", func(t *testing.T) {
		s.Put(t, "secret", "other", map[string]any{"token": "S3CR3T-CANARY-other"})
		r := rigOf(t, func(c map[string]config.Credential) {
			g := githubCred()
			g.Source.Vault.KV = "secret/other"
			c["denied"] = g
			p := githubCred()
			p.Source.Vault.Policies = []string{"broker"}
			c["forbidden-policy"] = p
		})
		sess, _ := r.begin(t)
		_, err := sess.Grant(t.Context(), "denied", issues)
		e := refused(t, err, ReasonUnavailable)
		if msg := e.Error(); !strings.Contains(msg, "secret/data/other") || !strings.Contains(msg, "run-github") || !strings.Contains(msg, "403") || e.RetryAfter == 0 {
			t.Fatal("the operator is not told:", msg)
		}
		_, err = sess.Grant(t.Context(), "forbidden-policy", issues)
		refused(t, err, ReasonUnavailable)
		grant(t, sess, "github-read")
	})

	t.Run("I6 the accessor is in the journal before the token is used", func(t *testing.T) {
		r := rigOf(t)
		sess, j := r.begin(t)
		before, _ := calls(t, audit, "secret/data/github")
		var seen []int
		j.onPut = func(e JournalEntry) error {
			n, _ := calls(t, audit, "secret/data/github")
			seen = append(seen, n-before)
			if alive, _ := s.Alive(t, e.Accessor); !alive {
				t.Error("the journal names a token that Vault does not know")
			}
			return nil
		}
		grant(t, sess, "github-read")
		if after, _ := calls(t, audit, "secret/data/github"); !slices.Equal(seen, []int{0}) || after-before != 1 {
			t.Fatal("order", seen, after-before)
		}
	})

	t.Run("a journal that fails refuses the value and gives the token back", func(t *testing.T) {
		r := rigOf(t)
		sess, j := r.begin(t)
		before := accessors(t, s)
		var born string
		j.onPut = func(e JournalEntry) error { born = e.Accessor; return errors.New("disk full") }
		_, err := sess.Grant(t.Context(), "github-read", issues)
		refused(t, err, ReasonUnavailable)
		if alive, _ := s.Alive(t, born); born == "" || alive || !slices.Equal(before, accessors(t, s)) {
			t.Fatal("the token that was not journaled lives")
		}
	})

	t.Run("F142 what a dead process left is taken back, and nothing else", func(t *testing.T) {
		dead := rigOf(t)
		lost, j := dead.begin(t)
		g := grant(t, lost, "github-read") // and then the process dies: no End
		live := rigOf(t)
		other, _ := live.begin(t)
		kept := grant(t, other, "github-read")

		foreign := []JournalEntry{
			{Run: "r-1", Address: "https://elsewhere.test:8200", TokenRole: "agent-run", Accessor: "a1", NotAfter: live.clock.Now().Add(time.Hour)},
			{Run: "r-2", Address: s.Addr, TokenRole: "other-role", Accessor: "a2", NotAfter: live.clock.Now().Add(time.Hour)},
			{Run: "r-3", Address: s.Addr, Namespace: "ns", TokenRole: "agent-run", Accessor: "a3", NotAfter: live.clock.Now().Add(time.Hour)},
			{Run: "r-4", Address: "https://elsewhere.test:8200", TokenRole: "agent-run", Accessor: "a4", NotAfter: live.clock.Now().Add(-time.Hour)},
			{Run: "r-5", Address: s.Addr, TokenRole: "agent-run", Accessor: "never-existed", NotAfter: live.clock.Now().Add(time.Hour)},
		}
		done, err := live.Recover(t.Context(), append(j.list(), foreign...))
		slices.Sort(done)
		want := []string{g.Accessor, "a4", "never-existed"}
		slices.Sort(want)
		if err != nil || !slices.Equal(done, want) {
			t.Fatal(done, err)
		}
		if alive, _ := s.Alive(t, g.Accessor); alive {
			t.Fatal("the token of the dead run is alive")
		}
		if alive, _ := s.Alive(t, kept.Accessor); !alive {
			t.Fatal("a live run was touched")
		}
	})

	t.Run("somebody revokes the run's token: nothing more, no successor", func(t *testing.T) {
		r := rigOf(t, func(c map[string]config.Credential) {
			c["same"] = githubCred()
		})
		sess, _ := r.begin(t)
		g := grant(t, sess, "github-read")
		r.clock.add(kvKeep / 2)
		grant(t, sess, "same") // younger
		s.Must(t, http.MethodPost, "auth/token/revoke-accessor", map[string]any{"accessor": g.Accessor})
		before := accessors(t, s)
		r.clock.add(kvKeep / 2)
		for range 3 {
			_, err := sess.Grant(t.Context(), "github-read", issues)
			if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "has been revoked") {
				t.Fatal(e)
			}
			_, err = sess.Grant(t.Context(), "same", issues) // its value is still young, its token is gone
			refused(t, err, ReasonUnavailable)
			r.clock.add(time.Minute)
		}
		if !slices.Equal(before, accessors(t, s)) {
			t.Fatal("a successor was made")
		}
		if out := end(t, sess); len(out) != 2 || out[0].Status != StatusStatic {
			t.Fatalf("%+v", out)
		}
	})

	t.Run("a run longer than its token gets a successor and no failed request", func(t *testing.T) {
		s.Must(t, http.MethodPost, "auth/token/roles/short", map[string]any{
			"allowed_policies_glob": "run-*", "orphan": false, "token_explicit_max_ttl": "10s", "token_no_default_policy": true,
		})
		s.Policy(t, "broker-short", strings.ReplaceAll(vaulttest.BrokerPolicy, vaulttest.TokenRole, "short"))
		a := s.Must(t, http.MethodPost, "auth/token/create-orphan", map[string]any{"policies": []string{"broker-short"}, "period": "10m"})
		cfg := tokenFile(t, s.Addr, a["client_token"].(string))
		cfg.TokenRole = "short"
		other := githubCred()
		r := newRig(t, cfg, map[string]config.Credential{"github-read": githubCred(), "second": other})
		sess, _ := r.begin(t)
		one := grant(t, sess, "github-read")
		r.clock.add(8 * time.Second) // less than a quarter of its life is left
		two := grant(t, sess, "second")
		if one.Accessor == two.Accessor {
			t.Fatal("no successor")
		}
		end(t, sess)
		for _, g := range []*Grant{one, two} {
			if alive, _ := s.Alive(t, g.Accessor); alive {
				t.Fatal("a token is alive")
			}
		}
	})

	t.Run("token roles that would make unsafe tokens are refused", func(t *testing.T) {
		for name, role := range map[string]map[string]any{
			"orphan": {"orphan": true},
			"batch":  {"token_type": "batch", "orphan": true, "renewable": false},
		} {
			body := map[string]any{"allowed_policies_glob": "run-*", "orphan": false, "token_no_default_policy": true}
			for k, v := range role {
				body[k] = v
			}
			s.Must(t, http.MethodPost, "auth/token/roles/"+name, body)
			s.Policy(t, "broker-"+name, strings.ReplaceAll(vaulttest.BrokerPolicy, vaulttest.TokenRole, name))
			a := s.Must(t, http.MethodPost, "auth/token/create-orphan", map[string]any{"policies": []string{"broker-" + name}, "period": "10m"})
			cfg := tokenFile(t, s.Addr, a["client_token"].(string))
			cfg.TokenRole = name
			r := newRig(t, cfg, creds)
			sess, _ := r.begin(t)
			before := accessors(t, s)
			_, err := sess.Grant(t.Context(), "github-read", issues)
			if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), name) {
				t.Error(e)
			}
			if !slices.Equal(before, accessors(t, s)) {
				t.Error(name, "the refused token lives")
			}
		}
	})

	t.Run("a new value is seen after the keeping time, the old one is still searched", func(t *testing.T) {
		s.Put(t, "secret", "rotating", map[string]any{"token": "S3CR3T-CANARY-one"})
		s.Policy(t, "run-rotating", `path "secret/data/rotating" { capabilities = ["read"] }`)
		r := rigOf(t, func(c map[string]config.Credential) {
			g := githubCred()
			g.Source.Vault.KV, g.Source.Vault.Policies = "secret/rotating", []string{"run-rotating"}
			c["rotating"] = g
		})
		sess, _ := r.begin(t)
		one := grant(t, sess, "rotating")
		s.Put(t, "secret", "rotating", map[string]any{"token": "S3CR3T-CANARY-two"})
		if injected(t, grant(t, sess, "rotating")) != "Bearer S3CR3T-CANARY-one" {
			t.Fatal("not from the cache")
		}
		r.clock.add(kvKeep)
		two := grant(t, sess, "rotating")
		if injected(t, two) != "Bearer S3CR3T-CANARY-two" || one.Secrets()[0].Reveal() != "S3CR3T-CANARY-one" {
			t.Fatal("F136 the old value is gone, or the new one is not there")
		}
		s.Put(t, "secret", "rotating", map[string]any{"token": "S3CR3T-CANARY-three"})
		sess.Rejected("rotating")
		if injected(t, grant(t, sess, "rotating")) != "Bearer S3CR3T-CANARY-three" {
			t.Fatal("a rejected value was kept")
		}
		n, _ := calls(t, audit, "secret/data/rotating")
		sess.Rejected("rotating")
		grant(t, sess, "rotating")
		if after, _ := calls(t, audit, "secret/data/rotating"); after != n {
			t.Fatal("a second rejection within a minute made a call")
		}
	})

	t.Run("Probe gives facts and takes back", func(t *testing.T) {
		r := rigOf(t)
		f, err := r.Probe(t.Context(), "github-read", &journal{}, 8)
		if err != nil || f.Length != len(githubCanary) || !f.Searched || len(f.Outcomes) != 1 {
			t.Fatalf("%+v %v", f, err)
		}
		if alive, _ := s.Alive(t, f.Accessor); alive {
			t.Fatal("alive")
		}
		if raw, _ := json.Marshal(f); bytes.Contains(raw, []byte("CANARY")) {
			t.Fatal("the facts hold the value")
		}
	})

	if raw, err := os.ReadFile(audit); err != nil || bytes.Contains(raw, []byte(githubCanary)) || !bytes.Contains(raw, []byte("secret/data/github")) {
		t.Fatal("Vault's audit file", err)
	}
}

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

func appRole(t *testing.T, s *vaulttest.Server) *config.Vault {
	t.Helper()
	role, secretID := s.AppRole(t)
	return &config.Vault{Address: s.Addr, TokenRole: vaulttest.TokenRole, Auth: config.Auth{
		Method: "approle", RoleIDFile: secretFile(t, role), SecretIDFile: secretFile(t, secretID),
	}}
}

func TestAppRole(t *testing.T) {
	s := startVault(t)

	t.Run("the login is journaled, used, and revoked by Close", func(t *testing.T) {
		r := newRig(t, appRole(t, s), map[string]config.Credential{"github-read": githubCred()})
		sess, _ := r.begin(t)
		g := grant(t, sess, "github-read")
		e := r.journal.list()
		if len(e) != 1 || !e[0].Login || e[0].Accessor == g.Accessor {
			t.Fatalf("journal of the broker: %+v", e)
		}
		if alive, data := s.Alive(t, e[0].Accessor); !alive || data["path"] != "auth/approle/login" {
			t.Fatal("not the login", data)
		}
		end(t, sess)
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if alive, _ := s.Alive(t, e[0].Accessor); alive || len(r.journal.list()) != 0 {
			t.Fatal("the login is alive after Close, or in the journal")
		}
	})

	t.Run("F134 a lost login is replaced once and the run goes on", func(t *testing.T) {
		r := newRig(t, appRole(t, s), map[string]config.Credential{"github-read": githubCred()})
		sess, _ := r.begin(t)
		one := grant(t, sess, "github-read")
		first := r.journal.list()[0].Accessor
		s.Must(t, http.MethodPost, "auth/token/revoke-accessor", map[string]any{"accessor": first}) // takes the run's token along
		r.clock.add(kvKeep)
		two := grant(t, sess, "github-read")
		if one.Accessor == two.Accessor || len(r.journal.list()) != 2 {
			t.Fatal("not a new login and a new token", len(r.journal.list()))
		}
		if out := end(t, sess); len(out) != 1 || out[0].Status != StatusStatic {
			t.Fatalf("%+v", out)
		}
		if err := r.Close(t.Context()); err != nil || len(r.journal.list()) != 0 {
			t.Fatal(err, r.journal.list())
		}
	})

	t.Run("F142 a login left by a dead process is revoked after its runs", func(t *testing.T) {
		dead := newRig(t, appRole(t, s), map[string]config.Credential{"github-read": githubCred()})
		lost, j := dead.begin(t)
		g := grant(t, lost, "github-read")
		login := dead.journal.list()[0].Accessor
		live := newRig(t, appRole(t, s), map[string]config.Credential{"github-read": githubCred()})
		done, err := live.Recover(t.Context(), append(dead.journal.list(), j.list()...))
		if err != nil || !slices.Equal(done, []string{g.Accessor, login}) {
			t.Fatal(done, err)
		}
		for _, a := range done {
			if alive, _ := s.Alive(t, a); alive {
				t.Fatal("alive")
			}
		}
		if own := live.journal.list(); len(own) != 1 {
			t.Fatal("no login of its own")
		} else if done, err := live.Recover(t.Context(), own); len(done) != 0 || err != nil {
			t.Fatal("its own login was recovered", done, err)
		}
	})

	t.Run("F143 a wrapped SecretID works once, from the right place, not for single runs", func(t *testing.T) {
		cfg := appRole(t, s)
		cfg.Auth.Wrapped = true
		if _, err := New(Options{Vault: cfg, Journal: &journal{}, OneShot: true}); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Fatal("a single run takes a wrapped SecretID:", err)
		}
		wrap := func(path string) string {
			req, _ := http.NewRequest(http.MethodPost, s.Addr+"/v1/"+path, strings.NewReader("{}"))
			req.Header.Set("X-Vault-Token", s.Root)
			req.Header.Set("X-Vault-Wrap-TTL", "60s")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			var out struct {
				WrapInfo struct{ Token string } `json:"wrap_info"`
			}
			if err := json.NewDecoder(resp.Body).Decode(&out); err != nil || out.WrapInfo.Token == "" {
				t.Fatal("no wrapping token", err)
			}
			return out.WrapInfo.Token
		}
		good := wrap("auth/approle/role/broker/secret-id")
		cfg.Auth.SecretIDFile = secretFile(t, good)
		creds := map[string]config.Credential{"github-read": githubCred()}
		r := newRig(t, cfg, creds)
		sess, _ := r.begin(t)
		grant(t, sess, "github-read")

		thief := newRig(t, cfg, creds)
		sess2, _ := thief.begin(t)
		_, err := sess2.Grant(t.Context(), "github-read", issues)
		refused(t, err, ReasonUnavailable)
		if !strings.Contains(thief.log.String(), "somebody else") {
			t.Fatal("no alarm")
		}

		other := *cfg
		other.Auth.Role = "other"
		other.Auth.SecretIDFile = secretFile(t, wrap("auth/approle/role/broker/secret-id"))
		r4 := newRig(t, &other, creds)
		sess4, _ := r4.begin(t)
		_, err = sess4.Grant(t.Context(), "github-read", issues)
		if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "was made by") {
			t.Fatal(e)
		}

		wrong := *cfg
		wrong.Auth.SecretIDFile = secretFile(t, wrap("auth/token/create"))
		r3 := newRig(t, &wrong, creds)
		sess3, _ := r3.begin(t)
		_, err = sess3.Grant(t.Context(), "github-read", issues)
		if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "was made by") {
			t.Fatal(e)
		}
	})

	t.Run("a wrong SecretID", func(t *testing.T) {
		cfg := appRole(t, s)
		cfg.Auth.SecretIDFile = secretFile(t, "S3CR3T-CANARY-secret-id")
		r := newRig(t, cfg, map[string]config.Credential{"github-read": githubCred()})
		sess, _ := r.begin(t)
		_, err := sess.Grant(t.Context(), "github-read", issues)
		refused(t, err, ReasonUnavailable)
	})
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
