package proxy

import (
	"container/list"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// CA signs the certificates that interception shows to a run. A run's CA exists
// only in memory; its key is never written anywhere.
type CA struct {
	cert *x509.Certificate
	der  []byte
	key  crypto.Signer
}

const (
	caLife      = 30 * 24 * time.Hour // far beyond the longest run
	leafLife    = 24 * time.Hour
	backdate    = time.Hour // for clients whose clock is behind
	leafsPerRun = 1024
)

// NewCA makes a P-256 CA that is valid for 30 days.
func NewCA() (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("proxy: ca: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("proxy: ca: %w", err)
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "Warder run CA " + serial.Text(16)[:8]},
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("proxy: ca: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("proxy: ca: %w", err)
	}
	return &CA{cert, der, key}, nil
}

// LoadCA reads a CA certificate and its key (PEM) for `warder proxy`.
func LoadCA(certFile, keyFile string) (*CA, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("proxy: ca: %s: %w", certFile, err)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("proxy: ca: %s: %w", certFile, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return nil, fmt.Errorf("proxy: ca: %s: not a CA certificate that may sign", certFile)
	}
	return &CA{cert, pair.Certificate[0], key}, nil
}

// CertPEM is the CA's certificate, to be trusted inside the sandbox.
func (c *CA) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.der})
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, err
	}
	return n.SetBit(n, 126, 1), nil
}

// minter makes and keeps the leaf certificates of one run: one minting per host
// however many handshakes ask at once, the least recently used dropped first.
type minter struct {
	ca    *CA
	key   *ecdsa.PrivateKey // shared by all leaves of the process
	clock func() time.Time

	once singleflight.Group
	mu   sync.Mutex
	byID map[string]*list.Element
	lru  *list.List // of *leaf, most recent first
}

type leaf struct {
	host string
	cert *tls.Certificate
	end  time.Time
}

func newMinter(ca *CA, key *ecdsa.PrivateKey, clock func() time.Time) *minter {
	return &minter{ca: ca, key: key, clock: clock, byID: make(map[string]*list.Element), lru: list.New()}
}

// leaf returns the certificate for a canonical host.
func (m *minter) leaf(host string) (*tls.Certificate, error) {
	if c := m.cached(host); c != nil {
		return c, nil
	}
	v, err, _ := m.once.Do(host, func() (any, error) {
		if c := m.cached(host); c != nil {
			return c, nil
		}
		l, err := m.mint(host)
		if err != nil {
			return nil, err
		}
		m.keep(l)
		return l.cert, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*tls.Certificate), nil
}

func (m *minter) cached(host string) *tls.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.byID[host]
	if e == nil {
		return nil
	}
	l := e.Value.(*leaf)
	if m.clock().Add(backdate).After(l.end) {
		m.lru.Remove(e)
		delete(m.byID, host)
		return nil
	}
	m.lru.MoveToFront(e)
	return l.cert
}

func (m *minter) keep(l *leaf) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byID[l.host] = m.lru.PushFront(l)
	for m.lru.Len() > leafsPerRun {
		last := m.lru.Back()
		m.lru.Remove(last)
		delete(m.byID, last.Value.(*leaf).host)
	}
}

func (m *minter) mint(host string) (*leaf, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, fmt.Errorf("proxy: leaf: %w", err)
	}
	now := m.clock()
	t := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    later(now.Add(-backdate), m.ca.cert.NotBefore),
		NotAfter:     earlier(now.Add(leafLife), m.ca.cert.NotAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(host) <= 64 { // ub-common-name, RFC 5280
		t.Subject.CommonName = host
	}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, m.ca.cert, &m.key.PublicKey, m.ca.key)
	if err != nil {
		return nil, fmt.Errorf("proxy: leaf: %w", err)
	}
	cert := &tls.Certificate{Certificate: [][]byte{der, m.ca.der}, PrivateKey: m.key}
	return &leaf{host, cert, t.NotAfter}, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
