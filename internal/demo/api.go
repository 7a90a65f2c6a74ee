// Package demo holds the two ends of `warder demo`: an API on loopback that
// accepts only short-lived tokens, and the client that runs in the sandbox and
// never holds one. It imports nothing of the product.
package demo

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Host is the name by which the sandbox knows the API.
const Host = "inventory.demo.test"

// Audience is what a token for the API must be made for.
const Audience = "inventory"

// maxTokenLife is the longest validity that the API accepts.
const maxTokenLife = 10 * time.Minute

// API is an HTTPS server on loopback. It answers GET /items and POST /orders to
// a bearer of a valid token and 401 to everyone else.
type API struct {
	keys jose.JSONWebKeySet
	srv  *http.Server
	addr string
	ca   []byte

	mu      sync.Mutex
	served  int
	refused int
}

// StartAPI serves with tokens verified against jwks (RFC 7517).
func StartAPI(jwks []byte) (*API, error) {
	a := &API{}
	if err := json.Unmarshal(jwks, &a.keys); err != nil {
		return nil, fmt.Errorf("demo: key set: %w", err)
	}
	cert, ca, err := serverCertificate(Host)
	if err != nil {
		return nil, fmt.Errorf("demo: certificate: %w", err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("demo: listen: %w", err)
	}
	a.addr, a.ca = ln.Addr().String(), ca
	a.srv = &http.Server{
		Handler: a, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}
	go func() { _ = a.srv.ServeTLS(ln, "", "") }() // ends with Close
	return a, nil
}

// Addr is the loopback address and port; CA the PEM that verifies the server.
func (a *API) Addr() string { return a.addr }

// CA is the PEM of the authority that signed the server's certificate.
func (a *API) CA() []byte { return a.ca }

// Counts says how many requests came with a valid token, and without one.
func (a *API) Counts() (served, refused int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.served, a.refused
}

// Close stops the server.
func (a *API) Close() error { return a.srv.Close() }

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	subject, err := a.verify(r.Header.Get("Authorization"))
	a.mu.Lock()
	if err != nil {
		a.refused++
	} else {
		a.served++
	}
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "a valid short-lived token is needed"})
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"caller": subject, "items": []string{"anvil", "rope", "lantern"},
		"you_sent": r.Header.Get("Authorization"), // an API that reflects its caller's token: it must come back masked
	})
}

// verify checks signature, audience, expiry and length of life.
func (a *API) verify(header string) (string, error) {
	raw, ok := strings.CutPrefix(header, "Bearer ")
	if !ok {
		return "", fmt.Errorf("no bearer token")
	}
	tok, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return "", err
	}
	var c jwt.Claims
	if err := tok.Claims(a.keys, &c); err != nil {
		return "", err
	}
	if err := c.ValidateWithLeeway(jwt.Expected{AnyAudience: jwt.Audience{Audience}, Time: time.Now()}, time.Minute); err != nil {
		return "", err
	}
	if c.Expiry == nil || c.IssuedAt == nil || c.Expiry.Time().Sub(c.IssuedAt.Time()) > maxTokenLife {
		return "", fmt.Errorf("token lives too long")
	}
	return c.Subject, nil
}

// serverCertificate makes an authority and a certificate for host, both P-256.
func serverCertificate(host string) (tls.Certificate, []byte, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "demo API authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	pemCA := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pemCA, nil
}
