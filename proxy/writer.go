package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
)

// responseWriter copies answers through pooled buffers, flushes those of unknown
// length as they come, and keeps net/http from adding fields of its own.
type responseWriter struct {
	http.ResponseWriter
	x       *exchange
	started bool
	unsent  http.Header // not nil: in place of the fields of the answer, see lost
	stream  bool
	whole   bool // an answer without a body: head and end go together
}

// newBuffers holds the copy buffers that all exchanges share. A full one is one
// packet of the sandbox's link, headers included (its MTU is 65535).
func newBuffers() *sync.Pool {
	return &sync.Pool{New: func() any { b := make([]byte, 60<<10); return &b }}
}

func (w *responseWriter) WriteHeader(code int) {
	if w.started {
		return
	}
	w.started = true
	h := w.Header()
	for _, name := range []string{"Content-Type", "Date"} {
		if _, ok := h[name]; !ok {
			h[name] = nil
		}
	}
	if !w.x.conn.h2 && (w.x.head.upgrade || w.x.method == http.MethodConnect) && code != http.StatusSwitchingProtocols {
		h["Connection"] = []string{"close"} // what follows was not checked as HTTP
	}
	w.stream = len(h["Content-Length"]) == 0 && !w.whole
	w.ResponseWriter.WriteHeader(code)
}

func (w *responseWriter) Write(b []byte) (int, error) {
	if !w.started {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(b)
	if w.stream && err == nil {
		err = http.NewResponseController(w.ResponseWriter).Flush()
	}
	return n, err
}

// ReadFrom copies src with a pooled buffer.
func (w *responseWriter) ReadFrom(src io.Reader) (total int64, err error) {
	buf := w.x.p.buffers.Get().(*[]byte)
	defer w.x.p.buffers.Put(buf)
	if w.stream {
		// The head of a stream is sent at once: its first byte may take long.
		if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
			return 0, err
		}
	}
	for {
		n, rerr := src.Read(*buf)
		if n > 0 {
			wrote, werr := w.Write((*buf)[:n])
			total += int64(wrote)
			if werr != nil {
				return total, werr
			}
		}
		if rerr == io.EOF {
			return total, nil
		}
		if rerr != nil {
			return total, rerr
		}
	}
}

// Flush implements http.Flusher for goproxy.
func (w *responseWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap lets http.ResponseController reach the server's writer.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker. The exchange closes the connection at its end.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.x.mu.Lock()
		w.x.hijacked = c
		if w.x.cut != nil { // meanwhile
			_ = c.Close()
		}
		w.x.mu.Unlock()
	}
	return c, rw, err
}

func (x *exchange) hijackedConn() net.Conn {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.hijacked
}
