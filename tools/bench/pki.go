package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// originName is the host of every request; it resolves nowhere, so each proxy
// is told its address.
const originName = "origin.bench.test"

// authority is a certificate authority of this run, P-256 throughout.
type authority struct {
	cert *x509.Certificate
	der  []byte
	key  *ecdsa.PrivateKey
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := template(name)
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, der, key}, err
}

func template(name string) *x509.Certificate {
	serial := new(big.Int).SetInt64(time.Now().UnixNano())
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

// leaf signs a server certificate for one name.
func (a *authority) leaf(name string, key *ecdsa.PrivateKey) ([]byte, error) {
	t := template(name)
	t.DNSNames, t.KeyUsage = []string{name}, x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
}

// writePair stores a certificate and its key as PEM: NAME.crt and NAME.key.
func writePair(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	crt := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(dir, name+".crt"), crt, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}), 0o600)
}

// makePKI writes ca (what proxies sign with), origin-ca and origin into dir.
func makePKI(dir string) error {
	ca, err := newAuthority("bench proxy CA")
	if err != nil {
		return err
	}
	up, err := newAuthority("bench origin CA")
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := up.leaf(originName, key)
	if err != nil {
		return err
	}
	if err := writePair(dir, "ca", ca.der, ca.key); err != nil {
		return err
	}
	if err := writePair(dir, "origin-ca", up.der, up.key); err != nil {
		return err
	}
	return writePair(dir, "origin", der, key)
}

func pool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(text)
	return p, nil
}
