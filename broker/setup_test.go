package broker

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

// apply does to a test Vault what Setup says, as an operator's shell would.
func apply(t *testing.T, s *vaulttest.Server, set Setup) {
	t.Helper()
	for _, p := range set.Policies {
		s.Policy(t, p.Name, p.HCL)
	}
	for _, c := range set.Engines {
		w := strings.Fields(c) // vault secrets enable -path=P [-version=N] TYPE
		path, typ := strings.TrimPrefix(w[3], "-path="), w[len(w)-1]
		if typ == "kv" {
			version := 2
			if w[4] == "-version=1" {
				version = 1
			}
			s.KV(t, path, version)
			continue
		}
		s.Mount(t, path, typ, nil)
	}
	for _, c := range set.Commands {
		w := strings.Fields(c)
		switch {
		case strings.HasPrefix(c, "vault auth enable"):
			s.Must(t, http.MethodPost, "sys/auth/"+strings.TrimPrefix(w[3], "-path="), map[string]any{"type": w[4]})
		case w[1] == "write":
			body := map[string]any{}
			for _, kv := range w[3:] {
				k, v, _ := strings.Cut(strings.Trim(kv, "'"), "=")
				body[k] = v
			}
			s.Must(t, http.MethodPost, w[2], body)
		default:
			t.Fatal("a command that the test does not know:", c)
		}
	}
}

func setupCreds() map[string]config.Credential {
	p := func(last string) []string { return []string{"run-base", last} }
	return map[string]config.Credential{
		"kv":    vaultCred(config.VaultSource{KV: "secret/github", Field: "token", Policies: p("run-kv")}, bearer),
		"kv1":   vaultCred(config.VaultSource{KV: "one", Mount: "old/kv", Version: 1, Field: "token", Policies: p("run-kv")}, bearer),
		"jwt":   vaultCred(config.VaultSource{JWT: "agent", Audience: "a", Policies: p("run-jwt")}, bearer),
		"hmac":  vaultCred(config.VaultSource{HMAC: "hook", Policies: p("run-hmac")}, config.Inject{HMAC: &config.HMAC{Header: "X", Parts: []string{"body"}}}),
		"totp":  vaultCred(config.VaultSource{TOTP: "vpn", Policies: p("run-totp")}, bearer),
		"pki":   vaultCred(config.VaultSource{PKI: "ca/sign/web", CommonName: "agent", Policies: p("run-pki")}, config.Inject{MTLS: &config.MTLS{}}),
		"aws":   vaultCred(config.VaultSource{AWS: "secret/aws", Policies: p("run-aws")}, config.Inject{SigV4: &config.SigV4{Region: "eu-central-1", Service: "s3"}}),
		"mq":    vaultCred(config.VaultSource{Read: "rabbit/creds/ro", Field: "password", Policies: p("run-mq")}, bearer),
		"local": local(config.LocalSource{Env: "A"}),
	}
}

// fill puts keys and values where the credentials of setupCreds look for them.
func fill(t *testing.T, s *vaulttest.Server, g *target) {
	t.Helper()
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(t, http.MethodPost, "rabbit/roles/ro", map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	s.Put(t, "secret", "github", map[string]any{"token": githubCanary})
	s.Put(t, "secret", "aws", map[string]any{"access_key": "AKIDEXAMPLE", "secret_key": "S3CR3T-CANARY-aws"})
	s.Must(t, http.MethodPost, "old/kv/one", map[string]any{"token": githubCanary})
	s.Must(t, http.MethodPost, "transit/keys/agent", map[string]any{"type": "ecdsa-p256"})
	s.Must(t, http.MethodPost, "transit/keys/hook", map[string]any{})
	s.Must(t, http.MethodPost, "totp/keys/vpn", map[string]any{"key": totpKey})
	s.Must(t, http.MethodPost, "ca/root/generate/internal", map[string]any{"common_name": "test", "key_type": "ec", "ttl": "1h"})
	s.Must(t, http.MethodPost, "ca/roles/web", map[string]any{"allow_any_name": true, "enforce_hostnames": false, "key_type": "ec", "client_flag": true, "generate_lease": true, "max_ttl": "30m"})
}

// What is printed is enough, and each part of it is needed: a check says which
// one is missing.
func TestSetupIsEnoughAndNamesWhatIsMissing(t *testing.T) {
	s := vaulttest.Start(t)
	v := &config.Vault{Address: s.Addr, TokenRole: vaulttest.TokenRole, Auth: config.Auth{
		Method: "approle", RoleIDFile: secretFile(t, "x"), SecretIDFile: secretFile(t, "x"),
	}}
	plan, err := newRig(t, v, setupCreds()).Setup()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, plan)
	g := newTarget(t)
	fill(t, s, g)
	check := func() map[string]SetupCheck {
		t.Helper()
		role, secretID := s.AppRole(t)
		v.Auth.RoleIDFile, v.Auth.SecretIDFile = secretFile(t, role), secretFile(t, secretID)
		r := newRig(t, v, setupCreds())
		out := map[string]SetupCheck{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, c := range r.CheckSetup(ctx, &journal{}) {
			if strings.Contains(c.Detail+c.Fix, "CANARY") {
				t.Fatal("I2 a check shows a value")
			}
			if old, ok := out[c.Name]; !ok || old.OK {
				out[c.Name] = c
			}
		}
		return out
	}
	good := check()
	for name, c := range good {
		if !c.OK {
			t.Errorf("%s: %s; fix: %s", name, c.Detail, c.Fix)
		}
	}
	if len(good) < 8+2+2 || len(g.names()) != 0 {
		t.Fatal(good, g.names())
	}
	for _, p := range plan.Policies {
		for line := range strings.Lines(p.HCL) {
			if strings.Contains(line, "revoke-self") || strings.Contains(line, "lookup-self") || strings.Contains(line, "ca/sign/web/*") {
				continue // for what goes wrong
			}
			s.Policy(t, p.Name, strings.Replace(p.HCL, line, "", 1)+"\n# "+p.Name)
			bad := slices.Collect(func(yield func(SetupCheck) bool) {
				for _, c := range check() {
					if !c.OK && !yield(c) {
						return
					}
				}
			})
			path := strings.Split(line, `"`)[1]
			if len(bad) == 0 || !slices.ContainsFunc(bad, func(c SetupCheck) bool { return strings.Contains(c.Fix, path) }) {
				t.Errorf("without %q: %+v", strings.TrimSpace(line), bad)
			}
			s.Policy(t, p.Name, p.HCL)
		}
	}
	s.Policy(t, "broker", plan.Policies[0].HCL+readRule("secret/data/github"))
	if c := check()["broker: secret/data/github"]; c.OK || !strings.Contains(c.Fix, "broker's policies") {
		t.Errorf("a broker that reads: %+v", c)
	}
}

func TestSetupOfEveryLogin(t *testing.T) {
	for want, a := range map[string]config.Auth{
		"vault write auth/jwt/role/ci role_type=jwt":               {Method: "jwt", Role: "ci", JWTFile: "/j"},
		"vault write auth/k8s/role/ci bound_service_account_names": {Method: "kubernetes", Role: "ci", Mount: "k8s"},
		"vault write auth/cert/certs/broker certificate=@'/a b'":   {Method: "cert", CertFile: "/a b", KeyFile: "/k"},
		"-field=token > '/it'\\''s'":                               {Method: "token_file", TokenFile: "/it's"},
	} {
		v := &config.Vault{Address: "https://vault.test", TokenRole: "r", Auth: a}
		plan, err := newRig(t, v, map[string]config.Credential{"github-read": githubCred()}).Setup()
		if err != nil || !strings.Contains(strings.Join(plan.Commands, "\n"), want) {
			t.Errorf("%s: %v %q", want, err, plan.Commands)
		}
	}
	if _, err := newRig(t, nil, nil).Setup(); err == nil {
		t.Error("no Vault: no error")
	}
}
