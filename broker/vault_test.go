package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/config"
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

func startVault(t testing.TB) *vaulttest.Server {
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

// besides says of the tokens that Vault has and had not before what they are. When two
// revoke one token at once, Vault may keep its accessor (what tidy is for), which then
// leads to no token that could be used: 403, also for root, who may look up any other.
func besides(t *testing.T, s *vaulttest.Server, before []string) (out []string) {
	t.Helper()
	for _, accessor := range accessors(t, s) {
		if slices.Contains(before, accessor) {
			continue
		}
		status, answer := s.Do(t, s.Root, http.MethodPost, "auth/token/lookup-accessor", map[string]any{"accessor": accessor})
		if status == http.StatusForbidden {
			continue
		}
		data, _ := answer["data"].(map[string]any)
		out = append(out, fmt.Sprintf("%d: %v of %v, for %v s of %v", status, data["path"], data["issue_time"], data["ttl"], data["creation_ttl"]))
	}
	return out
}

// vaultLab is one server for all tests that leave it as it was.
type vaultLab struct {
	s               *vaulttest.Server
	audit           string // Vault's own audit file
	token, accessor string // the broker's
	creds           map[string]config.Credential
}

func (v *vaultLab) rig(t *testing.T, edit ...func(map[string]config.Credential)) *rig {
	t.Helper()
	c := map[string]config.Credential{"github-read": githubCred()}
	for _, e := range edit {
		e(c)
	}
	return newRig(t, tokenFile(t, v.s.Addr, v.token), c)
}

func TestVault(t *testing.T) {
	v := &vaultLab{s: startVault(t), creds: map[string]config.Credential{"github-read": githubCred()}}
	v.audit = v.s.AuditFile(t)
	v.token, v.accessor = v.s.BrokerToken(t)
	t.Run("I3 a run's token has the named policies, a short life and the run's id", v.testRunTokenIsScoped)
	t.Run("I9 two runs never share a token", v.testRunsNeverShare)
	t.Run("one token for each distinct set of policies", v.testOneTokenForEachSet)
	t.Run("F140 64 requests at once make one fetch, and a hit makes none", v.testOneFetchForAll)
	t.Run("F143 what is not a text in a field is an error", v.testOnlyTextIsAValue)
	t.Run("KV version 1", v.testKVVersion1)
	t.Run("I10 a refused path refuses one credential and the run goes on", v.testRefusedPath)
	t.Run("I6 the accessor is in the journal before the token is used", v.testJournalFirst)
	t.Run("a journal that fails refuses the value and gives the token back", v.testJournalFails)
	t.Run("F142 what a dead process left is taken back, and nothing else", v.testRecover)
	t.Run("somebody revokes the run's token: nothing more, no successor", v.testKilled)
	t.Run("a run longer than its token gets a successor and no failed request", v.testSuccessor)
	t.Run("token roles that would make unsafe tokens are refused", v.testUnsafeRoles)
	t.Run("a new value is seen after the keeping time, the old one is still searched", v.testRotation)
	t.Run("Probe gives facts and takes back", v.testProbe)

	if raw, err := os.ReadFile(v.audit); err != nil || bytes.Contains(raw, []byte(githubCanary)) || !bytes.Contains(raw, []byte("secret/data/github")) {
		t.Fatal("Vault's audit file", err)
	}
}

func (v *vaultLab) testRunTokenIsScoped(t *testing.T) {
	r := v.rig(t)
	sess, j := r.begin(t)
	if n := len(accessors(t, v.s)); n != 2 { // root's and the broker's
		t.Fatal("Begin called Vault:", n)
	}
	g := grant(t, sess, "github-read")
	if injected(t, g) != "Bearer "+githubCanary || g.Kind != KindKV || !g.Expires.IsZero() {
		t.Fatal("not the value of Vault")
	}
	alive, data := v.s.Alive(t, g.Accessor)
	if !alive || data["orphan"] != false || data["explicit_max_ttl"].(float64) > 900 || data["ttl"].(float64) < 600 || data["meta"].(map[string]any)["run_id"] != sess.run.ID {
		t.Fatalf("token: %v", data)
	}
	if got := data["policies"].([]any); len(got) != 2 || got[0] != "run-base" || got[1] != "run-github" {
		t.Fatalf("policies %v", got)
	}
	if _, id := calls(t, v.audit, "secret/data/github"); id != g.VaultRequestID || id == "" {
		t.Fatal("the grant does not name the request in Vault's audit log")
	}
	e := j.list()
	if len(e) != 1 || e[0].Accessor != g.Accessor || e[0].Run != sess.run.ID || e[0].Address != v.s.Addr || e[0].TokenRole != "agent-run" || e[0].NotAfter.IsZero() {
		t.Fatalf("journal: %+v", e)
	}
	if raw, _ := json.Marshal(e); bytes.Contains(raw, []byte("hvs.")) || bytes.Contains(raw, []byte("CANARY")) {
		t.Fatal("the journal holds a token or a value")
	}

	out := end(t, sess)
	if len(out) != 1 || out[0].Status != StatusStatic || out[0].Accessor != g.Accessor || out[0].Name != "github-read" {
		t.Fatalf("outcome %+v", out)
	}
	if alive, _ := v.s.Alive(t, g.Accessor); alive {
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
	if alive, _ := v.s.Alive(t, v.accessor); !alive {
		t.Fatal("the token of the file was revoked")
	}
	if want := []string{"issue token expires", "revoke token revoked"}; !slices.Equal(*r.events, want) {
		t.Fatal("events", *r.events)
	}
}

func (v *vaultLab) testRunsNeverShare(t *testing.T) {
	r := v.rig(t)
	a, _ := r.begin(t)
	b, _ := r.begin(t)
	ga, gb := grant(t, a, "github-read"), grant(t, b, "github-read")
	if ga.Accessor == gb.Accessor || ga.VaultRequestID == gb.VaultRequestID {
		t.Fatal("shared")
	}
	end(t, a)
	if alive, _ := v.s.Alive(t, gb.Accessor); !alive {
		t.Fatal("the end of one run took the token of another")
	}
}

func (v *vaultLab) testOneTokenForEachSet(t *testing.T) {
	r := v.rig(t, func(c map[string]config.Credential) {
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
		if alive, _ := v.s.Alive(t, g.Accessor); alive {
			t.Fatal("a token is alive")
		}
	}
}

func (v *vaultLab) testOneFetchForAll(t *testing.T) {
	r := v.rig(t)
	sess, _ := r.begin(t)
	before, _ := calls(t, v.audit, "secret/data/github")
	minted, _ := calls(t, v.audit, "auth/token/create/agent-run")
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if _, err := sess.Grant(t.Context(), "github-read", issues); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for range 10_000 {
		grant(t, sess, "github-read")
	}
	after, _ := calls(t, v.audit, "secret/data/github")
	mintedAfter, _ := calls(t, v.audit, "auth/token/create/agent-run")
	if after-before != 1 || mintedAfter-minted != 1 {
		t.Fatal("fetches", after-before, "tokens", mintedAfter-minted)
	}
}

func (v *vaultLab) testOnlyTextIsAValue(t *testing.T) {
	v.s.Put(t, "secret", "odd", map[string]any{"number": 7, "map": map[string]any{"a": "b"}, "null": nil, "empty": "", "line": githubCanary + "\n", "good": githubCanary})
	v.s.Policy(t, "run-odd", `path "secret/data/*" { capabilities = ["read"] }`)
	v.s.Put(t, "secret", "gone", map[string]any{"good": "x"})
	v.s.Must(t, http.MethodDelete, "secret/data/gone", nil)
	r := v.rig(t, func(c map[string]config.Credential) {
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
}

func (v *vaultLab) testKVVersion1(t *testing.T) {
	v.s.KV(t, "old", 1)
	v.s.Must(t, http.MethodPost, "old/github", map[string]any{"token": githubCanary, "ttl": "1s"})
	v.s.Policy(t, "run-old", `path "old/github" { capabilities = ["read"] }`)
	r := v.rig(t, func(c map[string]config.Credential) {
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
}

func (v *vaultLab) testRefusedPath(t *testing.T) {
	v.s.Put(t, "secret", "other", map[string]any{"token": "S3CR3T-CANARY-other"})
	r := v.rig(t, func(c map[string]config.Credential) {
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
}

func (v *vaultLab) testJournalFirst(t *testing.T) {
	r := v.rig(t)
	sess, j := r.begin(t)
	before, _ := calls(t, v.audit, "secret/data/github")
	var seen []int
	j.onPut = func(e JournalEntry) error {
		n, _ := calls(t, v.audit, "secret/data/github")
		seen = append(seen, n-before)
		if alive, _ := v.s.Alive(t, e.Accessor); !alive {
			t.Error("the journal names a token that Vault does not know")
		}
		return nil
	}
	grant(t, sess, "github-read")
	if after, _ := calls(t, v.audit, "secret/data/github"); !slices.Equal(seen, []int{0}) || after-before != 1 {
		t.Fatal("order", seen, after-before)
	}
}

func (v *vaultLab) testJournalFails(t *testing.T) {
	r := v.rig(t)
	sess, j := r.begin(t)
	before := accessors(t, v.s)
	var born string
	j.onPut = func(e JournalEntry) error { born = e.Accessor; return errors.New("disk full") }
	_, err := sess.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable)
	if alive, _ := v.s.Alive(t, born); born == "" || alive || !slices.Equal(before, accessors(t, v.s)) {
		t.Fatal("the token that was not journaled lives")
	}
}

func (v *vaultLab) testRecover(t *testing.T) {
	dead := v.rig(t)
	lost, j := dead.begin(t)
	g := grant(t, lost, "github-read") // and then the process dies: no End
	live := v.rig(t)
	other, _ := live.begin(t)
	kept := grant(t, other, "github-read")

	foreign := []JournalEntry{
		{Run: "r-1", Address: "https://elsewhere.test:8200", TokenRole: "agent-run", Accessor: "a1", NotAfter: live.clock.Now().Add(time.Hour)},
		{Run: "r-2", Address: v.s.Addr, TokenRole: "other-role", Accessor: "a2", NotAfter: live.clock.Now().Add(time.Hour)},
		{Run: "r-3", Address: v.s.Addr, Namespace: "ns", TokenRole: "agent-run", Accessor: "a3", NotAfter: live.clock.Now().Add(time.Hour)},
		{Run: "r-4", Address: "https://elsewhere.test:8200", TokenRole: "agent-run", Accessor: "a4", NotAfter: live.clock.Now().Add(-time.Hour)},
		{Run: "r-5", Address: v.s.Addr, TokenRole: "agent-run", Accessor: "never-existed", NotAfter: live.clock.Now().Add(time.Hour)},
	}
	done, err := live.Recover(t.Context(), append(j.list(), foreign...))
	slices.Sort(done)
	want := []string{g.Accessor, "a4", "never-existed"}
	slices.Sort(want)
	if err != nil || !slices.Equal(done, want) {
		t.Fatal(done, err)
	}
	if alive, _ := v.s.Alive(t, g.Accessor); alive {
		t.Fatal("the token of the dead run is alive")
	}
	if alive, _ := v.s.Alive(t, kept.Accessor); !alive {
		t.Fatal("a live run was touched")
	}
}

func (v *vaultLab) testKilled(t *testing.T) {
	r := v.rig(t, func(c map[string]config.Credential) {
		c["same"] = githubCred()
	})
	sess, _ := r.begin(t)
	g := grant(t, sess, "github-read")
	r.clock.add(kvKeep / 2)
	grant(t, sess, "same") // younger
	v.s.Must(t, http.MethodPost, "auth/token/revoke-accessor", map[string]any{"accessor": g.Accessor})
	before := accessors(t, v.s)
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
	if !slices.Equal(before, accessors(t, v.s)) {
		t.Fatal("a successor was made")
	}
	if out := end(t, sess); len(out) != 2 || out[0].Status != StatusStatic {
		t.Fatalf("%+v", out)
	}
}

func (v *vaultLab) testSuccessor(t *testing.T) {
	v.s.Must(t, http.MethodPost, "auth/token/roles/short", map[string]any{
		"allowed_policies_glob": "run-*", "orphan": false, "token_explicit_max_ttl": "10s", "token_no_default_policy": true,
	})
	v.s.Policy(t, "broker-short", strings.ReplaceAll(vaulttest.BrokerPolicy, vaulttest.TokenRole, "short"))
	a := v.s.Must(t, http.MethodPost, "auth/token/create-orphan", map[string]any{"policies": []string{"broker-short"}, "period": "10m"})
	cfg := tokenFile(t, v.s.Addr, a["client_token"].(string))
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
		if alive, _ := v.s.Alive(t, g.Accessor); alive {
			t.Fatal("a token is alive")
		}
	}
}

func (v *vaultLab) testUnsafeRoles(t *testing.T) {
	for name, role := range map[string]map[string]any{
		"orphan": {"orphan": true},
		"batch":  {"token_type": "batch", "orphan": true, "renewable": false},
	} {
		body := map[string]any{"allowed_policies_glob": "run-*", "orphan": false, "token_no_default_policy": true}
		for k, v := range role {
			body[k] = v
		}
		v.s.Must(t, http.MethodPost, "auth/token/roles/"+name, body)
		v.s.Policy(t, "broker-"+name, strings.ReplaceAll(vaulttest.BrokerPolicy, vaulttest.TokenRole, name))
		a := v.s.Must(t, http.MethodPost, "auth/token/create-orphan", map[string]any{"policies": []string{"broker-" + name}, "period": "10m"})
		cfg := tokenFile(t, v.s.Addr, a["client_token"].(string))
		cfg.TokenRole = name
		r := newRig(t, cfg, v.creds)
		sess, _ := r.begin(t)
		before := accessors(t, v.s)
		_, err := sess.Grant(t.Context(), "github-read", issues)
		if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), name) {
			t.Error(e)
		}
		if !slices.Equal(before, accessors(t, v.s)) {
			t.Error(name, "the refused token lives")
		}
	}
}

func (v *vaultLab) testRotation(t *testing.T) {
	v.s.Put(t, "secret", "rotating", map[string]any{"token": "S3CR3T-CANARY-one"})
	v.s.Policy(t, "run-rotating", `path "secret/data/rotating" { capabilities = ["read"] }`)
	r := v.rig(t, func(c map[string]config.Credential) {
		g := githubCred()
		g.Source.Vault.KV, g.Source.Vault.Policies = "secret/rotating", []string{"run-rotating"}
		c["rotating"] = g
	})
	sess, _ := r.begin(t)
	one := grant(t, sess, "rotating")
	v.s.Put(t, "secret", "rotating", map[string]any{"token": "S3CR3T-CANARY-two"})
	if injected(t, grant(t, sess, "rotating")) != "Bearer S3CR3T-CANARY-one" {
		t.Fatal("not from the cache")
	}
	r.clock.add(kvKeep)
	two := grant(t, sess, "rotating")
	if injected(t, two) != "Bearer S3CR3T-CANARY-two" || one.Secrets()[0].Reveal() != "S3CR3T-CANARY-one" {
		t.Fatal("F136 the old value is gone, or the new one is not there")
	}
	v.s.Put(t, "secret", "rotating", map[string]any{"token": "S3CR3T-CANARY-three"})
	sess.Rejected("rotating")
	if injected(t, grant(t, sess, "rotating")) != "Bearer S3CR3T-CANARY-three" {
		t.Fatal("a rejected value was kept")
	}
	n, _ := calls(t, v.audit, "secret/data/rotating")
	sess.Rejected("rotating")
	grant(t, sess, "rotating")
	if after, _ := calls(t, v.audit, "secret/data/rotating"); after != n {
		t.Fatal("a second rejection within a minute made a call")
	}
}

func (v *vaultLab) testProbe(t *testing.T) {
	r := v.rig(t)
	f, err := r.Probe(t.Context(), "github-read", &journal{}, 8)
	if err != nil || f.Length != len(githubCanary) || !f.Searched || len(f.Outcomes) != 1 {
		t.Fatalf("%+v %v", f, err)
	}
	if alive, _ := v.s.Alive(t, f.Accessor); alive {
		t.Fatal("alive")
	}
	if raw, _ := json.Marshal(f); bytes.Contains(raw, []byte("CANARY")) {
		t.Fatal("the facts hold the value")
	}
}
