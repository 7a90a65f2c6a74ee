// Package sysroots reads the host's certificate authorities from the places
// where distributions keep them.
//
// Invariant: the environment has no say. crypto/x509's own SystemCertPool honours
// SSL_CERT_FILE and SSL_CERT_DIR, so that whoever sets a variable decides whom we
// trust, and it reads every file of a folder, which costs more than a sandbox's
// start.
package sysroots

import (
	"crypto/x509"
	"os"
	"runtime"
)

var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Arch, Gentoo
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL, Fedora
	"/etc/pki/tls/certs/ca-bundle.crt",                  // older RHEL
	"/etc/ssl/ca-bundle.pem",                            // SUSE
	"/etc/ssl/cert.pem",                                 // Alpine
}

// Pool returns a fresh pool with the host's authorities. It is empty, so that
// nobody is trusted, when the host has none.
func Pool() *x509.CertPool {
	if runtime.GOOS != "linux" {
		if p, err := x509.SystemCertPool(); err == nil {
			return p
		}
		return x509.NewCertPool()
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(PEM())
	return pool
}

// PEM returns the host's bundle of authorities as it stands; nil when the host has none.
func PEM() []byte {
	for _, b := range bundles {
		if raw, err := os.ReadFile(b); err == nil && x509.NewCertPool().AppendCertsFromPEM(raw) {
			return raw
		}
	}
	return nil
}
