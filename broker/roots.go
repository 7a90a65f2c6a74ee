package broker

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"warder/internal/sysroots"
)

// rootsFor returns the roots in file alone, or those of the system.
func rootsFor(file string) (*x509.CertPool, error) {
	if file != "" {
		pool := x509.NewCertPool()
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if !pool.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("%s: no PEM certificates in it", file)
		}
		return pool, nil
	}
	return sysroots.Pool(), nil // empty: no server is trusted
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
