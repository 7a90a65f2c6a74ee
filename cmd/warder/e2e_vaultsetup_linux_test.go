package main

import (
	"encoding/json"
	"strings"
	"testing"

	"warder/broker"
)

func TestE2EVaultSetup(t *testing.T) {
	l, v := vaultLab(t)
	o := l.warder("vault", "setup", "--print")
	l.mustHold(o, 0, "vault policy write run-github - <<'EOF'")
	for _, want := range []string{
		`path "secret/data/github" { capabilities = ["read"] }`, "vault write auth/token/roles/agent-run allowed_policies_glob='run-*'",
		"# vault secrets enable -path=secret -version=2 kv",
	} {
		if !strings.Contains(strings.ReplaceAll(o.stdout, "'allowed_policies_glob=run-*'", "allowed_policies_glob='run-*'"), want) {
			t.Errorf("%q is missing in\n%s", want, o.stdout)
		}
	}
	l.mustHold(l.warder("vault", "setup", "--check"), 0, "ok  credential api")
	v.Policy(t, "run-github", `path "secret/data/other" { capabilities = ["read"] }`)
	o = l.warder("vault", "setup", "--check", "-o", "json")
	var checks []broker.SetupCheck
	if err := json.Unmarshal([]byte(o.stdout), &checks); err != nil || o.code != 2 {
		t.Fatalf("exit %d: %v\n%s%s", o.code, err, o.stdout, o.stderr)
	}
	if last := checks[len(checks)-1]; last.OK || !strings.Contains(last.Fix, `path "secret/data/github" { capabilities = ["read"] }`) {
		t.Errorf("%+v", last)
	}
	if strings.Contains(o.stdout+o.stderr, canary) {
		t.Error("I2 a check shows a value")
	}
	l.mustHold(l.warder("vault", "setup"), 1, "required")
	l.configure("")
	l.mustHold(l.warder("vault", "setup", "--print"), 1, "no vault section")
}
