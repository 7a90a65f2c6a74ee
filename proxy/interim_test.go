package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A client that goes away between interim answers ends its own exchange: what comes
// of them after that is written nowhere, and ends nothing.
func TestInterimAnswersEndWithTheirExchange_I10_F055(t *testing.T) {
	many := strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 2000)
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		if r.URL.Path == "/many" {
			_, _ = io.WriteString(c, many)
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
	})
	var wg sync.WaitGroup
	for range 4 {
		r := e.rawH2("plain.allowed.test")
		wg.Go(func() {
			go io.Copy(io.Discard, r.c)
			for i := range 60 {
				stream := uint32(2*i + 1)
				r.headers(stream, ":method", "GET", ":scheme", "https", ":path", "/many", ":authority", "plain.allowed.test")
				time.Sleep(time.Duration(i%12) * time.Millisecond) // so that it is hit at each stage
				if r.fr.WriteRSTStream(stream, http2.ErrCodeCancel) != nil {
					return
				}
			}
			r.c.Close()
		})
	}
	wg.Wait()
	if r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test")); r.body != "hello" {
		t.Errorf("control: %v %q", r.Response, r.body)
	}
	if err := e.run.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := e.p.panics.Load(); n != 0 {
		t.Errorf("%d panics", n)
	}
}

// After an interim answer to a client that has reset its stream, the HTTP/2 server may
// still read the fields it was given: nothing is added to them or taken away.
func TestNoFieldIsTouchedOfAnAnswerThatIsLost_I10_F055(t *testing.T) {
	for _, gone := range []bool{false, true} {
		over := make(chan struct{})
		rec := httptest.NewRecorder()
		x := &exchange{p: &Proxy{}, conn: &clientConn{h2: true}, proto: "h2", clientGone: over}
		x.w = responseWriter{ResponseWriter: rec, x: x}
		if gone {
			close(over)
		}
		if err := x.interim(103, textproto.MIMEHeader{"Link": {"</a>"}}); err != nil {
			t.Fatal(err)
		}
		x.noMoreInterims()
		x.w.Header().Set("X-Later", "a")
		_, kept := rec.Header()["Link"]
		_, later := rec.Header()["X-Later"]
		if kept != gone || later == gone {
			t.Errorf("gone %v: the server holds %v", gone, rec.Header())
		}
		if err := x.interim(103, textproto.MIMEHeader{"X-More": {"b"}}); err != nil || rec.Header().Get("X-More") != "" {
			t.Errorf("gone %v: one more: %v, %v", gone, err, rec.Header())
		}
	}
}
