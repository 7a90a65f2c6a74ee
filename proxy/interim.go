package proxy

import (
	"net/http"
	"net/textproto"
	"time"
)

// maxInterims bounds the interim answers of one exchange together, in bytes, as the
// head of an answer is bounded; interimSize is that of one without a field.
const (
	maxInterims = 256 << 10
	interimSize = 32
)

// interim passes on 1xx answers but for 100, which net/http gives when the body
// is read. It runs on the transport's goroutine, which may outlive the exchange.
func (x *exchange) interim(code int, h textproto.MIMEHeader) (err error) {
	defer recoverTo(&err, "interim", x.p.panicked)
	x.early.Lock()
	defer x.early.Unlock()
	// net/http bounds them only where nobody looks at them.
	x.interims += interimSize
	for name, values := range h {
		for _, v := range values {
			x.interims += len(name) + len(v)
		}
	}
	if x.interims > maxInterims {
		return refuse(reasonUpstreamProtocol, "the upstream sent too many interim answers")
	}
	if x.headSent || code == http.StatusContinue || code == http.StatusSwitchingProtocols || x.proto == "http/1.0" || x.grant != nil {
		return nil
	}
	header := http.Header(h).Clone()
	cleanResponse(header, false)
	out := x.w.Header()
	for k, v := range header {
		out[k] = v
	}
	x.w.ResponseWriter.WriteHeader(code)
	if x.conn.h2 && x.w.lost() {
		x.headSent = true
		return nil
	}
	for k := range header {
		delete(out, k)
	}
	return nil
}

// noMoreInterims returns when none is being written, and none will be: what comes
// next on the client's side is the answer.
func (x *exchange) noMoreInterims() {
	x.early.Lock()
	defer x.early.Unlock()
	x.headSent = true
}

// lostWithin is how long the HTTP/2 server may take to cancel the requests of a
// connection that has just ended.
const lostWithin = 2 * time.Millisecond

// lost is asked after an interim answer. Where the client has reset its stream, the
// HTTP/2 server may still read the fields that it was given, in another goroutine: they
// are not touched any more, and what comes goes to a map that nobody sends.
func (w *responseWriter) lost() bool {
	select {
	case <-w.x.clientGone:
		w.unsent = http.Header{}
		return true
	case <-time.After(lostWithin): // what reads them has long ended
		return false
	}
}

// Header implements http.ResponseWriter.
func (w *responseWriter) Header() http.Header {
	if w.unsent != nil {
		return w.unsent
	}
	return w.ResponseWriter.Header()
}
