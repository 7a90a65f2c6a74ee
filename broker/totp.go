package broker

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // RFC 6238 and the apps that show codes have it as the default
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"strings"
	"time"

	"warder/internal/config"
	"warder/internal/secret"
)

const (
	totpPeriod = 30 * time.Second
	totpDigits = 6
)

var totpHashes = map[string]func() hash.Hash{"": sha1.New, "SHA1": sha1.New, "SHA256": sha256.New, "SHA512": sha512.New}

// totpSource makes codes (RFC 6238) from a key in a file.
type totpSource struct {
	cfg    config.LocalTOTP
	config string
	clock  func() time.Time
}

func (s totpSource) fetch(context.Context, *Session, string) (*material, error) {
	raw, err := keyFile(s.cfg.KeyFile, s.config)
	if err != nil {
		return nil, err
	}
	defer clear(raw)
	key, err := decodeTOTPKey(string(raw))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.cfg.KeyFile, err)
	}
	defer clear(key)
	period := time.Duration(s.cfg.Period)
	if period == 0 {
		period = totpPeriod
	}
	digits := s.cfg.Digits
	if digits == 0 {
		digits = totpDigits
	}
	now := s.clock()
	step := now.Unix() / int64(period/time.Second)
	end := time.Unix((step+1)*int64(period/time.Second), 0)
	// Never kept: the next request may fall into the next step.
	return &material{value: secret.New(totp(key, step, digits, totpHashes[s.cfg.Algorithm])), expires: end}, nil
}

// decodeTOTPKey reads Base32 (RFC 4648) as people write it: in either case, with
// spaces, with or without padding.
func decodeTOTPKey(s string) ([]byte, error) {
	s = strings.ToUpper(strings.NewReplacer(" ", "", "-", "", "=", "").Replace(strings.TrimSpace(s)))
	key, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(s)
	if err != nil || len(key) < 10 {
		return nil, errors.New("not a key in Base32 of at least 16 characters")
	}
	return key, nil
}

// totp is HOTP of a step (RFC 4226, section 5.3; RFC 6238, section 4.2).
func totp(key []byte, step int64, digits int, h func() hash.Hash) string {
	mac := hmac.New(h, key)
	_ = binary.Write(mac, binary.BigEndian, step)
	sum := mac.Sum(nil)
	at := sum[len(sum)-1] & 0x0f
	n := binary.BigEndian.Uint32(sum[at:at+4]) & 0x7fffffff
	mod := uint32(1)
	for range digits {
		mod *= 10
	}
	return fmt.Sprintf("%0*d", digits, n%mod)
}

var hmacHashes = map[string]func() hash.Hash{"sha2-256": sha256.New, "sha2-384": sha512.New384, "sha2-512": sha512.New}

// hmacSource signs with a key from a file, which is read for each use of it.
type hmacSource struct {
	cfg    config.LocalHMAC
	config string
}

func (s hmacSource) fetch(context.Context, *Session, string) (*material, error) {
	raw, err := keyFile(s.cfg.KeyFile, s.config)
	if err != nil {
		return nil, err
	}
	m, err := valueOf(raw, s.cfg.KeyFile, fileKeep)
	if err != nil {
		return nil, err
	}
	key := m.value
	m.sign = func(_ context.Context, data []byte, _ string) ([]byte, string, error) {
		k := []byte(key.Reveal())
		defer clear(k)
		if len(k) == 0 { // wiped: the run has ended
			return nil, "", errors.New("the run has ended")
		}
		mac := hmac.New(hmacHashes[hmacAlgorithm(s.cfg.Algorithm)], k)
		mac.Write(data)
		return mac.Sum(nil), "", nil
	}
	return m, nil
}

// keyFile reads a key that the configuration file `named` names.
func keyFile(path, named string) ([]byte, error) {
	if named != "" {
		if err := config.CheckOwned(named); err != nil {
			return nil, fmt.Errorf("the configuration names a file, but %w", err)
		}
	}
	return readSecretFile(path)
}
