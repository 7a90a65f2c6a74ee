package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"warder/audit"
)

// maxAttempts bounds how often a request goes to a pooled connection that turns
// out to be closed before anything was written.
const maxAttempts = 4

// newTransport is one pool of upstream connections, every setting explicit.
// HTTP/1.1 only; nothing of the environment; answers as they come.
func newTransport(d *dialer, l Limits) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            d.dial,
		DialTLSContext:         d.dialTLS(tls.NewLRUClientSessionCache(256), "http/1.1"),
		Protocols:              protocols,
		ForceAttemptHTTP2:      false,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
		DisableCompression:     true,
		DisableKeepAlives:      false,
		MaxIdleConns:           4096,
		MaxIdleConnsPerHost:    1024,
		MaxConnsPerHost:        0,
		IdleConnTimeout:        90 * time.Second,
		ResponseHeaderTimeout:  l.UpstreamHeaderTimeout,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		WriteBufferSize:        4 << 10,
		ReadBufferSize:         4 << 10,
	}
}

// newGRPCTransport is one pool of HTTP/2 connections, for gRPC alone: it needs
// streams that go both ways and trailers.
func newGRPCTransport(d *dialer) *http2.Transport {
	dial := d.dialTLS(tls.NewLRUClientSessionCache(256), "h2")
	return &http2.Transport{
		DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, network, addr)
		},
		DisableCompression: true,
		MaxHeaderListSize:  256 << 10,
		IdleConnTimeout:    90 * time.Second,
		ReadIdleTimeout:    30 * time.Second,
		PingTimeout:        15 * time.Second,
	}
}

func (x *exchange) transport() http.RoundTripper {
	if x.grpc {
		return x.run.grpcTransport(x.credential())
	}
	return x.run.transport(x.credential())
}

// upstreamUse is what an exchange knows of the connection that it has.
type upstreamUse struct {
	conn   *upstreamConn
	reused bool
	pooled atomic.Pointer[upstreamConn] // the same as conn, for the pool's goroutine
	use    atomic.Int64
}

// trace tells the exchange of its upstream connection.
func (x *exchange) trace(done <-chan struct{}) *httptrace.ClientTrace {
	u := &x.upstream
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			x.attempts++
			u.conn, _ = info.Conn.(*upstreamConn)
			u.reused = info.Reused
			if u.conn != nil {
				u.use.Store(u.conn.use.Add(1))
				u.pooled.Store(u.conn)
				u.conn.wrote.Store(false)
				x.dst = u.conn.dst
				if u.reused && !u.conn.streams {
					u.conn.settle(done)
				}
			}
		},
		// It may come late, when the next exchange has the connection already.
		PutIdleConn: func(err error) {
			if c := u.pooled.Load(); err == nil && c != nil {
				c.idle.Store(u.use.Load())
			}
		},
		Got1xxResponse: x.interim,
	}
}

// forward sends the request once. It is sent again only while nothing of it has
// been written: net/http's own replays are ruled out by the body (see sending).
func (x *exchange) forward(r *http.Request) (*http.Response, error) {
	defer x.noMoreInterims()
	began := time.Now()
	defer func() { x.timing.Upstream = micros(time.Since(began)) }()
	body := x.sending(r)
	x.clientGone = r.Context().Done()
	// Nothing else that is asked in the request's name may be traced.
	ctx, stop := context.WithCancel(httptrace.WithClientTrace(r.Context(), x.trace(x.clientGone)))
	if f := x.going(stop); f != nil {
		return nil, f
	}
	out := r.WithContext(ctx)
	out.RequestURI = ""
	out.Close = false // the client's wish is about its own connection
	// An answer may begin before the request has ended, and go on beside it.
	x.duplex = x.body != nil && !x.conn.h2 && http.NewResponseController(x.w.ResponseWriter).EnableFullDuplex() == nil
	keepAsIs(out.Header)
	u := &x.upstream
	for {
		u.conn, u.reused = nil, false
		resp, err := x.transport().RoundTrip(out)
		x.mu.Lock()
		broken := x.cut
		if err == nil {
			x.far = resp.Body
		}
		x.mu.Unlock()
		if err == nil && broken != nil {
			// The body broke off, and the upstream answered to that before its
			// connection was closed.
			_ = resp.Body.Close()
			return nil, broken
		}
		if err == nil {
			up, _ := resp.Body.(io.Writer) // of an upgraded connection
			x.w.whole = x.grpc && resp.ContentLength == 0
			x.answer.x, x.answer.in, x.answer.up, x.answer.resp = x, resp.Body, up, resp
			cleanTrailers(resp.Trailer)
			resp.Body = &x.answer
			return resp, nil
		}
		if x.attempts >= maxAttempts || x.grpc || !u.reused || u.conn == nil || u.conn.wrote.Load() || body.read.Load() || out.Context().Err() != nil {
			if x.attempts == 0 {
				x.attempts = 1
			}
			return nil, err
		}
	}
}

func dstOf(c *upstreamConn) *audit.Dst {
	d := &audit.Dst{TLSVersion: c.tlsVersion, CertSHA256: c.certSHA256}
	if c.addr.IsValid() {
		d.IP, d.Port = c.addr.Addr().String(), int(c.addr.Port())
	}
	return d
}

// upstreamFailure turns an error of the round trip into a refusal.
func (x *exchange) upstreamFailure(err error) *refusal {
	if err == nil {
		return nil
	}
	if f := x.interrupted(); f != nil {
		return f
	}
	var own *refusal
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, context.Canceled):
		return clientGone("before the answer")
	case x.upstream.conn != nil && x.upstream.conn.http2.Load():
		return otherProtocol("http/1.1")
	case isTimeout(err) || errors.Is(err, context.DeadlineExceeded):
		return &refusal{reason: reasonUpstreamTimeout, detail: "the upstream did not answer in time", cause: err.Error()}
	}
	return &refusal{reason: reasonUpstreamProtocol, detail: "the upstream's answer was not valid", cause: err.Error()}
}

// sendBody is the request's body on its way out. It is never nil and cannot be
// rewound, so that net/http has nothing to send a second time.
type sendBody struct {
	x    *exchange
	in   io.Reader
	read atomic.Bool   // Read was called
	r    *http.Request // whose trailers are copied at the end
	out  http.Header
	seen standInCounter
}

func (x *exchange) sending(r *http.Request) *sendBody {
	b := &x.out
	b.x, b.in, b.seen.list = x, r.Body, x.run.standIns
	r.GetBody = nil
	if r.Body == nil || r.Body == http.NoBody {
		b.in = nil
		if x.grpc {
			r.Body, r.ContentLength = b, -1
			return b
		}
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions:
			// These would be replayed with a nil body. With a body of unknown
			// length and the "identity" coding nothing is sent for it: no
			// Content-Length, no chunks (RFC 9112 §6.3, rule 7).
			r.Body, r.TransferEncoding = b, []string{"identity"}
		default:
			r.Body = http.NoBody
		}
		return b
	}
	r.Body = b
	if r.Trailer != nil { // also an empty one, which the server fills when the body ends
		b.r = &http.Request{Trailer: r.Trailer}
		b.out = make(http.Header, len(r.Trailer))
		for name := range r.Trailer {
			// What the head said, and was judged and injected there, is not said again.
			if _, said := r.Header[name]; !said && !forbiddenTrailer(name) {
				b.out[name] = nil
			}
		}
		r.Trailer = b.out
	}
	return b
}

// forbiddenTrailer reports fields that must not come after the body because they
// route, authenticate or frame (RFC 9110 §6.5.1).
func forbiddenTrailer(name string) bool {
	if hopByHop(name) || strings.HasPrefix(name, "X-Http-Method") || name == "X-Method-Override" {
		return true
	}
	switch name {
	case "Authorization", "Cookie", "Host", "Content-Encoding", "Content-Type", "Content-Range", "Expect", "Range",
		"Cache-Control", "Max-Forwards", "Set-Cookie", "Content-Length", "Location", "Www-Authenticate", "Alt-Svc":
		return true
	}
	return false
}

// cleanTrailers drops such fields of an answer. What was not announced is there
// only at the end of the body.
func cleanTrailers(h http.Header) {
	for name := range h {
		if forbiddenTrailer(name) {
			delete(h, name)
		}
	}
}

// Read runs on the transport's goroutine.
func (b *sendBody) Read(p []byte) (n int, err error) {
	defer recoverTo(&err, "body", b.x.p.panicked)
	if b.in == nil {
		return 0, io.EOF
	}
	b.read.Store(true)
	n, err = b.in.Read(p)
	b.x.run.flow.pass(b.x.run.ctx, n)
	b.x.sent.Add(int64(n))
	if f := b.x.brokenBody(err); f != nil {
		b.x.interrupt(f)
		return n, f
	}
	b.seen.add(p[:n])
	b.x.standIns.Store(b.seen.n)
	if f := b.x.spendOut(n); f != nil {
		b.x.interrupt(f)
		return 0, f
	}
	if err == io.EOF && b.r != nil {
		if where, env := inHeader(b.r.Trailer, b.x.run.standIns); env != "" {
			f := b.x.standInLeak(env, "trailer, "+where)
			b.x.interrupt(f)
			return n, f
		}
		for name := range b.out {
			b.out[name] = b.r.Trailer[name]
		}
	}
	return n, err
}

// brokenBody tells the client's broken framing from a failure of the upstream. It
// is asked by the goroutine that has just read, and so set what readFailure says.
func (x *exchange) brokenBody(err error) *refusal {
	if err == nil || errors.Is(err, io.EOF) || !strings.HasPrefix(x.proto, "http/1") {
		return nil
	}
	f := x.conn.readFailure()
	if f != nil && f.reason == reasonTooLarge {
		f.status = http.StatusRequestEntityTooLarge
	}
	return f
}

// Close leaves the client's body alone: the server closes it.
func (b *sendBody) Close() error { return nil }

// answerBody is the answer's body on its way to the client. The pointer stays
// the same while what it reads from is wrapped, so that goproxy keeps the
// Content-Length.
type answerBody struct {
	x  *exchange
	in io.ReadCloser
	up io.Writer // nil unless the connection was upgraded

	resp *http.Response // for its trailers
	seen standInCounter // of what is written to it
}

func (b *answerBody) Read(p []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			b.x.p.panicked("answer", v)
			f := refuse(reasonInternalError, "internal error")
			b.x.interrupt(f)
			n, err = 0, f
		}
	}()
	n, err = b.in.Read(p)
	b.x.run.flow.pass(b.x.run.ctx, n)
	b.x.received.Add(int64(n))
	b.x.cost.add(p[:n], false)
	if f := b.x.spendIn(n); f != nil {
		b.x.interrupt(f)
		return 0, f
	}
	if err != nil && !errors.Is(err, io.EOF) && b.x.hijackedConn() == nil {
		b.x.interrupt(b.x.brokenAnswer(err))
	}
	if errors.Is(err, io.EOF) {
		cleanTrailers(b.resp.Trailer)
	}
	return n, err
}

func (x *exchange) brokenAnswer(err error) *refusal {
	f := &refusal{reason: reasonUpstreamProtocol, detail: "the answer broke off", cause: err.Error()}
	if errors.Is(err, context.Canceled) {
		f.gone, f.cause = true, "the client went away in mid-answer"
	}
	return f
}

// Write is for an upgraded connection.
func (b *answerBody) Write(p []byte) (int, error) {
	if b.up == nil {
		return 0, errors.New("proxy: not an upgraded connection")
	}
	b.x.run.flow.pass(b.x.run.ctx, len(p))
	if f := b.x.spendOut(len(p)); f != nil {
		b.x.interrupt(f)
		return 0, f
	}
	n, err := b.up.Write(p)
	b.x.sent.Add(int64(n))
	b.seen.list = b.x.run.standIns
	b.seen.add(p[:n])
	b.x.standIns.Store(b.seen.n)
	return n, err
}

func (b *answerBody) Close() error { return b.in.Close() }
