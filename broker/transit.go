package broker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/vault/api"

	"warder/internal/identity"
	"warder/internal/secret"
)

// hmacSize maps the algorithms of transit's HMAC, as they stand in its path, to
// the length of their values in bytes.
var hmacSize = map[string]int{"sha2-256": 32, "sha2-384": 48, "sha2-512": 64}

func hmacAlgorithm(s string) string {
	if s == "" {
		return "sha2-256"
	}
	return s
}

// jwtAlgorithms maps the name of an algorithm (RFC 7518, RFC 8037) to the hash in
// transit's path and to what its request says.
var jwtAlgorithms = map[string]struct {
	hash string
	body map[string]any
}{
	"ES256": {"/sha2-256", map[string]any{"marshaling_algorithm": "jws"}},
	"RS256": {"/sha2-256", map[string]any{"signature_algorithm": "pkcs1v15", "marshaling_algorithm": "jws"}},
	"EdDSA": {"", map[string]any{"marshaling_algorithm": "jws"}},
}

func jwtAlgorithm(s string) string {
	if s == "" {
		return "ES256"
	}
	return s
}

// transitJWT remembers the version of the key that signed last: it stands in the
// token's head, so it has to be known before.
type transitJWT struct {
	mu      sync.Mutex
	version int64
}

// signJWT has Vault sign the claims of this run. Its key id is KEY-vN, N being the
// version of the key in Vault.
func (c *vaultSource) signJWT(ctx context.Context, s *Session, t *runToken, correlation string) (*material, error) {
	ttl := time.Duration(c.cfg.TTL)
	if ttl == 0 {
		ttl = defaultJWTTTL
	}
	issuer, subject := c.cfg.Issuer, c.cfg.Subject
	if issuer == "" {
		issuer = jwtIssuer
	}
	if subject == "" {
		subject = s.run.ID
	}
	now := c.v.conn.clock()
	expires := now.Add(ttl).Truncate(time.Second)
	claims, err := json.Marshal(map[string]any{
		"iss": issuer, "aud": c.cfg.Audience, "sub": subject, "jti": identity.NewID(), "run_id": s.run.ID,
		"iat": now.Unix(), "nbf": now.Add(-jwtNotBack).Unix(), "exp": expires.Unix(),
	})
	if err != nil {
		return nil, errors.New("the claims cannot be encoded")
	}
	c.jwt.mu.Lock()
	version := max(c.jwt.version, 1)
	c.jwt.mu.Unlock()
	for range 3 { // the key may be rotated between two calls
		head := fmt.Sprintf(`{"alg":%q,"kid":%q,"typ":"JWT"}`, jwtAlgorithm(c.cfg.Algorithm), c.cfg.JWT+"-v"+strconv.FormatInt(version, 10))
		signed := base64url([]byte(head)) + "." + base64url(claims)
		sig, by, sec, err := c.transitSign(ctx, t, signed, correlation)
		if err != nil {
			return nil, err
		}
		if by == version {
			token := signed + "." + sig
			if err := checkValue(token); err != nil {
				return nil, fmt.Errorf("vault: POST %s: %w", c.path, err)
			}
			return &material{
				value: secret.New(token), accessor: t.accessor, requestID: sec.RequestID, expires: expires, keep: expires.Sub(now),
			}, nil
		}
		version = by
		c.jwt.mu.Lock()
		c.jwt.version = by
		c.jwt.mu.Unlock()
	}
	return nil, fmt.Errorf("vault: POST %s: the version of the key changed three times", c.path)
}

func (c *vaultSource) transitSign(ctx context.Context, t *runToken, signed, correlation string) (sig string, version int64, sec *api.Secret, err error) {
	alg := jwtAlgorithms[jwtAlgorithm(c.cfg.Algorithm)]
	body := map[string]any{"input": base64.StdEncoding.EncodeToString([]byte(signed))}
	for k, v := range alg.body {
		body[k] = v
	}
	sec, err = c.v.conn.do(ctx, vaultCall{method: http.MethodPost, path: c.path + alg.hash, token: t.token, body: body, correlation: correlation})
	if err != nil {
		return "", 0, nil, err
	}
	if sec == nil {
		return "", 0, nil, &vaultError{class: classNotFound, op: c.op(), text: "an empty answer"}
	}
	version, sig, err = transitValue(sec.Data, "signature")
	if err == nil {
		var raw []byte
		if raw, err = base64.RawURLEncoding.DecodeString(strings.TrimRight(sig, "=")); err == nil && len(raw) < 64 {
			err = errors.New("a short signature")
		}
	}
	if err != nil {
		return "", 0, nil, fmt.Errorf("vault: %s: not a signature of transit's; hint: the key's type must suit algorithm %s", c.op(), jwtAlgorithm(c.cfg.Algorithm))
	}
	return strings.TrimRight(sig, "="), version, sec, nil
}

// transitValue takes "vault:vN:TEXT" apart.
func transitValue(data map[string]any, field string) (version int64, text string, err error) {
	s, _ := data[field].(string)
	parts := strings.SplitN(s, ":", 3)
	if len(parts) != 3 || parts[0] != "vault" || !strings.HasPrefix(parts[1], "v") {
		return 0, "", errors.New("not a value of transit's")
	}
	version, err = strconv.ParseInt(parts[1][1:], 10, 64)
	if err != nil || version < 1 || parts[2] == "" {
		return 0, "", errors.New("not a value of transit's")
	}
	return version, parts[2], nil
}

// signWith returns the signer of one run: one call to Vault for each request, as
// the key never leaves it.
func (c *vaultSource) signWith(s *Session) signer {
	return func(_ context.Context, data []byte, requestID string) (mac []byte, vaultID string, err error) {
		if !s.enter() {
			return nil, "", errors.New("the run has ended")
		}
		defer s.work.Done()
		correlation := s.correlation(requestID)
		// The session's context, so that a token that is made here is never lost.
		err = c.withToken(s.ctx, s, correlation, func(t *runToken) error {
			sec, err := c.v.conn.do(s.ctx, vaultCall{
				method: http.MethodPost, path: c.path, token: t.token, correlation: correlation,
				body: map[string]any{"input": base64.StdEncoding.EncodeToString(data)},
			})
			if err != nil {
				return err
			}
			if sec == nil {
				return &vaultError{class: classNotFound, op: c.op(), text: "an empty answer"}
			}
			_, text, err := transitValue(sec.Data, "hmac")
			if err == nil {
				mac, err = base64.StdEncoding.DecodeString(text)
			}
			if err != nil || len(mac) != hmacSize[hmacAlgorithm(c.cfg.Algorithm)] || bytes.Equal(mac, make([]byte, len(mac))) {
				mac = nil
				return fmt.Errorf("vault: %s: not an HMAC of transit's", c.op())
			}
			vaultID = sec.RequestID
			return nil
		})
		return mac, vaultID, err
	}
}
