package proxy

import (
	"io"
	"net/http"
)

// connect takes a CONNECT (RFC 9110 §9.3.6) by itself: the tunnel's bytes come
// back to us as a new connection made for that authority, and what was sent
// along with the CONNECT comes first. A well-formed CONNECT is never refused
// here; the denial is given inside, where the client can read it.
func (x *exchange) connect(r *http.Request) *refusal {
	want, err := parseAuthority(r.RequestURI, 0)
	if err != nil {
		x.tgt.path = ""
		return badRequest("CONNECT: %v", err)
	}
	x.auth = want
	if x.head.hosts > 0 {
		if host, err := parseAuthority(x.head.host, want.port); err != nil || host.host != want.host || host.port != want.port {
			f := mismatch(want, withoutUser(x.head.host))
			return f
		}
	}
	c := x.conn
	inner := arrival{want: want}
	// A connection of the listener is the client's from here on.
	ended := c.ended
	if release := x.release; release != nil {
		outer := ended
		ended = func() { release(); outer() }
	}
	conn, rw, err := http.NewResponseController(x.w.ResponseWriter).Hijack()
	if err != nil {
		return refuse(reasonInternalError, "internal error")
	}
	x.handed = true
	early, _ := rw.Reader.Peek(rw.Reader.Buffered())
	if _, err := io.WriteString(conn, "HTTP/1.1 200 Connection Established\r\n\r\n"); err != nil {
		cc := &clientConn{p: x.p, run: x.run, arr: inner}
		f := badRequest("closed before a whole request")
		cc.recordClosed(f)
		_ = conn.Close()
		ended()
		return nil
	}
	raw := &prefixConn{Conn: conn, head: append([]byte(nil), early...)}
	x.p.serve(x.run, raw, inner, ended)
	return nil
}
