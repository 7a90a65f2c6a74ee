package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/audit"
	"warder/internal/vaulttest"
)

// vaultLab is a lab whose credential comes from a real Vault.
func vaultLab(t *testing.T) (*lab, *vaulttest.Server) {
	t.Helper()
	v := vaulttest.Start(t)
	v.Setup(t, canary)
	l := newLab(t)
	token, _ := v.BrokerToken(t)
	l.write("vault-token", token)
	l.useVault(v.Addr, "auth: {method: token_file, token_file: ./vault-token}")
	return l, v
}

func (l *lab) useVault(addr, auth string) {
	l.t.Helper()
	l.configure(fmt.Sprintf(`
vault:
  address: %s
  timeout: 20s
  %s
  token_role: %s
credentials:
  api:
    source: {vault: {kv: secret/github, field: token, policies: [run-base, run-github]}}
    inject: {header: Authorization, format: "Bearer {value}"}
    hosts: [api.allowed.test]
`, addr, auth, vaulttest.TokenRole))
}

// accessors are the child tokens that the log names.
func (l *lab) accessors() []string {
	l.t.Helper()
	seen := map[string]bool{}
	var out []string
	for _, r := range l.records(nil) {
		if r.Credential != nil && r.Credential.Accessor != "" && !seen[r.Credential.Accessor] {
			seen[r.Credential.Accessor] = true
			out = append(out, r.Credential.Accessor)
		}
	}
	return out
}

const askAPI = `curl -sS -m 30 -w '\nSTATUS %{http_code}\n' https://api.allowed.test/v1/items`

// TestE2EVaultCredentialIsTakenBack: KV v2 through the run's own child token,
// which is alive during the run and dead after it.
func TestE2EVaultCredentialIsTakenBack(t *testing.T) { // I2, I7, F142
	l, v := vaultLab(t)
	r, o := l.json(askAPI)
	if o.code != 0 || !strings.Contains(r.Stdout, "STATUS 200") {
		t.Fatalf("exit %d: %s%s%s", o.code, r.Stdout, r.Stderr, o.stderr)
	}
	if got := l.up.seen(); len(got) != 1 || got[0].authorization != "Bearer "+canary {
		t.Errorf("the API saw %d requests", len(got))
	}
	acc := l.accessors()
	if len(acc) != 1 {
		t.Fatalf("child tokens in the log: %v", acc)
	}
	if alive, _ := v.Alive(t, acc[0]); alive {
		t.Error("the child token outlives its run")
	}
	_, control := v.BrokerToken(t)
	if alive, _ := v.Alive(t, control); !alive {
		t.Error("control: a living token is not seen as alive")
	}
	if len(r.Credentials) != 1 || r.Credentials[0].Name != "api" {
		t.Errorf("receipt: %+v", r.Credentials)
	}
	l.mustBeComplete()
	l.noCanaryOnDisk()
	token, err := os.ReadFile(filepath.Join(l.dir, "vault-token"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"audit", "state"} {
		_ = filepath.WalkDir(filepath.Join(l.dir, p), func(p string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				if b, _ := os.ReadFile(p); strings.Contains(string(b), string(token)) {
					t.Errorf("the login token stands in %s", p)
				}
			}
			return nil
		})
	}
}

func TestE2EVaultByAppRole(t *testing.T) {
	l, v := vaultLab(t)
	role, secret := v.AppRole(t)
	l.write("role-id", role)
	l.write("secret-id", secret)
	l.useVault(v.Addr, "auth: {method: approle, role_id_file: ./role-id, secret_id_file: ./secret-id}")
	l.mustHold(l.sh(askAPI), 0, "STATUS 200")
	l.useVault(v.Addr, "auth: {method: approle, role_id_file: ./role-id, secret_id_file: ./secret-id, wrapped: true}")
	l.mustHold(l.sh(askAPI), 125, "hint")
}

// TestE2EVaultFaultsFailClosed: no credential, no request; the run goes on.
func TestE2EVaultFaultsFailClosed(t *testing.T) { // I10
	for name, spoil := range map[string]func(l *lab, v *vaulttest.Server){
		"down":   func(_ *lab, v *vaulttest.Server) { v.Kill() },
		"sealed": func(l *lab, v *vaulttest.Server) { v.Seal(l.t) },
		"path forbidden": func(l *lab, v *vaulttest.Server) {
			v.Policy(l.t, "run-github", `path "secret/data/other" { capabilities = ["read"] }`)
		},
		"login token forbidden": func(l *lab, _ *vaulttest.Server) { l.write("vault-token", "s.S3CR3T-CANARY-not-a-token") },
		"no such secret":        func(l *lab, v *vaulttest.Server) { v.Must(l.t, "DELETE", "secret/metadata/github", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			l, v := vaultLab(t)
			spoil(l, v)
			r, o := l.json(askAPI + `; echo the run goes on`)
			if o.code != 0 || !strings.Contains(r.Stdout, `"reason":"credential-unavailable"`) || !strings.Contains(r.Stdout, "STATUS 503") || !strings.Contains(r.Stdout, "the run goes on") {
				t.Errorf("exit %d: %s%s%s", o.code, r.Stdout, r.Stderr, o.stderr)
			}
			if n := len(l.up.seen()); n != 0 {
				t.Errorf("%d requests went out", n)
			}
			for _, leak := range []string{"secret/", "vault", v.Addr, "agent-run"} {
				if strings.Contains(strings.ToLower(r.Stdout), leak) {
					t.Errorf("the sandbox is told %q: %s", leak, r.Stdout)
				}
			}
			recs := l.records(requestsOf)
			if len(recs) != 2 || recs[1].Stage != audit.StageCompleted || recs[1].Reason != "credential-unavailable" {
				t.Errorf("records: %+v", recs)
			}
			l.mustBeComplete()
		})
	}
}

// TestE2EBothLogsJoin: a request of ours names the request of Vault's that fetched
// its credential, and Vault's names the run.
func TestE2EBothLogsJoin(t *testing.T) { // I6
	l, v := vaultLab(t)
	file := v.AuditFile(t)
	r, o := l.json(askAPI)
	if o.code != 0 || !strings.Contains(r.Stdout, "STATUS 200") {
		t.Fatalf("exit %d: %s%s%s", o.code, r.Stdout, r.Stderr, o.stderr)
	}
	ours := l.records(func(r *audit.Record) bool { return requestsOf(r) && r.Stage == audit.StageCompleted })
	if len(ours) != 1 || ours[0].Credential.VaultRequestID == "" {
		t.Fatalf("records: %+v", ours)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	joined := 0
	for line := range strings.Lines(string(raw)) {
		var theirs struct {
			Type    string
			Auth    struct{ Metadata map[string]string }
			Request struct{ ID, Path string }
		}
		if err := json.Unmarshal([]byte(line), &theirs); err != nil {
			t.Fatal(err)
		}
		if theirs.Type == "response" && theirs.Auth.Metadata["run_id"] == r.RunID && theirs.Request.ID != ours[0].Credential.VaultRequestID {
			t.Errorf("Vault served the run a request that no record of ours names: %s", line)
		}
		if theirs.Type != "response" || theirs.Request.ID != ours[0].Credential.VaultRequestID {
			continue
		}
		joined++
		if theirs.Request.Path != "secret/data/github" || theirs.Auth.Metadata["run_id"] != r.RunID {
			t.Errorf("Vault's side: %s", line)
		}
	}
	if joined != 1 {
		t.Errorf("%d lines of Vault's log have the request of ours", joined)
	}
	if strings.Contains(string(raw), canary) {
		t.Error("Vault's log holds the value")
	}
}
