package broker

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"strings"
	"time"

	"warder/internal/config"
)

const (
	defaultCertTTL = 10 * time.Minute
	maxCertTTL     = 24 * time.Hour
	certNotBack    = 30 * time.Second // notBefore lies this much back, as Vault has it
	runMark        = "{run}"
)

func commonName(template, run string) string {
	if template == "" {
		return run
	}
	return strings.ReplaceAll(template, runMark, run)
}

// signCSR makes a key here and has Vault sign it; the key leaves this process in
// no form.
func (c *vaultSource) signCSR(ctx context.Context, s *Session, t *runToken, correlation string) (*material, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	name := commonName(c.cfg.CommonName, s.run.ID)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		return nil, err
	}
	ttl := time.Duration(c.cfg.TTL)
	if ttl == 0 {
		ttl = defaultCertTTL
	}
	sec, err := c.v.conn.do(ctx, vaultCall{
		method: http.MethodPost, path: c.path, token: t.token, correlation: correlation,
		body: map[string]any{
			"csr":         string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})),
			"common_name": name, "ttl": ttl.String(),
		},
	})
	if err != nil {
		return nil, err
	}
	m, err := c.lease(ctx, s, t, sec)
	if err != nil {
		return nil, err
	}
	text, _ := sec.Data["certificate"].(string)
	chain, _ := sec.Data["ca_chain"].([]any)
	if m.cert, err = clientPair(key, text, chain); err != nil {
		return nil, fmt.Errorf("vault: %s: %w", c.op(), err)
	}
	m.revocable = m.leaseID != ""
	c.setCertLife(m, t)
	return m, nil
}

// setCertLife: until the certificate ends; a leased one is revoked with its token.
func (c *vaultSource) setCertLife(m *material, t *runToken) {
	m.expires = m.cert.Leaf.NotAfter
	if m.leaseID != "" && t.notAfter.Before(m.expires) {
		m.expires = t.notAfter
	}
	m.keep = m.expires.Sub(c.v.conn.clock())
}

// clientPair joins a key of ours with the certificate that was made for it.
func clientPair(key *ecdsa.PrivateKey, text string, chain []any) (*tls.Certificate, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no certificate in the answer")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, errors.New("the certificate cannot be read")
	}
	if pub, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !pub.Equal(key.Public()) {
		return nil, errors.New("the certificate is for another key")
	}
	pair := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, c := range chain {
		text, _ := c.(string)
		block, _ := pem.Decode([]byte(text))
		if block == nil {
			continue
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, errors.New("the chain cannot be read")
		}
		if string(ca.RawSubject) != string(ca.RawIssuer) { // the server has the root itself
			pair.Certificate = append(pair.Certificate, ca.Raw)
		}
	}
	return pair, nil
}

// localPKI signs client certificates with an authority from files of the caller's.
type localPKI struct {
	cfg    config.LocalPKI
	config string
	clock  func() time.Time
}

func (p localPKI) fetch(_ context.Context, s *Session, _ string) (*material, error) {
	if p.config != "" {
		if err := config.CheckOwned(p.config); err != nil {
			return nil, fmt.Errorf("the configuration names a file, but %w", err)
		}
	}
	ca, signer, err := p.authority()
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	ttl := time.Duration(p.cfg.TTL)
	if ttl == 0 {
		ttl = defaultCertTTL
	}
	now := p.clock()
	end := now.Add(ttl).Truncate(time.Second)
	if ca.NotAfter.Before(end) {
		end = ca.NotAfter
	}
	if !end.After(now) {
		return nil, errors.New("the authority's certificate has expired")
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: pkix.Name{CommonName: commonName(p.cfg.CommonName, s.run.ID)},
		NotBefore: now.Add(-certNotBack), NotAfter: end, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}, ca, key.Public(), signer)
	if err != nil {
		return nil, errors.New("the authority cannot sign: its certificate and its key do not belong together, or it is none")
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pair := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
	if string(ca.RawSubject) != string(ca.RawIssuer) {
		pair.Certificate = append(pair.Certificate, ca.Raw)
	}
	return &material{cert: pair, expires: end, keep: end.Sub(now)}, nil
}

func (p localPKI) authority() (*x509.Certificate, crypto.Signer, error) {
	raw, err := readSecretFile(p.cfg.CAKeyFile)
	if err != nil {
		return nil, nil, err
	}
	defer clear(raw)
	cert, err := os.ReadFile(p.cfg.CACertFile)
	if err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(cert, raw)
	if err != nil {
		return nil, nil, errors.New("the authority's certificate and its key do not belong together")
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, nil, fmt.Errorf("%s: not the certificate of an authority", p.cfg.CACertFile)
	}
	return pair.Leaf, signer, nil
}
