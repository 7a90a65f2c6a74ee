package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/vault/api"

	"warder/internal/config"
	"warder/internal/secret"
)

const (
	defaultCallTimeout = 5 * time.Second
	maxCallTimeout     = time.Minute
	maxCalls           = 16      // at once, of one process
	maxAnswer          = 4 << 20 // bytes
	maxRetryAfter      = 30 * time.Second
)

// conn speaks Vault's HTTP API through the client of vault/api, over a transport
// of our own.
//
// Nothing but the configuration decides where a call goes and what it carries:
// no proxy, no redirect, no trust setting and no variable of the environment.
type conn struct {
	base      string // scheme://host[/prefix], no final slash
	address   string // as configured, for the journal
	namespace string
	timeout   time.Duration
	client    *api.Client
	transport *http.Transport
	clock     func() time.Time
	slots     chan struct{}
	gate      gate
}

func newConn(c config.Vault, clock func() time.Time) (*conn, error) {
	u, err := url.Parse(c.Address)
	if err != nil || c.Address == "" {
		return nil, errors.New("vault.address: a URL is needed, like https://vault.example:8200")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("vault.address: no user, query or fragment")
	}
	out := &conn{
		address: strings.TrimRight(c.Address, "/"), namespace: strings.Trim(c.Namespace, "/"),
		timeout: time.Duration(c.Timeout), clock: clock, slots: make(chan struct{}, maxCalls),
	}
	if out.timeout == 0 {
		out.timeout = defaultCallTimeout
	}
	if out.timeout < 0 || out.timeout > maxCallTimeout {
		return nil, fmt.Errorf("vault.timeout: more than 0 and at most %s", maxCallTimeout)
	}
	if !validFieldText(c.Namespace) {
		return nil, errors.New("vault.namespace: no control characters")
	}
	tr := &http.Transport{
		TLSHandshakeTimeout: out.timeout, ForceAttemptHTTP2: true, DisableCompression: true,
		MaxIdleConnsPerHost: maxCalls, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10,
	}
	dialer := &net.Dialer{Timeout: out.timeout}
	switch {
	case u.Scheme == "unix":
		if u.Path == "" || u.Host != "" {
			return nil, errors.New("vault.address: unix:// is followed by an absolute path")
		}
		out.base = "http://vault.unix"
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", u.Path)
		}
	case u.Hostname() == "":
		return nil, errors.New("vault.address: the host is missing")
	case u.Scheme == "https":
		out.base = strings.TrimRight(u.String(), "/")
		tr.DialContext = dialer.DialContext
	case u.Scheme == "http":
		if a, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !a.IsLoopback()) {
			return nil, errors.New("vault.address: http:// only to a loopback address; hint: use https://")
		}
		out.base = strings.TrimRight(u.String(), "/")
		dialer.ControlContext = loopbackOnly
		tr.DialContext = dialer.DialContext
	default:
		return nil, fmt.Errorf("vault.address: scheme %q is not https, http or unix", u.Scheme)
	}
	if tr.TLSClientConfig, err = tlsConfig(c); err != nil {
		return nil, err
	}
	out.transport = tr
	if out.client, err = newClient(out.base, out.namespace, tr); err != nil {
		return nil, err
	}
	return out, nil
}

// loopbackOnly refuses a resolved address that would carry a token in clear over a network.
func loopbackOnly(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil || !ap.Addr().IsLoopback() {
		return fmt.Errorf("%s is not a loopback address", address)
	}
	return nil
}

func tlsConfig(c config.Vault) (*tls.Config, error) {
	roots, err := rootsFor(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("vault.ca_file: %w", err)
	}
	out := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if c.Auth.Method == "cert" {
		out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return clientCertificate(c.Auth.CertFile, c.Auth.KeyFile)
		}
	}
	return out, nil
}

// call is one call of the API. The zero token sends none.
type vaultCall struct {
	method, path string // path below /v1/, not escaped
	token        secret.String
	body         map[string]any
	correlation  string // X-Correlation-Id, in clear in Vault's audit log
	urgent       bool   // revocation and renewal: neither held back by the gate nor counted in it
}

// do makes one attempt. It returns nil, nil for an answer without a body. Every
// error is a *vaultError, or the context's.
func (c *conn) do(ctx context.Context, in vaultCall) (*api.Secret, error) {
	op := in.method + " " + in.path
	if !in.urgent {
		if err := c.gate.enter(c.clock(), op); err != nil {
			return nil, err
		}
	}
	sec, err := c.once(ctx, in, op)
	if !in.urgent {
		c.gate.leave(c.clock(), err)
	}
	return sec, err
}

func (c *conn) once(ctx context.Context, in vaultCall, op string) (*api.Secret, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return nil, &vaultError{op: op, err: ctx.Err()}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := c.request(in)
	if err != nil {
		return nil, &vaultError{class: classInvalid, op: op, err: err}
	}
	resp, err := c.client.RawRequestWithContext(ctx, req) //nolint:staticcheck // the calls above it turn 404 into nothing and hide the headers
	if resp == nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // the URL is in op already
		}
		return nil, &vaultError{op: op, err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, &vaultError{op: op, status: resp.StatusCode, err: err}
	}
	defer clear(raw)
	if len(raw) > maxAnswer {
		return nil, &vaultError{op: op, status: resp.StatusCode, text: "the answer is too long"}
	}
	return c.answer(resp.Response, raw, op)
}

func (c *conn) request(in vaultCall) (*api.Request, error) {
	req := c.client.NewRequest(in.method, "/v1/"+in.path)
	if in.body != nil {
		if err := req.SetJSONBody(in.body); err != nil {
			return nil, errors.New("the request cannot be encoded")
		}
		req.Headers.Set("Content-Type", "application/json")
	}
	if in.correlation != "" {
		req.Headers.Set("X-Correlation-Id", in.correlation)
	}
	if !in.token.IsZero() {
		req.ClientToken = in.token.Reveal()
	}
	return req, nil
}
