package broker

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
	"warder/internal/secret"
)

const (
	jwtIssuer  = "warder"
	jwtNotBack = 10 * time.Second // nbf lies this much back, for clocks that are slow
)

// jwtSource signs ES256 JWTs (RFC 7519, RFC 7518) with a key of its own:
// StateDir/keys/NAME.pem, PKCS #8, made at first use.
type jwtSource struct {
	path    string
	cfg     config.LocalJWT
	clock   func() time.Time
	ttl     time.Duration
	mu      sync.Mutex
	private *ecdsa.PrivateKey
}

func newJWTSource(name string, cfg config.LocalJWT, o Options) *jwtSource {
	ttl := time.Duration(cfg.TTL)
	if ttl == 0 {
		ttl = defaultJWTTTL
	}
	return &jwtSource{path: filepath.Join(o.StateDir, "keys", name+".pem"), cfg: cfg, clock: o.Clock, ttl: ttl}
}

func (s *jwtSource) fetch(_ context.Context, run *Session, _ string) (*material, error) {
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	now := s.clock()
	expires := now.Add(s.ttl).Truncate(time.Second)
	subject := s.cfg.Subject
	if subject == "" {
		subject = run.run.ID
	}
	token, err := signES256(key, map[string]any{
		"iss": jwtIssuer, "aud": s.cfg.Audience, "sub": subject, "jti": identity.NewID(), "run_id": run.run.ID,
		"iat": now.Unix(), "nbf": now.Add(-jwtNotBack).Unix(), "exp": expires.Unix(),
	})
	if err != nil {
		return nil, err
	}
	return &material{value: secret.New(token), expires: expires, keep: expires.Sub(now)}, nil
}

// JWKS returns the public key set (RFC 7517) of a local jwt credential, making
// its key when there is none yet.
func (b *Broker) JWKS(name string) ([]byte, error) {
	c, ok := b.creds[name]
	if !ok {
		return nil, fmt.Errorf("broker: jwks: credential %q is not configured", name)
	}
	s, ok := c.source.(*jwtSource)
	if !ok {
		return nil, fmt.Errorf("broker: jwks: credential %q is of kind %s: only a local jwt has a key set", name, c.kind)
	}
	key, err := s.key()
	if err != nil {
		return nil, fmt.Errorf("broker: jwks: %s: %w", name, err)
	}
	jwk, kid, err := publicJWK(&key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("broker: jwks: %s: %w", name, err)
	}
	jwk["kid"], jwk["use"], jwk["alg"] = kid, "sig", "ES256"
	return json.Marshal(map[string]any{"keys": []any{jwk}})
}

func (s *jwtSource) key() (*ecdsa.PrivateKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.private != nil {
		return s.private, nil
	}
	raw, err := readSecretFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = createKey(s.path); err == nil {
			raw, err = readSecretFile(s.path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	defer clear(raw)
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("signing key: %s: not a PEM private key", s.path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("signing key: %s: not a PKCS #8 key", s.path)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("signing key: %s: not a P-256 key", s.path)
	}
	s.private = key
	return key, nil
}

// createKey makes the file whole or not at all. When another process was faster,
// its key stands.
func createKey(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".key-*") // 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = tmp.Write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// publicJWK returns the members of RFC 7518, section 6.2, and the key's SHA-256
// thumbprint (RFC 7638).
func publicJWK(pub *ecdsa.PublicKey) (jwk map[string]any, kid string, err error) {
	point, err := pub.Bytes() // 4 || X || Y (SEC 1, section 2.3.3)
	if err != nil {
		return nil, "", err
	}
	half := (len(point) - 1) / 2
	x, y := base64url(point[1:1+half]), base64url(point[1+half:])
	sum := sha256.Sum256(fmt.Appendf(nil, `{"crv":"P-256","kty":"EC","x":"%s","y":"%s"}`, x, y))
	return map[string]any{"kty": "EC", "crv": "P-256", "x": x, "y": y}, base64url(sum[:]), nil
}

func signES256(key *ecdsa.PrivateKey, claims map[string]any) (string, error) {
	_, kid, err := publicJWK(&key.PublicKey)
	if err != nil {
		return "", err
	}
	head, err := json.Marshal(map[string]string{"alg": "ES256", "typ": "JWT", "kid": kid})
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed := base64url(head) + "." + base64url(body)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return "", err
	}
	sig := make([]byte, 64) // R || S (RFC 7518, section 3.4)
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	return signed + "." + base64url(sig), nil
}

func base64url(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
