package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strconv"
	"time"
)

// pieceBytes is the length of the soak's streams.
const pieceBytes = 1 << 20

// misbehave answers the paths of the soak, and reports whether r was one.
func misbehave(w http.ResponseWriter, r *http.Request) bool {
	switch path.Base(r.URL.Path) {
	case "echo":
		w.Header().Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	case "piece":
		w.Header().Set("Content-Length", strconv.Itoa(pieceBytes))
		for range pieceBytes / 1024 {
			if _, err := w.Write(make([]byte, 1024)); err != nil {
				return true
			}
		}
	case "reflect": // what came, in the body and in a field
		w.Header().Set("X-Reflected", r.Header.Get("Authorization"))
		fmt.Fprintf(w, "%d bytes: %s", len(r.Header.Get("Authorization")), r.Header.Get("Authorization"))
	case "fails":
		http.Error(w, "injected", http.StatusInternalServerError)
	case "slow":
		time.Sleep(200 * time.Millisecond) // the fault
		_, _ = io.WriteString(w, "late")
	case "reset":
		hijacked(w, "", true)
	case "garbage":
		hijacked(w, "220 mail.bench.test ready\r\n", false)
	case "cut":
		hijacked(w, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf", false)
	case "broken":
		hijacked(w, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n", false)
	default:
		return false
	}
	return true
}

// hijacked says text on the bare connection and ends it, by a reset if asked.
func hijacked(w http.ResponseWriter, text string, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, text)
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok && reset {
		if tcp, ok := t.NetConn().(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
		}
	}
}
