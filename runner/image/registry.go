package image

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// registry reads an image from a registry.
type registry struct {
	ref       name.Reference
	transport http.RoundTripper
	auth      authn.Authenticator
}

func (r registry) options(ctx context.Context) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(r.transport), remote.WithAuth(r.auth), remote.WithUserAgent("warder"),
	}
}

func (r registry) pinned() (v1.Hash, bool) {
	d, ok := r.ref.(name.Digest)
	if !ok {
		return v1.Hash{}, false
	}
	h, err := v1.NewHash(d.DigestStr())
	return h, err == nil
}

func (r registry) top(ctx context.Context) ([]byte, error) {
	d, err := remote.Get(r.ref, r.options(ctx)...)
	if err != nil {
		return nil, err
	}
	return d.Manifest, nil
}

func (r registry) document(ctx context.Context, h v1.Hash) ([]byte, error) {
	d, err := remote.Get(r.ref.Context().Digest(h.String()), r.options(ctx)...)
	if err != nil {
		return nil, err
	}
	return d.Manifest, nil
}

func (r registry) blob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	l, err := remote.Layer(r.ref.Context().Digest(d.Digest.String()), r.options(ctx)...)
	if err != nil {
		return nil, err
	}
	return l.Compressed()
}

// newTransport connects to registries: verified TLS 1.2 or later, no proxy of
// the environment, clear text to this machine only.
func newTransport(roots *x509.CertPool) http.RoundTripper {
	d := &net.Dialer{Timeout: 15 * time.Second}
	return onlyTLS{&http.Transport{
		DialContext: d.DialContext, TLSHandshakeTimeout: 15 * time.Second, ResponseHeaderTimeout: time.Minute,
		IdleConnTimeout: 30 * time.Second, MaxIdleConnsPerHost: 4, ForceAttemptHTTP2: true, DisableCompression: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}
}

// onlyTLS refuses clear text to other machines: the registry library falls back
// to it for private addresses and some names.
type onlyTLS struct{ next *http.Transport }

var errClearText = errors.New("clear text to another machine is refused; hint: the registry needs TLS")

func (t onlyTLS) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !isLoopback(req.URL.Hostname()) {
		return nil, fmt.Errorf("%s: %w", req.URL.Host, errClearText)
	}
	return t.next.RoundTrip(req)
}

func (t onlyTLS) CloseIdleConnections() { t.next.CloseIdleConnections() }

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
