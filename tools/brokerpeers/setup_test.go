package brokerpeers

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/internal/vaulttest"
)

func serverTLS(t *testing.T, crt, key string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(crt, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

// setUpVault does what an operator would: engines, policies, login.
func (l *lab) setUpVault(t *testing.T) {
	t.Helper()
	v := l.vault
	v.Setup(t, staticPassword)
	v.KV(t, "old", 1)
	v.Must(t, http.MethodPost, "old/static", map[string]any{"password": staticPassword})
	v.Put(t, "secret", "s3", map[string]any{"access_key": s3Access, "secret_key": s3Secret})
	v.Put(t, "secret", "query", map[string]any{"key": queryKey})
	v.Mount(t, "rabbit", "rabbitmq", nil)
	v.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": "https://" + l.mq.addr, "username": l.mq.admin, "password": l.mq.password})
	v.Must(t, http.MethodPost, "rabbit/config/lease", map[string]any{"ttl": 600, "max_ttl": 3600})
	v.Must(t, http.MethodPost, "rabbit/roles/monitor", map[string]any{"tags": "monitoring", "vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	v.Mount(t, "database", "database", nil)
	v.Must(t, http.MethodPost, "database/config/db", map[string]any{
		"plugin_name": "postgresql-database-plugin", "allowed_roles": "ro", "username": "admin", "password": l.pg.pass,
		"connection_url": fmt.Sprintf("postgresql://{{username}}:{{password}}@127.0.0.1:%d/postgres?sslmode=verify-full&sslrootcert=%s", l.pg.port, filepath.Join(l.dir, "ca.pem")),
	})
	v.Must(t, http.MethodPost, "database/roles/ro", map[string]any{
		"db_name": "db", "default_ttl": "10m", "max_ttl": "1h",
		"creation_statements": `CREATE ROLE "{{name}}" WITH LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}';`,
	})
	v.Mount(t, "pki", "pki", nil)
	v.Must(t, http.MethodPost, "pki/root/generate/internal", map[string]any{"common_name": "peers clients", "key_type": "ec", "ttl": "24h"})
	v.Must(t, http.MethodPost, "pki/roles/agent", map[string]any{"allow_any_name": true, "enforce_hostnames": false, "key_type": "any", "max_ttl": "1h", "no_store": true})
	v.Mount(t, "totp", "totp", nil)
	v.Must(t, http.MethodPost, "totp/keys/vpn", map[string]any{"key": totpKey})
	v.Mount(t, "transit", "transit", nil)
	v.Must(t, http.MethodPost, "transit/keys/agent", map[string]any{"type": "ecdsa-p256"})
	v.Must(t, http.MethodPost, "transit/keys/hook", map[string]any{"type": "aes256-gcm96", "exportable": true})
	v.Must(t, http.MethodPost, "identity/oidc/key/agents", map[string]any{"allowed_client_ids": "*", "algorithm": "ES256"})
	v.Must(t, http.MethodPost, "identity/oidc/role/agent", map[string]any{"key": "agents", "client_id": "peers", "ttl": "5m"})
	v.Policy(t, "run-peers", `
path "secret/data/*" { capabilities = ["read"] }
path "old/*" { capabilities = ["read"] }
path "rabbit/creds/monitor" { capabilities = ["read"] }
path "database/creds/ro" { capabilities = ["read"] }
path "totp/code/vpn" { capabilities = ["read"] }
path "identity/oidc/token/agent" { capabilities = ["read"] }
path "pki/sign/agent" { capabilities = ["update"] }
path "transit/sign/agent/sha2-256" { capabilities = ["update"] }
path "transit/hmac/hook/sha2-256" { capabilities = ["update"] }
`)
	role, secretID := v.AppRole(t)
	write(t, filepath.Join(l.dir, "role-id"), role)
	write(t, filepath.Join(l.dir, "secret-id"), secretID)
	l.setUpJudge(t)
	if status, body := l.mq.do(t, http.MethodPut, l.mq.basic(), "/api/users/static", `{"password":"`+staticPassword+`","tags":"monitoring"}`); status != http.StatusCreated {
		t.Fatalf("RabbitMQ: %d %s", status, body)
	}
}

// setUpJudge has the second Vault take tokens of the first: identity tokens by its
// key set, those of transit by their public key.
func (l *lab) setUpJudge(t *testing.T) {
	t.Helper()
	l.trust(t, "oidc", map[string]any{"jwks_url": l.vault.Addr + "/v1/identity/oidc/.well-known/keys"}, "peers")
	keys, _ := l.vault.Must(t, http.MethodGet, "transit/keys/agent", nil)["keys"].(map[string]any)
	first, _ := keys["1"].(map[string]any)
	l.trust(t, "transit", map[string]any{"jwt_validation_pubkeys": []any{first["public_key"]}}, "judge")
}

// trust mounts a JWT login that takes tokens for one audience.
func (l *lab) trust(t *testing.T, mount string, cfg map[string]any, audience string) {
	t.Helper()
	l.judge.Must(t, http.MethodPost, "sys/auth/"+mount, map[string]any{"type": "jwt"})
	l.judge.Must(t, http.MethodPost, "auth/"+mount+"/config", cfg)
	l.judge.Must(t, http.MethodPost, "auth/"+mount+"/role/agent", map[string]any{
		"role_type": "jwt", "user_claim": "sub", "bound_audiences": audience, "token_policies": "default", "token_ttl": "1m",
	})
}

func (l *lab) vaultCA(t *testing.T) string {
	t.Helper()
	pem, _ := l.vault.Must(t, http.MethodGet, "pki/cert/ca", nil)["certificate"].(string)
	return pem
}

// exportedHMACKey is the key of transit's HMAC, in hex, for openssl.
func (l *lab) exportedHMACKey() string {
	req, err := http.NewRequest(http.MethodGet, l.vault.Addr+"/v1/transit/export/hmac-key/hook/1", nil)
	if err != nil {
		return ""
	}
	req.Header.Set("X-Vault-Token", l.vault.Root)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	var out struct {
		Data struct{ Keys map[string]string }
	}
	_ = json.Unmarshal(raw, &out)
	key, _ := base64.StdEncoding.DecodeString(out.Data.Keys["1"])
	return hex.EncodeToString(key)
}

// credential is one entry of the configuration: its source and slot, and where it goes.
type credential struct{ name, source, inject, host, standIn string }

// reflects reports that something of it is in the request: a client certificate is not.
func (c credential) reflects() bool { return c.host != mtlsHost }

const (
	mqHost, frontHost, mtlsHost  = "mq.peers.test", "verify.peers.test", "mtls.peers.test"
	judgeHost, s3Host, relayHost = "vault.peers.test", "s3.peers.test", "relay.peers.test"
)

func credentials() []credential {
	const p = ", policies: [run-peers]}}"
	basic := "{basic: {username: static}}"
	hook := "{hmac: {header: X-Signature, parts: [method, path, body]}}"
	return []credential{
		{"kv2", "{vault: {kv: secret/github, field: token" + p, basic, mqHost, ""},
		{"kv1", "{vault: {kv: old/static, version: 1, field: password" + p, basic, mqHost, ""},
		{"query", "{vault: {kv: secret/query, field: key" + p, "{query: key}", judgeHost, ""},
		{"rabbit", "{vault: {read: rabbit/creds/monitor, field: password" + p, "{basic: {username_field: username}}", mqHost, ""},
		{"rabbit-kept", "{vault: {read: rabbit/creds/monitor, field: password" + p, "{basic: {username_field: username}}", frontHost, ""},
		{"postgres", "{vault: {read: database/creds/ro, field: password" + p, "{basic: {username_field: username}}", frontHost, ""},
		{"pki", "{vault: {pki: pki/sign/agent, common_name: \"agent-{run}\"" + p, "{mtls: {}}", mtlsHost, ""},
		{"oidc", "{vault: {oidc: agent" + p, "{form: jwt}", judgeHost, ""},
		{"jwt", "{vault: {jwt: agent, audience: judge" + p, "{form: jwt}", judgeHost, ""},
		{"totp", "{vault: {totp: vpn" + p, "{header: X-Code}", frontHost, ""},
		{"hmac", "{vault: {hmac: hook" + p, hook, frontHost, ""},
		{
			"s3", "{vault: {aws: secret/s3" + p, "{sigv4: {region: eu-central-1, service: s3}}", s3Host,
			`{AWS_ACCESS_KEY_ID: "AKIA{random:16}", AWS_SECRET_ACCESS_KEY: "{random:40}"}`,
		},
		{"local-env", "{local: {env: LAB_STATIC}}", basic, mqHost, ""},
		{"local-file", "{local: {file: ./static}}", basic, mqHost, ""},
		{"local-command", "{local: {command: [/bin/cat, ./static]}}", basic, mqHost, ""},
		{"local-jwt", "{local: {jwt: {audience: judge, subject: agent, ttl: 5m}}}", "{form: jwt}", judgeHost, ""},
		{"local-pki", "{local: {pki: {ca_cert_file: ./client-ca.crt, ca_key_file: ./client-ca.key, common_name: \"local-{run}\", ttl: 10m}}}", "{mtls: {}}", mtlsHost, ""},
		{"local-totp", "{local: {totp: {key_file: ./totp-key}}}", "{header: X-Code}", frontHost, ""},
		{"local-hmac", "{local: {hmac: {key_file: ./hmac-key}}}", hook, frontHost, ""},
	}
}

// configure writes warder.yaml and a policy that allows each credential where it
// is bound to when its name is the one that the run offers.
func (l *lab) configure(t *testing.T, vault, auth, timeout string) {
	t.Helper()
	write(t, filepath.Join(l.dir, "static"), staticPassword)
	write(t, filepath.Join(l.dir, "totp-key"), totpKey)
	write(t, filepath.Join(l.dir, "hmac-key"), hmacKey)
	at := l.front.Listener.Addr().String()
	addr := map[string]string{frontHost: at, reflectHost: at}
	if l.mq != nil {
		addr[mqHost], addr[mtlsHost], addr[judgeHost], addr[s3Host] = l.mq.addr, l.nginx, l.nginx, l.s3
	}
	var hosts, allowed []string
	for h, a := range addr {
		hosts = append(hosts, fmt.Sprintf("%s: %q", h, a))
		allowed = append(allowed, fmt.Sprintf("%q", a))
	}
	var y strings.Builder
	fmt.Fprintf(&y, `version: 1
policy: {path: ./policies}
proxy:
  upstream: {ca_files: [./ca.pem], hosts: {%s}, allow_addresses: [%s]}
audit: {dir: ./audit}
vault:
  address: %s
  timeout: %s
  auth: %s
  token_role: %s
credentials:
`, strings.Join(hosts, ", "), strings.Join(allowed, ", "), vault, timeout, auth, vaulttest.TokenRole)
	for _, c := range credentials() {
		fmt.Fprintf(&y, "  %s:\n    source: %s\n    inject: %s\n    hosts: [%s, %s]\n", c.name, c.source, c.inject, c.host, reflectHost)
		if c.standIn != "" {
			fmt.Fprintf(&y, "    stand_in: %s\n", c.standIn)
		}
	}
	write(t, filepath.Join(l.dir, "warder.yaml"), y.String())
	write(t, filepath.Join(l.dir, "policies", "peers.rego"), `package warder.egress

# METADATA
# title: What the run is offered
allow contains {"rule": "offered", "credential": name} if {
	some name in input.credentials
	not input.request.headers["x-bare"]
}

# METADATA
# title: The same servers without a credential
allow contains {"rule": "bare"} if input.request.headers["x-bare"]
`)
	if err := os.MkdirAll(filepath.Join(l.dir, "cache"), 0o700); err != nil {
		t.Fatal(err)
	}
}
