package proxy

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"

	"warder/internal/identity"
)

// maxStreams is how many streams one HTTP/2 connection may have open, maxFrame how
// many bytes one frame may carry: the protocol's own limit where nothing is said of
// it (RFC 9113 §4.2).
const (
	maxStreams = 128
	maxFrame   = 16 << 10
)

// newH2Base holds what HTTP/2 connections take from a net/http server. The head
// is bounded here only against waste: the limit that counts is judged, answered
// and recorded in h2Head.
func (p *Proxy) newH2Base() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(p.serveHTTP),
		ReadHeaderTimeout: p.limits.HeaderTimeout,
		MaxHeaderBytes:    2*p.limits.MaxHeaderBytes + 4096,
		IdleTimeout:       p.limits.IdleTimeout,
		ErrorLog:          p.server.ErrorLog,
	}
}

// serveH2 serves one HTTP/2 connection (RFC 9113), each stream an exchange of its
// own, and returns when the connection and all its exchanges have ended.
func (p *Proxy) serveH2(c *clientConn) {
	hc := &h2Conn{Conn: c.Conn, refusals: make(map[string]bool)}
	s := &http2.Server{
		MaxConcurrentStreams:         maxStreams,
		MaxReadFrameSize:             maxFrame,
		MaxUploadBufferPerConnection: 4 << 20,
		MaxUploadBufferPerStream:     1 << 20,
		IdleTimeout:                  p.limits.IdleTimeout,
		CountError:                   hc.refused,
	}
	s.ServeConn(hc, &http2.ServeConnOpts{
		Context:    context.WithValue(c.run.ctx, connKey{}, c),
		BaseConfig: p.h2base,
	})
	_ = hc.Close()
	c.streams.end()
	if lost := hc.streams.Load() - c.exchanges.Load(); lost > 0 {
		f := badRequest("%d HTTP/2 streams were refused before they were a request", lost)
		f.cause = hc.why()
		if strings.HasSuffix(f.cause, "authority_host_mismatch") {
			f.reason = reasonAuthorityMismatch
		}
		c.recordRefused(identity.NewID(), f)
	} else if c.exchanges.Load() == 0 {
		f := badRequest("closed before a whole request")
		f.cause = hc.why()
		c.recordClosed(f)
	}
}

// streams counts the exchanges of an HTTP/2 connection that run.
type streams struct {
	mu      sync.Mutex
	over    bool
	running sync.WaitGroup
}

// begin is false once the connection has ended: what comes later is not served.
func (s *streams) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.running.Add(1)
	}
	return !s.over
}

func (s *streams) end() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.running.Wait()
}

// h2Conn counts the streams that a client opens, so that those which the HTTP/2
// layer refuses by itself are not missing from the record.
type h2Conn struct {
	net.Conn
	streams atomic.Int64

	preface int // bytes of the client's preface seen
	head    [9]byte
	have    int    // bytes of head
	skip    uint32 // bytes left of a frame's payload
	last    uint32 // highest stream

	mu       sync.Mutex
	refusals map[string]bool // kinds of errors
}

// Read runs on the HTTP/2 server's reader alone.
func (c *h2Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.count(p[:n])
	return n, err
}

// count walks the frames' heads (RFC 9113 §4.1).
func (c *h2Conn) count(b []byte) {
	if c.preface < len(http2.ClientPreface) {
		n := min(len(b), len(http2.ClientPreface)-c.preface)
		c.preface += n
		b = b[n:]
	}
	for len(b) > 0 {
		if c.skip > 0 {
			n := min(uint32(len(b)), c.skip)
			c.skip -= n
			b = b[n:]
			continue
		}
		n := copy(c.head[c.have:], b)
		c.have += n
		b = b[n:]
		if c.have < len(c.head) {
			return
		}
		c.have = 0
		c.skip = binary.BigEndian.Uint32(c.head[:4]) >> 8
		id := binary.BigEndian.Uint32(c.head[5:]) &^ (1 << 31)
		if http2.FrameType(c.head[3]) == http2.FrameHeaders && id > c.last {
			c.last = id
			c.streams.Add(1)
		}
	}
}

// ConnectionState tells the HTTP/2 server that this is TLS.
func (c *h2Conn) ConnectionState() tls.ConnectionState {
	if tc, ok := c.Conn.(*tls.Conn); ok {
		return tc.ConnectionState()
	}
	return tls.ConnectionState{}
}

// refused is told of every error that the HTTP/2 layer finds.
func (c *h2Conn) refused(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.refusals) < 16 {
		c.refusals[kind] = true
	}
}

func (c *h2Conn) why() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(c.refusals)), " ")
}

// h2Head makes of a stream's request what the framer makes of an HTTP/1 head, and
// refuses what HTTP/1 has no form for.
func (p *Proxy) h2Head(r *http.Request) (head, *refusal) {
	h := head{length: r.ContentLength, host: r.Host, hosts: 1, also: r.Header["Host"]}
	delete(r.Header, "Host")
	size, lines := len(r.RequestURI)+len(r.Method)+len(r.Host), 0
	for name, values := range r.Header {
		for _, v := range values {
			size += len(name) + len(v) + 4
			lines++
		}
	}
	lengths := r.Header["Content-Length"]
	switch {
	case size > p.limits.MaxHeaderBytes, lines > p.limits.MaxHeaders:
		f := badRequest("head too large")
		f.reason, f.status = reasonTooLarge, http.StatusRequestHeaderFieldsTooLarge
		return h, f
	case r.Header[":protocol"] != nil: // GODEBUG=http2xconnect=1
		return h, badRequest("extended CONNECT (RFC 8441) is not possible here")
	case r.Host == "":
		return h, badRequest("no :authority and no Host field")
	case r.TLS == nil && r.Method != http.MethodConnect: // which has no :scheme
		return h, badRequest("the :scheme is not that of the connection")
	case !strings.HasPrefix(r.RequestURI, "/") && r.Method != http.MethodConnect:
		return h, badRequest("the :path does not begin with a slash")
	case len(lengths) > 1 || len(lengths) == 1 && lengths[0] != strconv.FormatInt(r.ContentLength, 10):
		return h, badRequest("broken Content-Length")
	}
	return h, nil
}
