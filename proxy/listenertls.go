package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// CertificateOf gives what Client.Certificate holds of a certificate (PEM).
func CertificateOf(text []byte) ([sha256.Size]byte, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return [sha256.Size]byte{}, errors.New("proxy: client: no certificate (PEM)")
	}
	if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("proxy: client: %w", err)
	}
	return sha256.Sum256(block.Bytes), nil
}

// clientTLS is how the listener itself is spoken to over TLS; nil without a CA
// that its callers could trust. The certificate of a caller is the very one that
// the configuration names: no authority can make another.
func (l *lobby) clientTLS() *tls.Config {
	if l.o.CA == nil {
		return nil
	}
	m := newMinter(l.o.CA, l.p.leafKey, l.p.clock)
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1", "http/1.0"}, ClientAuth: tls.RequestClientCert,
		SessionTicketsDisabled: true, Time: l.p.clock,
		GetCertificate: func(h *tls.ClientHelloInfo) (cert *tls.Certificate, err error) {
			defer recoverTo(&err, "certificate", l.p.panicked)
			host, _, err := canonicalHost(h.ServerName)
			if err != nil {
				host, _, err = canonicalHost(hostOf(h.Conn.LocalAddr()))
			}
			if err != nil {
				return nil, err
			}
			return m.leaf(host)
		},
	}
}

// openListenerTLS ends the TLS that the caller speaks with the proxy itself.
func (c *clientConn) openListenerTLS(pre *prefixConn) (*prefixConn, *refusal) {
	l := c.run.lobby
	ctx, cancel := context.WithTimeout(c.run.ctx, c.p.limits.HandshakeTimeout)
	defer cancel()
	tc := tls.Server(pre, l.tls)
	if err := tc.HandshakeContext(ctx); err != nil {
		f := badRequest("the TLS handshake with the proxy was not completed")
		f.cause = err.Error()
		return nil, f
	}
	if certs := tc.ConnectionState().PeerCertificates; len(certs) > 0 {
		c.client = l.byCertificate(certs[0])
	}
	first := make([]byte, 1024)
	n, err := readWithin(tc, first, c.p.limits.FirstByteTimeout)
	if n == 0 {
		f := badRequest("closed before a whole request")
		f.cause = fmt.Sprint(err)
		return nil, f
	}
	return &prefixConn{Conn: tc, head: first[:n], arr: &c.arr}, nil
}

// byCertificate knows a caller whose handshake proved that it holds the key.
func (l *lobby) byCertificate(cert *x509.Certificate) Client {
	now := l.p.clock()
	if now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		return Client{}
	}
	sum := sha256.Sum256(cert.Raw)
	for _, c := range l.known() {
		if c.Certificate == sum {
			return c
		}
	}
	return Client{}
}
