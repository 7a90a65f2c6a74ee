package broker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

// issued is a certificate with its key, in files.
type issued struct {
	cert     *x509.Certificate
	key      *ecdsa.PrivateKey
	crt, pem string
}

// issue makes a certificate; a nil parent makes it its own authority.
func issue(t *testing.T, name string, parent *issued) *issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signer, signKey := tmpl, key
	if parent == nil {
		tmpl.IsCA, tmpl.BasicConstraintsValid, tmpl.KeyUsage = true, true, x509.KeyUsageCertSign
	} else {
		signer, signKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, signer, key.Public(), signKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &issued{
		cert, key, secretFile(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		secretFile(t, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))),
	}
}

// TestLoginByCertificate: over TLS to an authority that the configuration names,
// with a client certificate that Vault's cert method knows.
func TestLoginByCertificate(t *testing.T) {
	ca := issue(t, "authority", nil)
	server, client, stranger := issue(t, "vault.test", ca), issue(t, "broker", ca), issue(t, "stranger", nil)
	s := vaulttest.StartTLS(t, server.crt, server.pem, ca.crt)
	s.Setup(t, githubCanary)
	s.Must(t, http.MethodPost, "sys/auth/cert", map[string]any{"type": "cert"})
	authority, err := os.ReadFile(ca.crt)
	if err != nil {
		t.Fatal(err)
	}
	s.Must(t, http.MethodPost, "auth/cert/certs/broker", map[string]any{
		"certificate": string(authority), "allowed_common_names": "broker", "token_policies": "broker", "token_period": "10m", "token_no_default_policy": true,
	})
	login := func(c *issued, caFile string) *rig {
		return newRig(t, &config.Vault{Address: s.Addr, CAFile: caFile, TokenRole: vaulttest.TokenRole, Auth: config.Auth{
			Method: "cert", CertFile: c.crt, KeyFile: c.pem, Role: "broker",
		}}, map[string]config.Credential{"github-read": githubCred()})
	}
	good := login(client, ca.crt)
	sess, _ := good.begin(t)
	if injected(t, grant(t, sess, "github-read")) != "Bearer "+githubCanary {
		t.Fatal("no value")
	}
	e := good.journal.list()
	if alive, data := s.Alive(t, e[0].Accessor); !alive || data["path"] != "auth/cert/login" {
		t.Fatal("not that login", data)
	}
	for name, r := range map[string]*rig{"a certificate of somebody else's": login(stranger, ca.crt), "an authority that did not sign Vault's": login(client, stranger.crt)} {
		sess, _ := r.begin(t)
		if _, err := sess.Grant(t.Context(), "github-read", issues); err == nil {
			t.Error(name, "is taken")
		}
	}
}

// TestLoginByJWT: a workload's token, made by another Vault's transit engine.
func TestLoginByJWT(t *testing.T) {
	s := startVault(t)
	s.Mount(t, "transit", "transit", nil)
	s.Must(t, http.MethodPost, "transit/keys/workload", map[string]any{"type": "ecdsa-p256"})
	// A workload's own broker gives it the token.
	maker := kindRig(t, s, map[string]config.Credential{"j": vaultCred(config.VaultSource{JWT: "workload", Audience: "vault", Subject: "ci"}, bearer)}, updateRule("transit/sign/workload/sha2-256"))
	sess, _ := maker.begin(t)
	token := injected(t, grant(t, sess, "j"))[len("Bearer "):]
	keys := s.Must(t, http.MethodGet, "transit/keys/workload", nil)["keys"].(map[string]any)
	s.Must(t, http.MethodPost, "sys/auth/jwt", map[string]any{"type": "jwt"})
	s.Must(t, http.MethodPost, "auth/jwt/config", map[string]any{"jwt_validation_pubkeys": []any{keys["1"].(map[string]any)["public_key"]}})
	s.Must(t, http.MethodPost, "auth/jwt/role/broker", map[string]any{
		"role_type": "jwt", "user_claim": "sub", "bound_subject": "ci", "bound_audiences": "vault", "token_policies": "broker", "token_period": "10m", "token_no_default_policy": true,
	})
	file := secretFile(t, token)
	r := newRig(t, &config.Vault{Address: s.Addr, TokenRole: vaulttest.TokenRole, Auth: config.Auth{Method: "jwt", Role: "broker", JWTFile: file}}, map[string]config.Credential{"github-read": githubCred()})
	run, _ := r.begin(t)
	if injected(t, grant(t, run, "github-read")) != "Bearer "+githubCanary {
		t.Fatal("no value")
	}
	end(t, run)
	login := r.journal.list()[0].Accessor
	if alive, data := s.Alive(t, login); !alive || data["path"] != "auth/jwt/login" {
		t.Fatal("not that login", data)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive, _ := s.Alive(t, login); alive {
		t.Fatal("the login is alive after Close")
	}
	bad := filepath.Join(filepath.Dir(file), "bad")
	if err := os.WriteFile(bad, []byte(token[:len(token)-4]+"AAAA"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = newRig(t, &config.Vault{Address: s.Addr, TokenRole: vaulttest.TokenRole, Auth: config.Auth{Method: "jwt", Role: "broker", JWTFile: bad}}, map[string]config.Credential{"github-read": githubCred()})
	run, _ = r.begin(t)
	_, err := run.Grant(t.Context(), "github-read", issues)
	refused(t, err, ReasonUnavailable)
}
