package broker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"runtime"
)

// bundles are the files in which Linux distributions keep the roots that they
// trust. crypto/x509 knows them too, but asks the environment first.
var bundles = [...]string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// rootsFor returns the roots in file alone, or those of the system.
func rootsFor(file string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if file != "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if !pool.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("%s: no PEM certificates in it", file)
		}
		return pool, nil
	}
	if runtime.GOOS != "linux" {
		return x509.SystemCertPool()
	}
	for _, b := range bundles {
		if raw, err := os.ReadFile(b); err == nil && pool.AppendCertsFromPEM(raw) {
			break
		}
	}
	return pool, nil // empty: no server is trusted
}

// clientCertificate reads the pair anew for each handshake, so that a renewed
// one is used without a restart.
func clientCertificate(certFile, keyFile string) (*tls.Certificate, error) {
	key, err := readSecretFile(keyFile)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	crt, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return nil, errors.New("the client certificate and its key do not belong together")
	}
	return &pair, nil
}
