package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"warder/audit"
	"warder/internal/vaulttest"
)

const kindsRego = `package warder.egress

allow contains {"rule": name, "credential": name} if {
	some name in {"jwt", "hook", "otp", "bucket"}
	input.request.path == concat("", ["/", name])
}
`

// TestE2EKindsOfVault: what signs, and what is good for one request, through the
// sandbox, the proxy and a real Vault; nothing of it is inside or on disk.
func TestE2EKindsOfVault(t *testing.T) { // I2, I3
	l, v := vaultLab(t)
	v.Mount(t, "transit", "transit", nil)
	v.Mount(t, "totp", "totp", nil)
	v.Must(t, http.MethodPost, "transit/keys/agent", map[string]any{"type": "ecdsa-p256"})
	v.Must(t, http.MethodPost, "transit/keys/hook", map[string]any{})
	v.Must(t, http.MethodPost, "totp/keys/vpn", map[string]any{"key": "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"})
	v.Put(t, "secret", "aws", map[string]any{"access_key": "AKIDEXAMPLE", "secret_key": canary})
	for path, capability := range map[string]string{
		"transit/sign/agent/sha2-256": "update", "transit/hmac/hook/sha2-256": "update", "totp/code/vpn": "read", "secret/data/aws": "read",
	} {
		v.Policy(t, "run-"+strings.ReplaceAll(path, "/", "-"), fmt.Sprintf("path %q { capabilities = [%q] }", path, capability))
	}
	l.write("policies/api.rego", kindsRego)
	l.configure(fmt.Sprintf(`
vault:
  address: %s
  auth: {method: token_file, token_file: ./vault-token}
  token_role: %s
credentials:
  jwt:
    source: {vault: {jwt: agent, audience: api.test, policies: [run-transit-sign-agent-sha2-256]}}
    inject: {header: Authorization, format: "Bearer {value}"}
    hosts: [api.allowed.test]
  hook:
    source: {vault: {hmac: hook, policies: [run-transit-hmac-hook-sha2-256]}}
    inject: {hmac: {header: X-Signature, parts: [method, path, body]}}
    hosts: [api.allowed.test]
  otp:
    source: {vault: {totp: vpn, policies: [run-totp-code-vpn]}}
    inject: {header: Authorization}
    hosts: [api.allowed.test]
  bucket:
    source: {vault: {aws: secret/aws, policies: [run-secret-data-aws]}}
    inject: {sigv4: {region: eu-central-1, service: s3}}
    hosts: [api.allowed.test]
`, v.Addr, vaulttest.TokenRole))
	r, o := l.json(`for p in jwt otp bucket; do curl -sS -m 30 -o /dev/null -w '%{http_code}\n' https://api.allowed.test/$p; done
curl -sS -m 30 -o /dev/null -w '%{http_code}\n' -H 'X-Signature: mine' -d 'a body' https://api.allowed.test/hook; env; cat /proc/*/environ`)
	if o.code != 0 || !strings.HasPrefix(r.Stdout, "200\n200\n200\n200\n") || strings.Contains(r.Stdout, canary) {
		t.Fatalf("exit %d: %s%s%s", o.code, r.Stdout, r.Stderr, o.stderr)
	}
	got := map[string]received{}
	for _, s := range l.up.seen() {
		got[s.target] = s
	}
	if a := got["/jwt"].authorization; !strings.HasPrefix(a, "Bearer ey") || !strings.Contains(jwtPart(t, a, 1), r.RunID) {
		t.Errorf("jwt: %q", a)
	}
	if a := got["/otp"].authorization; len(a) != 6 {
		t.Errorf("otp: %q", a)
	}
	if a := got["/bucket"].authorization; !strings.HasPrefix(a, "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/") || strings.Contains(a, canary) {
		t.Errorf("bucket: %q", a)
	}
	mac, err := hex.DecodeString(got["/hook"].header.Get("X-Signature"))
	if err != nil {
		t.Fatal(err)
	}
	if v.Must(t, http.MethodPost, "transit/verify/hook/sha2-256", map[string]any{
		"input": base64.StdEncoding.EncodeToString([]byte("POST\n/hook\na body")), "hmac": "vault:v1:" + base64.StdEncoding.EncodeToString(mac),
	})["valid"] != true || got["/hook"].body != "a body" {
		t.Errorf("hook: %+v", got["/hook"])
	}
	kinds := map[string]string{}
	for _, rec := range l.records(func(r *audit.Record) bool { return requestsOf(r) && r.Stage == audit.StageCompleted }) {
		kinds[rec.Credential.Name] = rec.Credential.Kind
		if rec.Credential.VaultRequestID == "" {
			t.Errorf("%s: no request of Vault's", rec.Credential.Name)
		}
	}
	if fmt.Sprint(kinds) != "map[bucket:aws hook:hmac jwt:jwt otp:totp]" {
		t.Errorf("kinds in the log: %v", kinds)
	}
	if fmt.Sprint(r.Credentials) != "[{bucket static} {hook static} {jwt expires} {otp expires}]" {
		t.Errorf("receipt: %+v", r.Credentials)
	}
	l.mustBeComplete()
	l.noCanaryOnDisk()
}

func jwtPart(t *testing.T, authorization string, n int) string {
	t.Helper()
	parts := strings.Split(strings.TrimPrefix(authorization, "Bearer "), ".")
	if len(parts) != 3 {
		return ""
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[n])
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
