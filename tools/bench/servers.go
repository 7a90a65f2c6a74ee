package main

import (
	"crypto/sha1" // RFC 6455 §4.2.2 prescribes it
	"crypto/tls"
	"encoding/base64"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// serveOrigin answers each request with 1 KiB of JSON and seven headers, and some
// paths in other ways: a long stream, two chunks with a pause, a WebSocket's echo,
// and what the soak asks for (faults.go).
func serveOrigin(args []string) error {
	fs := flag.NewFlagSet("origin", flag.ContinueOnError)
	listen, plain, dir := fs.String("listen", "", ""), fs.String("plain", "", ""), fs.String("pki", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	body := []byte(`{"items":"` + strings.Repeat("x", 1024-12) + `"}`)
	length := strconv.Itoa(len(body))
	piece := make([]byte, 64<<10)
	for i := range piece {
		piece[i] = byte('a' + i*7%26)
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		switch path.Base(r.URL.Path) {
		case "stream":
			w.Header().Set("Content-Length", strconv.Itoa(streamBytes))
			for sent := 0; sent < streamBytes; sent += len(piece) {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
			return
		case "trickle":
			trickle(w)
			return
		case "ws":
			echo(w, r)
			return
		}
		if misbehave(w, r) {
			return
		}
		h := w.Header() // and Date, which the server adds
		h.Set("Content-Type", "application/json")
		h.Set("Content-Length", length)
		h.Set("Cache-Control", "no-store")
		h.Set("Vary", "Accept-Encoding")
		h.Set("X-Request-Id", "0123456789abcdef")
		h.Set("X-Api-Version", "1")
		_, _ = w.Write(body)
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(handler), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute,
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	clear, err := net.Listen("tcp", *plain)
	if err != nil {
		return err
	}
	secure, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- srv.Serve(clear) }()
	go func() {
		failed <- srv.ServeTLS(secure, filepath.Join(*dir, "origin.crt"), filepath.Join(*dir, "origin.key"))
	}()
	return <-failed
}

// trickle sends when it is now, in nanoseconds, and ends a moment later.
func trickle(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	_ = rc.Flush() // the head, alone
	_, _ = io.WriteString(w, strconv.FormatInt(time.Now().UnixNano(), 10)+"\n")
	_ = rc.Flush()
	time.Sleep(10 * time.Millisecond) // whoever collects the whole answer is this late
	_, _ = io.WriteString(w, "end")
}

// echo takes messages of the one shape that the load sends, masked with zeros, and
// sends them back unmasked.
func echo(w http.ResponseWriter, r *http.Request) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "+
		base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\n")
	in := make([]byte, 8+messageBytes)
	for err == nil {
		if _, err = io.ReadFull(rw, in); err == nil {
			out := append([]byte{in[0], in[1] &^ 0x80}, in[2:4]...)
			_, err = conn.Write(append(out, in[8:]...))
		}
	}
}
