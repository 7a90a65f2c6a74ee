package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// maxDrain is how much of a body that nobody wants is read so that the
// connection can be used again; net/http's server has the same figure.
const maxDrain = 256 << 10

// clientBody is the request's body as the server gives it, counted.
type clientBody struct {
	io.ReadCloser
	length int64 // -1: unknown
	read   atomic.Int64
	ended  atomic.Bool
}

func (b *clientBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	if err != nil {
		b.ended.Store(true)
	}
	return n, err
}

func (x *exchange) watchBody(r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		x.body = &clientBody{ReadCloser: r.Body, length: r.ContentLength}
		r.Body = x.body
	}
}

// drain reads what an early answer left of the body, before net/http does.
//
// In full-duplex mode net/http would do it after the handler, and on reaching
// the end start a read in the background that collides with its own next one
// (it panics, and drops the connection). More than maxDrain of a known length it
// does not read at all but closes the connection in good order.
func (x *exchange) drain() {
	b := x.body
	if b == nil || !x.duplex || b.ended.Load() || b.length >= 0 && b.length-b.read.Load() > maxDrain {
		return
	}
	x.w.Flush() // the client may be waiting for the answer
	ctl := http.NewResponseController(x.w.ResponseWriter)
	_ = ctl.SetReadDeadline(time.Now().Add(x.p.limits.HeaderTimeout))
	if _, err := io.CopyN(io.Discard, b, maxDrain); err == nil || !errors.Is(err, io.EOF) {
		x.conn.fr.abandon()
	}
	_ = ctl.SetReadDeadline(time.Time{})
}
