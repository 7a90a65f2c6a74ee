package policies

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// fetchTimeout bounds one download of a bundle.
const fetchTimeout = 30 * time.Second

// Fetcher downloads a bundle over HTTP, and only when it has changed since the
// last time (RFC 9110 §13, entity tags). It is not safe for concurrent use.
// Redirects are not followed, and proxy variables do not apply.
type Fetcher struct {
	url    string
	client *http.Client
	etag   string
	next   string // of a bundle that was handed out and not accepted yet
}

// NewFetcher returns a Fetcher for an https URL (http to a loopback address).
// roots are the authorities that the server is verified by; nil means those of
// the system.
func NewFetcher(address string, roots *x509.CertPool) (*Fetcher, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("policies: bundle: the URL is not one of https without a user and a fragment")
	}
	return &Fetcher{url: address, client: &http.Client{
		Timeout: fetchTimeout,
		Transport: &http.Transport{
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    fetchTimeout,
			ResponseHeaderTimeout:  fetchTimeout,
			MaxResponseHeaderBytes: 64 << 10,
			MaxIdleConns:           1,
			IdleConnTimeout:        time.Minute,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Fetch returns the bundle, or nil when it is still the one that was accepted.
func (f *Fetcher) Fetch(ctx context.Context) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return nil, fmt.Errorf("policies: bundle: %w", err)
	}
	if f.etag != "" {
		r.Header.Set("If-None-Match", f.etag)
	}
	response, err := f.client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("policies: bundle: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // it was read, or is of no interest
	switch {
	case response.StatusCode == http.StatusNotModified && f.etag != "":
		return nil, nil
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("policies: bundle: the server answers %d\nhint: redirects are not followed", response.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(response.Body, MaxBundleBytes+1))
	if err != nil {
		return nil, fmt.Errorf("policies: bundle: %w", err)
	}
	if len(b) > MaxBundleBytes {
		return nil, fmt.Errorf("policies: bundle: larger than %d MiB", MaxBundleBytes>>20)
	}
	f.next = response.Header.Get("ETag")
	return b, nil
}

// Accept says that the last bundle is in force, so that it need not come again.
func (f *Fetcher) Accept() { f.etag = f.next }

// Close ends the connection that is kept for the next time.
func (f *Fetcher) Close() { f.client.CloseIdleConnections() }

// Forget makes the next Fetch ask for the bundle whatever was accepted.
func (f *Fetcher) Forget() { f.etag = "" }
