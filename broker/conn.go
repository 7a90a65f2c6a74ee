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
	"sync/atomic"
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

// conn speaks Vault's HTTP API through the client of vault/api, over transports of
// our own, to one of the servers of a cluster.
//
// Nothing but the configuration decides where a call goes and what it carries:
// no proxy, no redirect, no trust setting and no variable of the environment.
type conn struct {
	servers   []*server
	at        atomic.Int32 // the server that is asked first
	address   string       // as configured, for the journal: it names the cluster
	namespace string
	timeout   time.Duration
	clock     func() time.Time
	slots     chan struct{}
	gate      gate
}

// server is one address.
type server struct {
	base      string // scheme://host[/prefix], no final slash
	client    *api.Client
	transport *http.Transport
}

func newConn(c config.Vault, clock func() time.Time) (*conn, error) {
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
	for i, address := range append([]string{c.Address}, c.Addresses...) {
		key := "vault.address"
		if i > 0 {
			key = fmt.Sprintf("vault.addresses[%d]", i-1)
		}
		s, err := newServer(key, address, out, c)
		if err != nil {
			return nil, err
		}
		out.servers = append(out.servers, s)
	}
	return out, nil
}

func newServer(key, address string, c *conn, cfg config.Vault) (*server, error) {
	u, err := url.Parse(address)
	if err != nil || address == "" {
		return nil, fmt.Errorf("%s: a URL is needed, like https://vault.example:8200", key)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%s: no user, query or fragment", key)
	}
	out := &server{base: strings.TrimRight(u.String(), "/")}
	tr := &http.Transport{
		TLSHandshakeTimeout: c.timeout, ForceAttemptHTTP2: true, DisableCompression: true,
		MaxIdleConnsPerHost: maxCalls, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10,
	}
	dialer := &net.Dialer{Timeout: c.timeout}
	tr.DialContext = dialer.DialContext
	switch {
	case u.Scheme == "unix":
		if u.Path == "" || u.Host != "" {
			return nil, fmt.Errorf("%s: unix:// is followed by an absolute path", key)
		}
		out.base = "http://vault.unix"
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", u.Path)
		}
	case u.Hostname() == "":
		return nil, fmt.Errorf("%s: the host is missing", key)
	case u.Scheme == "https":
	case u.Scheme == "http":
		if a, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !a.IsLoopback()) {
			return nil, fmt.Errorf("%s: http:// only to a loopback address; hint: use https://", key)
		}
		dialer.ControlContext = loopbackOnly
	default:
		return nil, fmt.Errorf("%s: scheme %q is not https, http or unix", key, u.Scheme)
	}
	if tr.TLSClientConfig, err = tlsConfig(cfg); err != nil {
		return nil, err
	}
	out.transport = tr
	if out.client, err = newClient(out.base, c.namespace, tr); err != nil {
		return nil, err
	}
	return out, nil
}

func (c *conn) closeIdle() {
	for _, s := range c.servers {
		s.transport.CloseIdleConnections()
	}
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

// hide masks in a text of the other side what the call itself carried: an error that
// quotes its request would show a token or a SecretID.
func (in vaultCall) hide(text string) string {
	sent := []string{in.token.Reveal()}
	for _, key := range []string{"secret_id", "jwt", "token"} {
		v, _ := in.body[key].(string)
		sent = append(sent, v)
	}
	for _, v := range sent {
		if v != "" {
			text = strings.ReplaceAll(text, v, "[masked]")
		}
	}
	return text
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

// once asks the servers in turn until one answers for the cluster. A call that may
// have been carried out is not repeated; the next one begins elsewhere.
func (c *conn) once(ctx context.Context, in vaultCall, op string) (*api.Secret, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return nil, &vaultError{op: op, err: ctx.Err()}
	}
	first := c.at.Load()
	var last error
	for i := range int32(len(c.servers)) {
		n := (first + i) % int32(len(c.servers))
		sec, err := c.ask(ctx, c.servers[n], in, op)
		if err == nil || !isClass(err, classUnavailable) || len(c.servers) == 1 {
			c.at.Store(n)
			return sec, err
		}
		last = err
		c.at.CompareAndSwap(n, (n+1)%int32(len(c.servers)))
		if !notCarriedOut(err) || ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// notCarriedOut reports that a server surely did nothing: it was not reached, or
// says itself that it does not answer for the cluster.
func notCarriedOut(err error) bool {
	var ve *vaultError
	if !errors.As(err, &ve) {
		return false
	}
	switch {
	case ve.status == http.StatusServiceUnavailable && ve.said, ve.status == 472, ve.status == 473, ve.status >= 300 && ve.status < 400:
		return true
	case ve.status != 0:
		return false
	}
	var dial *net.OpError
	var cert *tls.CertificateVerificationError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &cert)
}

// ask makes one attempt at one server.
func (c *conn) ask(ctx context.Context, s *server, in vaultCall, op string) (*api.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := s.request(in)
	if err != nil {
		return nil, &vaultError{class: classInvalid, op: op, err: err}
	}
	resp, err := s.client.RawRequestWithContext(ctx, req) //nolint:staticcheck // the calls above it turn 404 into nothing and hide the headers
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
	return c.answer(resp.Response, raw, op, in.hide)
}

func (s *server) request(in vaultCall) (*api.Request, error) {
	req := s.client.NewRequest(in.method, "/v1/"+in.path)
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
