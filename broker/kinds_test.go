package broker

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

// kindRig is a real Vault with one policy for the paths of a kind, and a broker
// that logs in by AppRole, so that its tokens have an entity.
func kindRig(t *testing.T, s *vaulttest.Server, creds map[string]config.Credential, rules ...string) *rig {
	t.Helper()
	s.Policy(t, "run-kind", strings.Join(rules, "\n"))
	for name, c := range creds {
		c.Source.Vault.Policies = []string{"run-base", "run-kind"}
		creds[name] = c
	}
	return newRig(t, appRole(t, s), creds)
}

func vaultCred(src config.VaultSource, slot config.Inject) config.Credential {
	return config.Credential{
		Source: config.Source{Vault: &src}, Inject: slot, Hosts: []string{"api.github.com"},
	}
}

var bearer = config.Inject{Header: "Authorization", Format: "Bearer {value}"}

func readRule(path string) string   { return `path "` + path + `" { capabilities = ["read"] }` }
func updateRule(path string) string { return `path "` + path + `" { capabilities = ["update"] }` }

func claimsOf(t *testing.T, token string) (head, claims map[string]any) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatal("not a JWT")
	}
	for i, out := range []*map[string]any{&head, &claims} {
		raw, err := base64.RawURLEncoding.DecodeString(parts[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, out); err != nil {
			t.Fatal(err)
		}
	}
	return head, claims
}

// jwtLogin is a second Vault that lets in who has a token that the first one
// signed: a verifier that is not ours.
func jwtLogin(t *testing.T, settings map[string]any, role map[string]any) func(token string) int {
	t.Helper()
	s := vaulttest.Start(t)
	s.Must(t, http.MethodPost, "sys/auth/jwt", map[string]any{"type": "jwt"})
	s.Must(t, http.MethodPost, "auth/jwt/config", settings)
	role["role_type"], role["user_claim"] = "jwt", "sub"
	s.Must(t, http.MethodPost, "auth/jwt/role/r", role)
	return func(token string) int {
		status, _ := s.Do(t, "", http.MethodPost, "auth/jwt/login", map[string]any{"role": "r", "jwt": token})
		return status
	}
}

func TestOIDCTokenIsAcceptedByAnotherVault(t *testing.T) {
	s := startVault(t)
	s.Must(t, http.MethodPost, "identity/oidc/config", map[string]any{"issuer": s.Addr})
	s.Must(t, http.MethodPost, "identity/oidc/key/k", map[string]any{"allowed_client_ids": "*", "algorithm": "ES256"})
	s.Must(t, http.MethodPost, "identity/oidc/role/agent", map[string]any{"key": "k", "ttl": "2m", "client_id": "warder-test"})
	r := kindRig(t, s, map[string]config.Credential{"o": vaultCred(config.VaultSource{OIDC: "agent"}, bearer)}, readRule("identity/oidc/token/agent"))
	login := jwtLogin(t,
		map[string]any{"jwks_url": s.Addr + "/v1/identity/oidc/.well-known/keys", "bound_issuer": s.Addr + "/v1/identity/oidc"},
		map[string]any{"bound_audiences": "warder-test"})

	sess, _ := r.begin(t)
	g := grant(t, sess, "o")
	token := strings.TrimPrefix(injected(t, g), "Bearer ")
	if status := login(token); status != http.StatusOK {
		t.Fatal("the token is not accepted", status)
	}
	if status := login(token[:len(token)-4] + "AAAA"); status == http.StatusOK {
		t.Fatal("the control is not refused")
	}
	_, claims := claimsOf(t, token)
	if life := g.Expires.Sub(r.clock.Now()); life <= 0 || life > 2*time.Minute || int64(claims["exp"].(float64))-g.Expires.Unix() > 60 { // the rig's clock stands still, Vault's does not
		t.Fatal("life", life)
	}
	if injected(t, grant(t, sess, "o")) != "Bearer "+token {
		t.Fatal("not from the cache")
	}
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusExpires || out[0].Kind != KindOIDC {
		t.Fatalf("%+v", out)
	}
}

func TestTransitJWTHasTheRunsClaimsAndIsAcceptedByAnotherVault(t *testing.T) {
	for alg, typ := range map[string]string{"ES256": "ecdsa-p256", "RS256": "rsa-2048", "EdDSA": "ed25519"} {
		t.Run(alg, func(t *testing.T) {
			s := startVault(t)
			s.Mount(t, "transit", "transit", nil)
			s.Must(t, http.MethodPost, "transit/keys/agent", map[string]any{"type": typ})
			s.Must(t, http.MethodPost, "transit/keys/agent/rotate", map[string]any{})
			c := vaultCred(config.VaultSource{JWT: "agent", Audience: "api.test", Issuer: "https://warder.test", Algorithm: alg, TTL: config.Duration(time.Minute)}, bearer)
			r := kindRig(t, s, map[string]config.Credential{"j": c}, updateRule("transit/sign/agent/*"), updateRule("transit/sign/agent"))
			keys := s.Must(t, http.MethodGet, "transit/keys/agent", nil)["keys"].(map[string]any)["2"].(map[string]any)
			pub := keys["public_key"].(string)
			if alg == "EdDSA" { // a bare key
				raw, _ := base64.StdEncoding.DecodeString(pub)
				der := append([]byte{0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00}, raw...)
				pub = string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
			}
			login := jwtLogin(t, map[string]any{"jwt_validation_pubkeys": pub, "jwt_supported_algs": alg},
				map[string]any{"bound_audiences": "api.test"})
			sess, _ := r.begin(t)
			g := grant(t, sess, "j")
			token := strings.TrimPrefix(injected(t, g), "Bearer ")
			if status := login(token); status != http.StatusOK {
				t.Fatal("the token is not accepted", status)
			}
			if status := login(token[:len(token)-4] + "AAAA"); status == http.StatusOK {
				t.Fatal("the control is not refused")
			}
			head, claims := claimsOf(t, token)
			if head["kid"] != "agent-v2" || head["alg"] != alg || claims["run_id"] != sess.run.ID || claims["sub"] != sess.run.ID ||
				claims["iss"] != "https://warder.test" || int64(claims["exp"].(float64)) != g.Expires.Unix() || claims["jti"] == "" {
				t.Fatal(head, claims)
			}
			if g.VaultRequestID == "" || g.Kind != KindJWT {
				t.Fatalf("%+v", g)
			}
			s.Must(t, http.MethodPost, "transit/keys/agent/rotate", map[string]any{})
			r.clock.add(55 * time.Second)
			if head, _ := claimsOf(t, strings.TrimPrefix(injected(t, grant(t, sess, "j")), "Bearer ")); head["kid"] != "agent-v3" {
				t.Fatal("the rotated key has the old id", head)
			}
			if out := end(t, sess); len(out) != 1 || out[0].Status != StatusExpires {
				t.Fatalf("%+v", out)
			}
		})
	}
}

const totpKey = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ" // RFC 6238, appendix B: "12345678901234567890"

func TestVaultTOTPIsNeverKept(t *testing.T) {
	s := startVault(t)
	s.Mount(t, "totp", "totp", nil)
	s.Must(t, http.MethodPost, "totp/keys/vpn", map[string]any{"key": totpKey, "algorithm": "SHA1"})
	audit := s.AuditFile(t)
	r := kindRig(t, s, map[string]config.Credential{"t": vaultCred(config.VaultSource{TOTP: "vpn"}, config.Inject{Form: "otp"})}, readRule("totp/code/vpn"))
	sess, _ := r.begin(t)
	for range 2 {
		before := time.Now().Unix() / 30
		g := grant(t, sess, "t")
		req := form(t, "user=me&otp=000000")
		if err := g.Inject(req); err != nil {
			t.Fatal(err)
		}
		raw, _ := io.ReadAll(req.Body)
		code := strings.TrimPrefix(string(raw), "user=me&otp=")
		key, _ := decodeTOTPKey(totpKey)
		good := false
		for step := before; step <= time.Now().Unix()/30; step++ {
			good = good || code == totp(key, step, 6, totpHashes["SHA1"])
		}
		if !good || req.ContentLength != int64(len(raw)) {
			t.Fatal("not the code of this step", string(raw))
		}
	}
	if n, _ := calls(t, audit, "totp/code/vpn"); n != 2 {
		t.Fatal(n, "calls for two requests")
	}
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusExpires || out[0].Kind != KindTOTP {
		t.Fatalf("%+v", out)
	}
}

func TestTransitHMACIsWhatVaultVerifies(t *testing.T) {
	s := startVault(t)
	s.Mount(t, "keys", "transit", nil)
	s.Must(t, http.MethodPost, "keys/keys/hook", map[string]any{})
	slot := config.Inject{HMAC: &config.HMAC{
		Header: "X-Signature", Format: "sha512={value}", Parts: []string{"method", "path", "timestamp", "body"}, TimestampHeader: "X-Timestamp",
	}}
	r := kindRig(t, s, map[string]config.Credential{"h": vaultCred(config.VaultSource{HMAC: "hook", Mount: "keys", Algorithm: "sha2-512"}, slot)}, updateRule("keys/hmac/hook/sha2-512"))
	sess, _ := r.begin(t)
	g := grant(t, sess, "h")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.github.com/hooks/a%20b?x=1", strings.NewReader(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header["x-signature"] = []string{"the client's own"}
	if err := g.Inject(req); err != nil {
		t.Fatal(err)
	}
	if raw, _ := io.ReadAll(req.Body); string(raw) != `{"a":1}` || req.ContentLength != 7 {
		t.Fatal("the body changed")
	}
	text := "POST\n/hooks/a%20b\n" + req.Header.Get("X-Timestamp") + "\n" + `{"a":1}`
	mac, err := hex.DecodeString(strings.TrimPrefix(req.Header.Get("X-Signature"), "sha512="))
	if err != nil || fieldsNamed(req.Header, "X-Signature") != 1 || g.VaultRequestID == "" {
		t.Fatal(err, req.Header)
	}
	verify := func(text string) any {
		return s.Must(t, http.MethodPost, "keys/verify/hook/sha2-512", map[string]any{
			"input": base64.StdEncoding.EncodeToString([]byte(text)), "hmac": "vault:v1:" + base64.StdEncoding.EncodeToString(mac),
		})["valid"]
	}
	if verify(text) != true || verify(text+"x") != false {
		t.Fatal("Vault does not know its own HMAC")
	}
	if !searched(g, hex.EncodeToString(mac)) {
		t.Fatal("I2 the signature is not searched in the answer")
	}
	sess.mu.Lock()
	sess.closed = true // as at the beginning of End
	sess.mu.Unlock()
	refused(t, g.Inject(req), ReasonUnavailable)
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusStatic || !strings.Contains(out[0].Detail, "never left Vault") {
		t.Fatalf("%+v", out)
	}
	if err := g.Inject(req); err == nil {
		t.Fatal("I7 signed after the end")
	}
}

// fieldsNamed counts the fields of a name in any case.
func fieldsNamed(h http.Header, name string) (n int) {
	for k := range h {
		if strings.EqualFold(k, name) {
			n++
		}
	}
	return n
}

func searched(g *Grant, want string) bool {
	for _, s := range g.Secrets() {
		if s.Reveal() == want {
			return true
		}
	}
	return false
}

// mtlsServer wants a client certificate of the authority in caPEM.
func mtlsServer(t *testing.T, caPEM string) *httptest.Server {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(caPEM)) {
		t.Fatal("no authority")
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

func askWith(t *testing.T, srv *httptest.Server, cert *tls.Certificate) (string, error) {
	t.Helper()
	cfg := srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return string(raw), err
}

func TestPKICertificateOfAKeyMadeHere(t *testing.T) {
	s := startVault(t)
	s.Mount(t, "pki", "pki", nil)
	ca := s.Must(t, http.MethodPost, "pki/root/generate/internal", map[string]any{"common_name": "test authority", "ttl": "1h", "key_type": "ec"})
	for role, lease := range map[string]bool{"plain": false, "leased": true} {
		s.Must(t, http.MethodPost, "pki/roles/"+role, map[string]any{
			"allow_any_name": true, "enforce_hostnames": false, "server_flag": false, "client_flag": true, "key_type": "ec", "max_ttl": "30m", "generate_lease": lease, "no_store": !lease,
		})
	}
	creds := map[string]config.Credential{}
	for _, role := range []string{"plain", "leased"} {
		creds[role] = vaultCred(config.VaultSource{PKI: "pki/sign/" + role, CommonName: "agent-{run}", TTL: config.Duration(5 * time.Minute)}, config.Inject{MTLS: &config.MTLS{}})
	}
	r := kindRig(t, s, creds, updateRule("pki/sign/plain"), updateRule("pki/sign/leased"))
	srv := mtlsServer(t, ca["certificate"].(string))
	if _, err := askWith(t, srv, &tls.Certificate{}); err == nil {
		t.Fatal("the server takes anybody")
	}
	sess, j := r.begin(t)
	for _, role := range []string{"plain", "leased"} {
		g := grant(t, sess, role)
		cert := g.ClientCertificate()
		if cert == nil || g.Kind != KindPKI || len(g.Secrets()) != 0 {
			t.Fatalf("%+v", g)
		}
		if name, err := askWith(t, srv, cert); err != nil || name != "agent-"+sess.run.ID {
			t.Fatal(name, err)
		}
		if life := g.Expires.Sub(r.clock.Now()); life <= 0 || life > 6*time.Minute { // the rig's clock stands still, Vault's does not
			t.Fatal("life", life)
		}
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.github.com/", nil)
		if err := g.Inject(req); err != nil || len(req.Header) != 0 {
			t.Fatal("something was put into the request", err)
		}
		if (g.LeaseID != "") != (role == "leased") {
			t.Fatal("lease", g.LeaseID)
		}
		r.clock.add(6 * time.Minute)
		if grant(t, sess, role).ClientCertificate() == cert {
			t.Fatal("a certificate at its end was handed out")
		}
		r.clock.add(-6 * time.Minute)
	}
	if e := j.list(); len(e) != 1 || len(e[0].LeaseIDs) == 0 {
		t.Fatalf("journal %+v", e)
	}
	out := end(t, sess)
	if len(out) != 2 || out[0].Name != "leased" || out[0].Status != StatusRevoked || out[1].Status != StatusExpires {
		t.Fatalf("%+v", out)
	}
}

func TestAnAnswerForAnotherKeyIsNoCertificate(t *testing.T) {
	other := httptest.NewTLSServer(nil)
	defer other.Close()
	foreign, _ := json.Marshal(certPEM(other.Certificate().Raw))
	for name, body := range map[string]string{
		"another key": `{"data":{"certificate":` + string(foreign) + `}}`,
		"none":        `{"data":{}}`,
		"no PEM":      `{"data":{"certificate":"x"}}`,
	} {
		f := newFake(t, map[string]http.HandlerFunc{"pki/sign/web": jsonAnswer(200, body)})
		c := vaultCred(config.VaultSource{PKI: "pki/sign/web", Policies: []string{"run-base"}}, config.Inject{MTLS: &config.MTLS{}})
		r := newRig(t, tokenFile(t, f.URL, "S3CR3T-CANARY-broker"), map[string]config.Credential{"p": c})
		sess, _ := r.begin(t)
		_, err := sess.Grant(t.Context(), "p", issues)
		if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Cause.Error(), "certificate") {
			t.Error(name, e)
		}
	}
}

func TestOddAnswersOfTransitRefuse(t *testing.T) {
	slot := config.Inject{HMAC: &config.HMAC{Header: "X-Sig", Parts: []string{"method"}}}
	for name, body := range map[string]string{
		"nothing":   `{"data":{}}`,
		"no prefix": `{"data":{"hmac":"AAAA","signature":"AAAA"}}`,
		"short":     `{"data":{"hmac":"vault:v1:AAAA","signature":"vault:v1:AAAA"}}`,
		"version 0": `{"data":{"hmac":"vault:v0:AAAA","signature":"vault:v0:AAAA"}}`,
		"zeros":     `{"data":{"hmac":"vault:v1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}}`,
	} {
		f := newFake(t, map[string]http.HandlerFunc{"transit/hmac/k/sha2-256": jsonAnswer(200, body), "transit/sign/k/sha2-256": jsonAnswer(200, body)})
		r := newRig(t, tokenFile(t, f.URL, "S3CR3T-CANARY-broker"), map[string]config.Credential{
			"h": vaultCred(config.VaultSource{HMAC: "k", Policies: []string{"run-base"}}, slot),
			"j": vaultCred(config.VaultSource{JWT: "k", Audience: "a", Policies: []string{"run-base"}}, bearer),
		})
		sess, _ := r.begin(t)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.github.com/", nil)
		refused(t, grant(t, sess, "h").Inject(req), ReasonUnavailable)
		if req.Header.Get("X-Sig") != "" {
			t.Error(name, "was injected")
		}
		_, err := sess.Grant(t.Context(), "j", issues)
		refused(t, err, ReasonUnavailable)
	}
}

func TestLeasedUserAndPasswordGoTogether(t *testing.T) {
	s := startVault(t)
	g := newTarget(t)
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(t, http.MethodPost, "rabbit/roles/ro", map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	c := vaultCred(config.VaultSource{Read: "rabbit/creds/ro", Field: "password"}, config.Inject{Basic: &config.Basic{UsernameField: "username"}})
	r := kindRig(t, s, map[string]config.Credential{"mq": c}, readRule("rabbit/creds/ro"))
	sess, _ := r.begin(t)
	gr := grant(t, sess, "mq")
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.github.com/", nil)
	if err := gr.Inject(req); err != nil {
		t.Fatal(err)
	}
	user, pass, ok := req.BasicAuth()
	if !ok || pass == "" || !slices.Equal(g.names(), []string{user}) || !searched(gr, user) || !searched(gr, pass) {
		t.Fatal("not the leased user", user, g.names())
	}
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusRevoked || len(g.names()) != 0 {
		t.Fatalf("%+v %v", out, g.names())
	}
}
