package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// serveOrigin answers each request with 1 KiB of JSON and seven headers.
func serveOrigin(args []string) error {
	fs := flag.NewFlagSet("origin", flag.ContinueOnError)
	listen, dir := fs.String("listen", "", ""), fs.String("pki", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	body := []byte(`{"items":"` + strings.Repeat("x", 1024-12) + `"}`)
	length := strconv.Itoa(len(body))
	handler := func(w http.ResponseWriter, _ *http.Request) {
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
		Addr: *listen, Handler: http.HandlerFunc(handler), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute,
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	return srv.ListenAndServeTLS(filepath.Join(*dir, "origin.crt"), filepath.Join(*dir, "origin.key"))
}

// reference is what the standard library gives for an intercepting proxy, with
// its known brakes released: a buffer pool, 1024 idle connections a host, one
// tls.Config for all connections (so that sessions resume), cached leaves.
type reference struct {
	ca    tls.Certificate
	caCrt *x509.Certificate
	leaf  *ecdsa.PrivateKey

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // guarded by mu
}

func serveReference(args []string) error {
	fs := flag.NewFlagSet("reference", flag.ContinueOnError)
	listen, dir, origin := fs.String("listen", "", ""), fs.String("pki", "", ""), fs.String("origin", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ca, err := tls.LoadX509KeyPair(filepath.Join(*dir, "ca.crt"), filepath.Join(*dir, "ca.key"))
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	roots, err := pool(filepath.Join(*dir, "origin-ca.crt"))
	if err != nil {
		return err
	}
	ref := &reference{ca: ca, caCrt: ca.Leaf, leaf: key, leaves: map[string]*tls.Certificate{}}
	quiet := log.New(io.Discard, "", 0)
	forward := &httputil.ReverseProxy{
		Rewrite:    func(*httputil.ProxyRequest) {},
		Transport:  referenceTransport(roots, *origin),
		BufferPool: &buffers{sync.Pool{New: func() any { return new([32 << 10]byte) }}},
		ErrorLog:   quiet,
	}
	inner := &handoff{conns: make(chan net.Conn)}
	intercepted := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.URL.Scheme, r.URL.Host = "https", originName+":443"
			forward.ServeHTTP(w, r)
		}),
		ErrorLog: quiet, ReadHeaderTimeout: 30 * time.Second,
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: ref.certificate}
	outer := &http.Server{
		Addr: *listen, ErrorLog: quiet, ReadHeaderTimeout: 30 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { takeConnect(w, r, inner, config) }),
	}
	failed := make(chan error, 2)
	go func() { failed <- intercepted.Serve(inner) }()
	go func() { failed <- outer.ListenAndServe() }()
	return <-failed
}

func referenceTransport(roots *x509.CertPool, origin string) *http.Transport {
	var d net.Dialer
	return &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "tcp", origin) },
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ClientSessionCache: tls.NewLRUClientSessionCache(1024)},
		MaxIdleConns:        4096,
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
	}
}

// takeConnect answers a CONNECT and hands the connection, over TLS, to inner.
func takeConnect(w http.ResponseWriter, r *http.Request, inner *handoff, config *tls.Config) {
	if r.Method != http.MethodConnect {
		http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
		return
	}
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, "cannot hijack", http.StatusInternalServerError)
		return
	}
	conn, early, err := hijacker.Hijack()
	if err != nil {
		return
	}
	if early.Reader.Buffered() > 0 { // the load generator waits for the answer
		conn.Close()
		return
	}
	if _, err := fmt.Fprint(conn, "HTTP/1.1 200 Connection Established\r\n\r\n"); err != nil {
		conn.Close()
		return
	}
	inner.conns <- tls.Server(conn, config)
}

func (r *reference) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.leaves[hello.ServerName]; c != nil {
		return c, nil
	}
	key, ok := r.ca.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the CA's key is a %T", r.ca.PrivateKey)
	}
	a := &authority{cert: r.caCrt, key: key}
	der, err := a.leaf(hello.ServerName, r.leaf)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der, r.ca.Certificate[0]}, PrivateKey: r.leaf}
	r.leaves[hello.ServerName] = c
	return c, nil
}

// handoff is a listener whose connections come from another server.
type handoff struct{ conns chan net.Conn }

func (h *handoff) Accept() (net.Conn, error) { return <-h.conns, nil }
func (h *handoff) Close() error              { return nil }
func (h *handoff) Addr() net.Addr            { return &net.TCPAddr{} }

type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	buf, ok := b.pool.Get().(*[32 << 10]byte)
	if !ok {
		return make([]byte, 32<<10)
	}
	return buf[:]
}

func (b *buffers) Put(buf []byte) { b.pool.Put((*[32 << 10]byte)(buf)) }
