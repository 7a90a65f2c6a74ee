package proxy

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"warder/audit"
)

// upstreamConn is a dialled connection and what is known of it.
type upstreamConn struct {
	net.Conn
	addr       netip.AddrPort // zero behind upstream.via
	tlsVersion string
	certSHA256 string
	dst        *audit.Dst  // the same, for records
	streams    bool        // HTTP/2: the peer may speak at any time
	unheard    bool        // HTTP/1 is awaited, and nothing came yet
	http2      atomic.Bool // what came was not HTTP/1 but HTTP/2
	wrote      atomic.Bool // something of a request may have left
	buffers    *sync.Pool

	// use counts the exchanges that had the connection, idle is the count at
	// which it went back to the pool. Equal: nobody asked for anything.
	use, idle atomic.Int64
	mute      atomic.Bool // it was used before, and nothing of this exchange's request was sent

	mu      sync.Mutex
	reading bool
	closed  bool
	wake    chan struct{} // nil: nobody waits for either
}

var errUnasked = errors.New("proxy: the upstream spoke without being asked")

// Read fails on bytes that nobody asked for. net/http would print them on the
// standard logger, and they may hold what was injected before.
func (c *upstreamConn) Read(p []byte) (int, error) {
	c.become(&c.reading, true)
	n, err := c.Conn.Read(p)
	c.become(&c.reading, false)
	if n > 0 && c.unheard {
		if c.unheard = false; p[0] == 0 { // a SETTINGS frame: no answer of HTTP/1 begins so
			c.http2.Store(true)
			return 0, otherProtocol("http/1.1")
		}
	}
	if n > 0 && !c.streams && (c.mute.Load() || c.use.Load() == c.idle.Load()) {
		return 0, errUnasked
	}
	return n, err
}

func (c *upstreamConn) become(what *bool, v bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *what = v; v && c.wake != nil {
		close(c.wake)
		c.wake = nil
	}
}

// settle makes sure that nothing of an answer before is taken for the next one: an
// upstream may send more than the answer holds (a body after HEAD, 204 or 304, or
// beyond its length), and net/http may have read that along with it. It looks for
// such bytes, and closes the connection, before it waits for the next ones. So once
// it waits, or has closed, there are none; what comes from here on before something
// is asked fails in Read.
func (c *upstreamConn) settle(done <-chan struct{}) {
	c.mute.Store(true)
	for {
		c.mu.Lock()
		if c.reading || c.closed {
			c.mu.Unlock()
			return
		}
		if c.wake == nil {
			c.wake = make(chan struct{})
		}
		wake := c.wake
		c.mu.Unlock()
		select {
		case <-wake:
		case <-done:
			return
		}
	}
}

// Close implements net.Conn.
func (c *upstreamConn) Close() error {
	defer c.become(&c.closed, true)
	return c.Conn.Close()
}

// ReadFrom copies a request's body with a pooled buffer; without it net/http
// makes a new one for every request.
func (c *upstreamConn) ReadFrom(src io.Reader) (total int64, err error) {
	buf := c.buffers.Get().(*[]byte)
	defer c.buffers.Put(buf)
	for {
		n, rerr := src.Read(*buf)
		if n > 0 {
			wrote, werr := c.Write((*buf)[:n])
			total += int64(wrote)
			if werr != nil {
				return total, werr
			}
		}
		if errors.Is(rerr, io.EOF) {
			return total, nil
		}
		if rerr != nil {
			return total, rerr
		}
	}
}

// Write notes that bytes left. A connection that the peer had closed before
// refuses the first write, and then nothing has left.
func (c *upstreamConn) Write(p []byte) (int, error) {
	c.mute.Store(false)
	n, err := c.Conn.Write(p)
	if n > 0 || err != nil && !errors.Is(err, net.ErrClosed) {
		c.wrote.Store(true)
	}
	return n, err
}

// CloseWrite half-closes where the connection can.
func (c *upstreamConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}
