package proxy

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// dialer makes every connection that leaves on behalf of a run. It resolves
// once, judges each address, and judges the final one again in the control hook,
// after which nothing can change it.
type dialer struct {
	up      *upstreams
	lookup  func(ctx context.Context, host string) ([]netip.Addr, error)
	timeout time.Duration
	cert    *tls.Certificate                                   // presented to an upstream that asks for one; nil: none
	buffers *sync.Pool                                         // of *[]byte
	used    func(ctx context.Context, name string, o override) // an override was used

	panicked func(where string, v any)
}

func newDialer(up *upstreams, timeout time.Duration, buffers *sync.Pool) *dialer {
	r := &net.Resolver{PreferGo: true}
	if up.resolver != "" {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, up.resolver)
		}
	}
	return &dialer{
		up: up, timeout: timeout, buffers: buffers,
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			// A final dot keeps search domains out of it.
			return r.LookupNetIP(ctx, "ip", host+".")
		},
		used:     func(context.Context, string, override) {},
		panicked: func(string, any) {},
	}
}

// dial connects to host:port in clear text.
func (d *dialer) dial(ctx context.Context, _, hostport string) (c net.Conn, err error) {
	defer recoverTo(&err, "dial", d.panicked)
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	up, err := d.connect(ctx, hostport)
	if err != nil {
		return nil, err
	}
	up.dst, up.unheard = dstOf(up), true
	return up, nil
}

// dialTLS connects to host:port and verifies the certificate for host.
func (d *dialer) dialTLS(sessions tls.ClientSessionCache, protocol string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, hostport string) (c net.Conn, err error) {
		defer recoverTo(&err, "dial", d.panicked)
		ctx, cancel := context.WithTimeout(ctx, d.timeout)
		defer cancel()
		raw, err := d.connect(ctx, hostport)
		if err != nil {
			return nil, err
		}
		host, _, _ := net.SplitHostPort(hostport)
		cfg := &tls.Config{
			ServerName: host, RootCAs: d.up.roots(), MinVersion: tls.VersionTLS12,
			NextProtos: []string{protocol}, ClientSessionCache: sessions,
		}
		if d.cert != nil {
			cfg.Certificates = []tls.Certificate{*d.cert}
		}
		tc := tls.Client(raw.Conn, cfg)
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			if strings.Contains(err.Error(), "tls: no application protocol") { // the alert has no type of its own
				return nil, otherProtocol(protocol)
			}
			return nil, tlsFailure(ctx, err)
		}
		st := tc.ConnectionState()
		raw.streams, raw.unheard = protocol == "h2", protocol != "h2"
		if raw.streams && st.NegotiatedProtocol != protocol {
			_ = tc.Close()
			return nil, otherProtocol(protocol)
		}
		sum := sha256.Sum256(st.PeerCertificates[0].Raw)
		raw.Conn, raw.tlsVersion, raw.certSHA256 = tc, strings.TrimPrefix(tls.VersionName(st.Version), "TLS "), hex.EncodeToString(sum[:])
		raw.dst = dstOf(raw)
		return raw, nil
	}
}

// otherProtocol refuses an upstream that speaks the other version of HTTP alone.
func otherProtocol(wanted string) *refusal {
	if wanted == "h2" {
		return refuse(reasonUpstreamProtocol, "the upstream does not speak HTTP/2, which gRPC needs")
	}
	return refuse(reasonUpstreamProtocol, "the upstream does not speak HTTP/1.1; HTTP/2 is used towards upstreams for gRPC alone")
}

func tlsFailure(ctx context.Context, err error) error {
	if ctx.Err() != nil || isTimeout(err) {
		return &refusal{reason: reasonUpstreamTimeout, detail: "the upstream's TLS handshake took too long", cause: err.Error()}
	}
	detail := "the upstream's TLS handshake failed"
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		detail = "the upstream's certificate is not trusted for this name"
		var unknown x509.UnknownAuthorityError
		if errors.As(err, &unknown) {
			detail = "the upstream's certificate is signed by an unknown authority"
		}
	}
	return &refusal{reason: reasonUpstreamTLS, detail: detail, cause: err.Error()}
}

func (d *dialer) connect(ctx context.Context, hostport string) (*upstreamConn, error) {
	host, portText, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, badRequest("no host and port to dial")
	}
	port, err := parsePort(portText)
	if err != nil {
		return nil, badRequest("%v", err)
	}
	if d.up.via != nil {
		return d.connectVia(ctx, host, hostport)
	}
	addrs, err := d.resolve(ctx, host, uint16(port))
	if err != nil {
		return nil, err
	}
	var last error
	for i, a := range addrs {
		share, cancel := context.WithCancel(ctx)
		if deadline, ok := ctx.Deadline(); ok && i < len(addrs)-1 {
			cancel()
			share, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(len(addrs)-i))
		}
		c, err := d.dialOne(share, host, a)
		cancel()
		if err == nil {
			return &upstreamConn{Conn: c, addr: a, buffers: d.buffers}, nil
		}
		last = err
		if ctx.Err() != nil {
			break
		}
	}
	return nil, dialFailure(ctx, last)
}

// resolve gives the addresses of host that may be dialled.
func (d *dialer) resolve(ctx context.Context, host string, port uint16) ([]netip.AddrPort, error) {
	var found []netip.AddrPort
	if o, ok := d.up.hosts[host]; ok {
		d.used(ctx, host, o)
		if o.port != 0 {
			port = o.port
		}
		found = []netip.AddrPort{netip.AddrPortFrom(o.addr, port)}
	} else if a, err := netip.ParseAddr(host); err == nil {
		found = []netip.AddrPort{netip.AddrPortFrom(a, port)}
	} else {
		addrs, err := d.lookup(ctx, host)
		if err != nil {
			return nil, dnsFailure(ctx, err)
		}
		for _, a := range addrs {
			found = append(found, netip.AddrPortFrom(a.Unmap(), port))
		}
	}
	var good []netip.AddrPort
	for _, a := range found {
		if d.up.mayDial(host, a) {
			good = append(good, a)
		}
	}
	switch {
	case len(good) > 0:
		return good, nil
	case len(found) > 0:
		return nil, internalAddress(found[0].String())
	}
	return nil, &refusal{reason: reasonUpstreamDNS, detail: "the name has no address"}
}

func internalAddress(addr string) *refusal {
	return &refusal{
		reason: reasonInternalAddress, detail: "the name leads to an internal address",
		hint: "the operator can map it with proxy.upstream.hosts and allow_addresses", cause: "address " + addr,
	}
}

func (d *dialer) dialOne(ctx context.Context, host string, a netip.AddrPort) (net.Conn, error) {
	nd := net.Dialer{
		KeepAlive: 30 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			final, err := netip.ParseAddrPort(address)
			if err != nil || !d.up.mayDial(host, final) {
				return internalAddress(address)
			}
			return nil
		},
	}
	return nd.DialContext(ctx, "tcp", a.String())
}

// connectVia asks the configured proxy for a tunnel. The name is resolved there,
// so only address literals can be judged here; TLS is still verified end to end.
func (d *dialer) connectVia(ctx context.Context, host, hostport string) (*upstreamConn, error) {
	if a, err := netip.ParseAddr(host); err == nil && classify(a) != addressPublic {
		return nil, internalAddress(hostport)
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", d.up.via.Host)
	if err != nil {
		return nil, dialFailure(ctx, err)
	}
	if d.up.via.Scheme == "https" {
		tc := tls.Client(c, &tls.Config{ServerName: d.up.via.Hostname(), RootCAs: d.up.roots(), MinVersion: tls.VersionTLS12})
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			return nil, tlsFailure(ctx, err)
		}
		c = tc
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(c, "CONNECT "+hostport+" HTTP/1.1\r\nHost: "+hostport+"\r\n\r\n"); err != nil {
		_ = c.Close()
		return nil, dialFailure(ctx, err)
	}
	br := bufio.NewReaderSize(c, 4096)
	resp, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect})
	if err != nil || resp.StatusCode != http.StatusOK {
		_ = c.Close()
		status := "no answer"
		if err == nil {
			status = "status " + strconv.Itoa(resp.StatusCode)
		}
		return nil, &refusal{reason: reasonUpstreamRefused, detail: "the outer proxy refused the connection", cause: "upstream.via: " + status}
	}
	if br.Buffered() > 0 {
		early, _ := br.Peek(br.Buffered())
		c = &prefixConn{Conn: c, head: append([]byte(nil), early...)}
	}
	return &upstreamConn{Conn: c, buffers: d.buffers}, nil
}

func dnsFailure(ctx context.Context, err error) error {
	var dns *net.DNSError
	if ctx.Err() != nil || errors.As(err, &dns) && dns.IsTimeout {
		return &refusal{reason: reasonUpstreamTimeout, detail: "the name could not be resolved in time", cause: err.Error()}
	}
	return &refusal{reason: reasonUpstreamDNS, detail: "the name could not be resolved", cause: err.Error()}
}

func dialFailure(ctx context.Context, err error) error {
	var own *refusal
	switch {
	case errors.As(err, &own):
		return own
	case ctx.Err() != nil || isTimeout(err):
		return &refusal{reason: reasonUpstreamTimeout, detail: "the upstream did not accept the connection in time", cause: fmt.Sprint(err)}
	}
	return &refusal{reason: reasonUpstreamRefused, detail: "the upstream did not accept the connection", cause: fmt.Sprint(err)}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
