package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What stands still is ended after the idle limit; what moves, however slowly, is not.
func TestAnExchangeThatStandsStillIsEnded_I9(t *testing.T) {
	const limit = 400 * time.Millisecond
	for _, what := range []string{"a stream", "a WebSocket", "an upload"} {
		t.Run(what, func(t *testing.T) {
			release := make(chan struct{})
			defer close(release)
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/moves" {
					ticking(t)(w, r)
					return
				}
				if r.Header.Get("Upgrade") != "" {
					c, _, _ := w.(http.Hijacker).Hijack()
					defer c.Close()
					io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n|")
					<-release
					return
				}
				if r.Method == http.MethodPost {
					io.Copy(io.Discard, r.Body)
					return
				}
				io.WriteString(w, "first\n")
				w.(http.Flusher).Flush()
				select {
				case <-release:
				case <-r.Context().Done():
				}
			}, withLimits(Limits{TunnelIdleTimeout: limit}))
			moves := event(t, e.tls("plain.allowed.test"), "/moves")
			c := e.tls("plain.allowed.test")
			switch what {
			case "a WebSocket":
				send(t, c, wsRequest)
			case "an upload":
				send(t, c, "POST /up HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Length: 100\r\n\r\nhalf")
			default:
				send(t, c, get("/still", "plain.allowed.test"))
			}
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			b, err := io.ReadAll(c)
			if isTimeout(err) {
				t.Fatalf("it is not ended: %q", b)
			}
			if err := lines(moves, 20); err != nil {
				t.Errorf("control: a stream that moves: %v", err)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != reasonUpstreamTimeout || !strings.Contains(rec.Detail, "idle limit") {
				t.Errorf("recorded as %q, %q", rec.Reason, rec.Detail)
			}
		})
	}
}
