package broker

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
)

// benchKinds sets a Vault up and returns one credential of each kind.
func benchKinds(b testing.TB) *Broker {
	b.Helper()
	s := startVault(b)
	g := newTarget(b)
	s.Mount(b, "rabbit", "rabbitmq", nil)
	s.Must(b, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(b, http.MethodPost, "rabbit/roles/ro", map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	for _, engine := range []string{"transit", "totp", "pki"} {
		s.Mount(b, engine, engine, nil)
	}
	const key = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
	s.Must(b, http.MethodPost, "transit/keys/agent", map[string]any{"type": "ecdsa-p256"})
	s.Must(b, http.MethodPost, "transit/keys/hook", map[string]any{})
	s.Must(b, http.MethodPost, "totp/keys/vpn", map[string]any{"key": key})
	s.Must(b, http.MethodPost, "pki/root/generate/internal", map[string]any{"common_name": "bench", "key_type": "ec"})
	s.Must(b, http.MethodPost, "pki/roles/agent", map[string]any{"allow_any_name": true, "enforce_hostnames": false, "key_type": "any", "no_store": true})
	s.Must(b, http.MethodPost, "identity/oidc/key/k", map[string]any{"allowed_client_ids": "*", "algorithm": "ES256"})
	s.Must(b, http.MethodPost, "identity/oidc/role/agent", map[string]any{"key": "k", "ttl": "5m", "client_id": "bench"})
	s.Put(b, "secret", "aws", map[string]any{"access_key": "AKIDEXAMPLE", "secret_key": "S3CR3T-CANARY-aws"})
	s.Policy(b, "run-bench", `path "*" { capabilities = ["read", "update"] }`)

	hmacSlot := config.Inject{HMAC: &config.HMAC{Header: "X-Sig", Parts: []string{"method", "path"}}}
	sigv4 := config.Inject{SigV4: &config.SigV4{Region: "eu-central-1", Service: "s3"}}
	mtls := config.Inject{MTLS: &config.MTLS{}}
	creds := map[string]config.Credential{}
	for kind, c := range map[string]struct {
		src  config.VaultSource
		slot config.Inject
	}{
		"kv":   {config.VaultSource{KV: "secret/github", Field: "token"}, bearer},
		"read": {config.VaultSource{Read: "rabbit/creds/ro", Field: "password"}, config.Inject{Basic: &config.Basic{UsernameField: "username"}}},
		"oidc": {config.VaultSource{OIDC: "agent"}, bearer},
		"jwt":  {config.VaultSource{JWT: "agent", Audience: "bench"}, bearer},
		"pki":  {config.VaultSource{PKI: "pki/sign/agent"}, mtls},
		"totp": {config.VaultSource{TOTP: "vpn"}, bearer},
		"hmac": {config.VaultSource{HMAC: "hook"}, hmacSlot},
		"aws":  {config.VaultSource{AWS: "secret/aws"}, sigv4},
	} {
		v := vaultCred(c.src, c.slot)
		v.Source.Vault.Policies = []string{"run-bench"}
		creds[kind] = v
	}
	local := func(src config.LocalSource, slot config.Inject) config.Credential {
		return config.Credential{Source: config.Source{Local: &src}, Inject: slot, Hosts: []string{"api.github.com"}}
	}
	crt, caKey := benchCA(b)
	creds["local-env"] = local(config.LocalSource{Env: "BENCH"}, bearer)
	creds["local-file"] = local(config.LocalSource{File: secretFile(b, "S3CR3T-CANARY-file")}, bearer)
	creds["local-command"] = local(config.LocalSource{Command: []string{"/bin/echo", "S3CR3T-CANARY-command"}}, bearer)
	creds["local-jwt"] = local(config.LocalSource{JWT: &config.LocalJWT{Audience: "bench"}}, bearer)
	creds["local-pki"] = local(config.LocalSource{PKI: &config.LocalPKI{CACertFile: crt, CAKeyFile: caKey, CommonName: "bench"}}, mtls)
	creds["local-totp"] = local(config.LocalSource{TOTP: &config.LocalTOTP{KeyFile: secretFile(b, key)}}, bearer)
	creds["local-hmac"] = local(config.LocalSource{HMAC: &config.LocalHMAC{KeyFile: secretFile(b, "S3CR3T-CANARY-hmac")}}, hmacSlot)

	s.AuditFile(b)
	config := secretFile(b, "version: 1")
	br, err := New(Options{
		Vault: appRole(b, s), Credentials: creds, StateDir: b.TempDir(), Journal: &journal{}, ConfigFile: config,
		Getenv: func(string) (string, bool) { return "S3CR3T-CANARY-env", true },
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := br.Close(ctx); err != nil {
			b.Error(err)
		}
	})
	return br
}

func benchCA(b testing.TB) (crt, keyFile string) {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		b.Fatal(err)
	}
	return secretFile(b, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		secretFile(b, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
}

func benchBegin(b *testing.B, br *Broker) *Session {
	b.Helper()
	s, err := br.Begin(identity.Run{ID: identity.NewRunID()}, nil, &journal{})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// benchRequest is what the broker adds to one request.
func benchRequest(b *testing.B, s *Session, kind string, req *http.Request) {
	g, err := s.Grant(b.Context(), kind, issues)
	if err == nil {
		err = g.Inject(req)
	}
	if err != nil {
		b.Fatal(kind, err)
	}
}

// BenchmarkCredential measures, for each kind, what the broker adds to a request
// (Grant and Inject): when the value is there (hit), when it has to be fetched
// (miss), and when the run's token has to be made as well (first).
func BenchmarkCredential(b *testing.B) {
	br := benchKinds(b)
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "https://api.github.com/repos/acme/x/issues", nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, kind := range slices.Sorted(maps.Keys(br.creds)) {
		b.Run("hit/"+kind, func(b *testing.B) {
			s := benchBegin(b, br)
			defer s.End(context.Background())
			benchRequest(b, s, kind, req)
			for b.Loop() {
				benchRequest(b, s, kind, req)
			}
		})
		b.Run("miss/"+kind, func(b *testing.B) {
			s := benchBegin(b, br)
			defer s.End(context.Background())
			e := s.entries[kind]
			benchRequest(b, s, kind, req)
			for b.Loop() {
				e.mu.Lock()
				e.retire()
				e.mu.Unlock()
				benchRequest(b, s, kind, req)
			}
		})
		b.Run("first/"+kind, func(b *testing.B) {
			for b.Loop() {
				s := benchBegin(b, br)
				benchRequest(b, s, kind, req)
				b.StopTimer()
				s.End(context.Background())
				b.StartTimer()
			}
		})
	}
}
