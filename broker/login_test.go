package broker

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

func appRole(t testing.TB, s *vaulttest.Server) *config.Vault {
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
