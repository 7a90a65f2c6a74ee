package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"net"
	"net/http"
	"strings"
	"time"
)

// readDeadline bounds how long a slot that has to see the whole body waits for
// it. The returned function lifts the bound.
func (x *exchange) readDeadline() func() {
	if !x.grant.ReadsBody() {
		return func() {}
	}
	ctl := http.NewResponseController(x.w.ResponseWriter)
	_ = ctl.SetReadDeadline(time.Now().Add(x.p.limits.HeaderTimeout))
	return func() { _ = ctl.SetReadDeadline(time.Time{}) }
}

// rejected tells the source that the upstream did not take the credential, so
// that the next request may get another value.
func (x *exchange) rejected(status int) {
	if s, ok := x.run.granter.(interface{ Rejected(name string) }); ok && x.grant != nil && status == http.StatusUnauthorized {
		s.Rejected(x.grant.Name)
	}
}

// present makes the pool of the exchange's credential one whose connections have
// the grant's client certificate, if it is one. The pool of a former certificate
// is let go: what is under way in it ends with its exchange.
func (x *exchange) present() {
	cert := x.grant.ClientCertificate()
	if cert == nil {
		return
	}
	r, name := x.run, x.credential()
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.transports[name]
	if old != nil && old.TLSClientConfig != nil && old.TLSClientConfig.Certificates[0].Leaf == cert.Leaf {
		return
	}
	if old != nil {
		old.CloseIdleConnections()
	}
	t := newTransport(r.dialer, r.p.limits)
	// The connections are made by DialTLSContext alone; this says which they are.
	t.TLSClientConfig = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
	t.DialTLSContext = r.dialer.dialTLSAs(*cert, tls.NewLRUClientSessionCache(64))
	r.transports[name] = t
}

// dialTLSAs is dialTLS with a client certificate, for an upstream that asks for one.
func (d *dialer) dialTLSAs(cert tls.Certificate, sessions tls.ClientSessionCache) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, hostport string) (c net.Conn, err error) {
		defer recoverTo(&err)
		ctx, cancel := context.WithTimeout(ctx, d.timeout)
		defer cancel()
		raw, err := d.connect(ctx, hostport)
		if err != nil {
			return nil, err
		}
		host, _, _ := net.SplitHostPort(hostport)
		tc := tls.Client(raw.Conn, &tls.Config{
			ServerName: host, RootCAs: d.up.roots(), MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
			ClientSessionCache: sessions, Certificates: []tls.Certificate{cert},
		})
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, tlsFailure(ctx, err)
		}
		st := tc.ConnectionState()
		sum := sha256.Sum256(st.PeerCertificates[0].Raw)
		raw.Conn, raw.tlsVersion, raw.certSHA256 = tc, strings.TrimPrefix(tls.VersionName(st.Version), "TLS "), hex.EncodeToString(sum[:])
		return raw, nil
	}
}
