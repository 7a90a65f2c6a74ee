package broker

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"warder/internal/config"
	"warder/internal/secret"
)

// Kinds of credentials that can be granted.
const (
	KindKV      = "kv"
	KindRead    = "read"
	KindOIDC    = "oidc"
	KindPKI     = "pki"
	KindTOTP    = "totp"
	KindHMAC    = "hmac"
	KindAWS     = "aws"
	KindEnv     = "env"
	KindFile    = "file"
	KindCommand = "command"
	KindJWT     = "jwt"
)

// credential is a validated configuration with its source and binding.
type credential struct {
	name    string
	kind    string
	cfg     config.Credential
	source  source
	binding binding
	standIn map[string]standIn
}

// source fetches values. A source belongs to one credential and serves all runs.
type source interface {
	// fetch returns a value that satisfies checkValue, or an error whose text
	// may name paths but no value. It ends when ctx does.
	fetch(ctx context.Context, s *Session, requestID string) (*material, error)
}

// material is a fetched value and what is known about its life. One of value,
// cert and sign is set.
type material struct {
	value     secret.String
	user      secret.String    // of basic with username_field, or an AWS access key's id
	session   secret.String    // an AWS session token
	cert      *tls.Certificate // a client certificate with its key
	sign      signer
	expires   time.Time     // zero: static
	keep      time.Duration // longest time in the cache; 0 or less: for those who wait now
	leaseID   string
	accessor  string
	requestID string
	revocable bool
}

// signer makes the HMAC of data; requestID is that of the request, vaultID that of
// the call to Vault, if there was one.
type signer func(ctx context.Context, data []byte, requestID string) (mac []byte, vaultID string, err error)

func (m *material) empty() bool {
	return m == nil || (m.value.IsZero() && m.cert == nil && m.sign == nil)
}

// wipe overwrites what can be overwritten; a certificate's key is left to the
// garbage collector.
func (m *material) wipe() {
	m.value.Wipe()
	m.user.Wipe()
	m.session.Wipe()
}

func (c *credential) fromVault() bool { return c.cfg.Source.Vault != nil }

func (b *Broker) newCredential(name string, cfg config.Credential) (*credential, error) {
	if err := Validate(name, cfg); err != nil {
		return nil, err
	}
	c := &credential{name: name, cfg: cfg, standIn: map[string]standIn{}}
	c.binding = binding{methods: cfg.Methods, paths: cfg.Paths}
	for _, h := range cfg.Hosts {
		p, err := parseHost(h)
		if err != nil {
			return nil, fmt.Errorf("credentials.%s.hosts: %w", name, err)
		}
		c.binding.hosts = append(c.binding.hosts, p)
	}
	for env, template := range cfg.StandIn {
		s, err := parseStandIn(template)
		if err != nil {
			return nil, fmt.Errorf("credentials.%s.stand_in.%s: %w", name, env, err)
		}
		c.standIn[env] = s
	}
	if cfg.Source.Local != nil {
		return c, b.setLocalSource(c)
	}
	if b.vault == nil {
		return nil, fmt.Errorf("credentials.%s.source.vault: there is no vault section in the configuration", name)
	}
	return c, b.vault.setSource(c)
}
