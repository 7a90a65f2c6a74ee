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
	"strings"
	"sync"
	"time"
)

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
	listen, dir := fs.String("listen", "", ""), fs.String("pki", "", "")
	origin, plain := fs.String("origin", "", ""), fs.String("plain", "", "")
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
		Transport:  referenceTransport(roots, *origin, *plain),
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
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodConnect {
				forward.ServeHTTP(w, r) // with the whole URL in the request line
				return
			}
			takeConnect(w, func(conn net.Conn) { inner.conns <- tls.Server(conn, config) })
		}),
	}
	failed := make(chan error, 2)
	go func() { failed <- intercepted.Serve(inner) }()
	go func() { failed <- outer.ListenAndServe() }()
	return <-failed
}

// referenceTransport goes to the one origin, in TLS on port 443 and in clear text else.
func referenceTransport(roots *x509.CertPool, origin, plain string) *http.Transport {
	var d net.Dialer
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			if strings.HasSuffix(addr, ":443") {
				return d.DialContext(ctx, "tcp", origin)
			}
			return d.DialContext(ctx, "tcp", plain)
		},
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ClientSessionCache: tls.NewLRUClientSessionCache(1024)},
		MaxIdleConns:        4096,
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true,
	}
}

// takeConnect answers a CONNECT and hands the connection to next.
func takeConnect(w http.ResponseWriter, next func(net.Conn)) {
	conn, early, err := http.NewResponseController(w).Hijack()
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
	next(conn)
}

// serveSplice is what a tunnel costs at least: CONNECT, and io.Copy both ways,
// which the kernel does by itself (splice(2)).
func serveSplice(args []string) error {
	fs := flag.NewFlagSet("splice", flag.ContinueOnError)
	listen, origin := fs.String("listen", "", ""), fs.String("origin", "", "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	srv := &http.Server{
		Addr: *listen, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 30 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			takeConnect(w, func(client net.Conn) {
				up, err := net.Dial("tcp", *origin)
				if err != nil {
					client.Close()
					return
				}
				go func() {
					_, _ = io.Copy(up, client)
					up.Close()
				}()
				_, _ = io.Copy(client, up)
				client.Close()
			})
		}),
	}
	return srv.ListenAndServe()
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
