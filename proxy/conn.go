package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"warder/internal/identity"
)

// arrival is how a connection came to us and what it was made for.
type arrival struct {
	transparent bool      // the client does not know of the proxy
	proxying    bool      // CONNECT and absolute-form are understood on it
	want        authority // where it goes; no host while proxying
	tls         bool
	sni         string // as received
}

func (a arrival) scheme() string {
	if a.tls {
		return "https"
	}
	return "http"
}

// prefixConn gives back bytes that were read ahead.
type prefixConn struct {
	net.Conn
	head []byte
	arr  *arrival // for the certificate, while the handshake runs
}

func (c *prefixConn) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

func (c *prefixConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// clientConn is a connection as net/http serves it: framing checked on the way
// in, and answers that net/http gives by itself replaced and recorded on the way
// out.
type clientConn struct {
	net.Conn
	p      *Proxy
	run    *Run
	raw    net.Conn // as it was accepted
	arr    arrival
	fr     framer
	client Client // known by its certificate; zero: not known yet
	outer  bool   // TLS with the listener itself
	h2     bool   // HTTP/2; fr is not used
	ended  func() // once, when nobody uses the connection any more

	busy      atomic.Bool  // a handler runs, or its answer is being finished
	exchanges atomic.Int64 // records that this connection has led to
	answers   atomic.Int64 // requests of HTTP/1 that were answered to their end
	streams   streams      // of HTTP/2
	answered  bool         // a refusal of ours was written below net/http
	grown     bool         // growStack was called
	reading   sync.Mutex   // held while fr reads
	end       sendingEnd
}

func (c *clientConn) CloseWrite() error { return closeWrite(c.Conn) }

// growStack gives the goroutine at once the stack that a handshake and a request take, in
// place of doubling it four times, each time with a copy of what is on it.
//
//go:noinline
func growStack() {
	var room [16 << 10]byte
	keep(&room)
}

//go:noinline
func keep(*[16 << 10]byte) {}

// Read gives what the framer lets through. The end, or what is wrong with the next
// request, comes when nothing that was asked for before it is unanswered.
func (c *clientConn) Read(p []byte) (int, error) {
	if !c.grown {
		c.grown = true
		growStack()
	}
	c.reading.Lock()
	n, err := c.fr.Read(p)
	c.reading.Unlock()
	if n == 0 && c.holds(err) {
		err = c.hold(err)
	}
	if n == 0 && !c.busy.Load() && c.fr.phase == inHead && c.readFailure() != nil {
		_ = c.refuse("") // net/http says nothing to a request that is not the first
	}
	return n, err
}

// Write passes on what a handler answers. Outside of one, net/http is refusing
// the request by itself: that becomes a denial document and a record.
func (c *clientConn) Write(b []byte) (int, error) {
	if c.busy.Load() {
		if c.end.came.Load() {
			c.end.moved.Store(time.Now().UnixNano())
		}
		return c.Conn.Write(b)
	}
	if err := c.refuse(firstLine(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// refuse answers and records a request that net/http cannot read; once, since
// nothing can be read after it.
func (c *clientConn) refuse(cause string) error {
	if c.answered {
		return nil
	}
	c.answered = true
	f := c.readFailure()
	if f == nil {
		f = badRequest("not an acceptable HTTP/1 request")
		f.cause = cause
	}
	id := identity.NewID()
	c.run.wearily(c.run.ctx, f)
	c.recordRefused(id, f)
	_, err := c.Conn.Write(rawDenial(c.run.identity(), f, id))
	return err
}

// readFailure says why the framer refused, nil when it did not.
func (c *clientConn) readFailure() *refusal {
	var fe *framingError
	if !errors.As(c.fr.err, &fe) {
		return nil
	}
	f := badRequest("%s", fe.detail)
	if fe.tooLarge {
		f.reason, f.status = reasonTooLarge, 431
	}
	return f
}

// finish is called once, when the connection is closed.
func (c *clientConn) finish() {
	defer c.ended()
	if c.answered {
		return
	}
	c.reading.Lock() // net/http may still read ahead; it is closed, so that this ends
	defer c.reading.Unlock()
	partial := c.fr.phase == inHead && c.fr.w > c.fr.ok
	if partial {
		c.fr.bad = readable(c.fr.buf[c.fr.ok:c.fr.w])
	}
	if partial || c.exchanges.Load() == 0 {
		f := badRequest("closed before a whole request")
		if r := c.readFailure(); r != nil {
			f = r
		}
		c.recordClosed(f)
	}
}

// serve decides what a new connection carries and gives it to the server. It
// returns when the server has it, or when it is closed and recorded.
func (p *Proxy) serve(run *Run, raw net.Conn, arr arrival, ended func()) {
	c := &clientConn{p: p, run: run, raw: raw, arr: arr, ended: ended}
	c.Conn = raw
	defer func() {
		if v := recover(); v != nil {
			p.panicked("connection", v)
			c.recordClosed(&refusal{reason: reasonInternalError})
			_ = raw.Close()
			ended()
		}
	}()
	o, f := c.open(raw)
	ended = c.ended // a SOCKS client has one of its own
	if f != nil {
		c.recordClosed(f)
	}
	if o != nil {
		o.carry()
	}
	if f != nil || o != nil {
		_ = raw.Close()
		ended()
		return
	}
	if c.h2 {
		p.serveH2(c)
		ended()
		return
	}
	c.fr.src, c.fr.maxHead, c.fr.maxHeaders = c.Conn, p.limits.MaxHeaderBytes, p.limits.MaxHeaders
	if err := p.feed.give(c); err != nil {
		c.recordClosed(refuse(reasonInternalError, "the proxy is closing"))
		_ = raw.Close()
		ended()
	}
}

// open waits for the first byte and terminates TLS. Where the policy has rules
// for connections it is asked first, while nothing is terminated yet; without
// them every connection is intercepted and each request judged.
func (c *clientConn) open(raw net.Conn) (*carried, *refusal) {
	var judge Decider
	if !c.arr.proxying && c.arr.want.host != reservedHost {
		judge = c.p.connectionJudge()
	}
	wait := c.p.limits.FirstByteTimeout
	if judge != nil {
		wait = min(wait, serverFirst)
	}
	first := make([]byte, 1024)
	n, err := readWithin(raw, first, wait)
	if n == 0 && isTimeout(err) && judge != nil {
		if o := c.silent(judge, raw); o != nil {
			return o, nil
		}
		n, err = readWithin(raw, first, c.p.limits.FirstByteTimeout-wait)
	}
	if n == 0 {
		if isTimeout(err) {
			return nil, refuse(reasonNotTLS, "nothing was sent on the connection")
		}
		return nil, badRequest("closed before a whole request")
	}
	return c.openFirst(judge, &prefixConn{Conn: raw, head: first[:n], arr: &c.arr})
}

// openFirst looks at the first bytes.
func (c *clientConn) openFirst(judge Decider, pre *prefixConn) (*carried, *refusal) {
	if judge != nil {
		if o, f := c.opaque(judge, pre); o != nil || f != nil {
			return o, f
		}
	}
	switch b := pre.head[0]; {
	case b == 0x16 && !c.arr.proxying: // TLS handshake record
		return nil, c.openTLS(pre)
	case b == 0x16 && c.run.lobby != nil && c.run.lobby.tls != nil && !c.outer:
		c.outer = true
		inner, f := c.openListenerTLS(pre)
		if f != nil {
			return nil, f
		}
		return c.openFirst(nil, inner)
	case b == socksVersion && c.arr.proxying:
		if f := c.socks(pre); f != nil {
			return nil, f
		}
		return c.open(pre)
	case isToken(pre.head[:1]), b == '\r':
		c.Conn = pre
		return nil, nil
	default:
		return nil, refuse(reasonNotTLS, "neither TLS nor HTTP")
	}
}

func readWithin(c net.Conn, p []byte, limit time.Duration) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(limit))
	n, err := c.Read(p)
	_ = c.SetReadDeadline(time.Time{})
	return n, err
}

func (c *clientConn) openTLS(pre *prefixConn) *refusal {
	ctx, cancel := context.WithTimeout(c.run.ctx, c.p.limits.HandshakeTimeout)
	defer cancel()
	tc := tls.Server(pre, c.run.tls)
	c.arr.tls = true
	if err := tc.HandshakeContext(ctx); err != nil {
		f := badRequest("the TLS handshake was not completed")
		f.cause = err.Error()
		f.asked = c.arr.sni
		if ctx.Err() != nil || errors.As(err, new(tls.RecordHeaderError)) {
			f.reason = reasonNotTLS
		}
		return f
	}
	st := tc.ConnectionState()
	c.arr.sni, c.h2 = st.ServerName, st.NegotiatedProtocol == "h2"
	c.Conn = tc
	return nil
}

// certificate is the GetCertificate of a run's tls.Config.
func (r *Run) certificate(hello *tls.ClientHelloInfo) (cert *tls.Certificate, err error) {
	defer recoverTo(&err, "certificate", r.p.panicked)
	arr := hello.Conn.(*prefixConn).arr
	arr.sni = hello.ServerName
	host := arr.want.host
	if hello.ServerName != "" {
		// A name that differs is answered inside (421), so the client must be
		// able to finish the handshake.
		if sni, _, err := canonicalHost(hello.ServerName); err == nil {
			host = sni
		}
	}
	return r.minter.leaf(host)
}

// feed is the listener through which connections reach the one http.Server.
type feed struct {
	ch   chan net.Conn
	done chan struct{}
	once sync.Once
}

func newFeed() *feed { return &feed{ch: make(chan net.Conn), done: make(chan struct{})} }

func (f *feed) give(c net.Conn) error {
	select {
	case f.ch <- c:
		return nil
	case <-f.done:
		return net.ErrClosed
	}
}

func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.ch:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

func (f *feed) Close() error {
	f.once.Do(func() { close(f.done) })
	return nil
}

func (f *feed) Addr() net.Addr { return &net.TCPAddr{} }

// recoverTo turns a panic into an error, for functions that libraries call on
// goroutines of their own, and has it counted.
func recoverTo(err *error, where string, note func(where string, v any)) {
	if v := recover(); v != nil {
		note(where, v)
		*err = &refusal{reason: reasonInternalError, detail: "internal error", cause: fmt.Sprintf("panic: %T", v)}
	}
}

func firstLine(b []byte) string {
	for i, c := range b {
		if c == '\r' || c == '\n' || i == 120 {
			return string(b[:i])
		}
	}
	return string(b)
}

var _ io.Reader = (*framer)(nil)
