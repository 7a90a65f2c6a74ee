// Stockgoproxy is goproxy as its documentation has it, for the benchmark: its own
// interception, its own transport, certificates kept. It is a module of its own,
// because in the product goproxy may be used by the proxy package alone.
//
//	stockgoproxy LISTEN CA.crt CA.key ORIGIN
//
// Every host is the origin. Its roots come from SSL_CERT_FILE.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"

	"github.com/elazarl/goproxy"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: stockgoproxy LISTEN CA.crt CA.key ORIGIN")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "stockgoproxy:", err)
		os.Exit(1)
	}
}

func serve(listen, crt, key, origin string) error {
	ca, err := tls.LoadX509KeyPair(crt, key)
	if err != nil {
		return err
	}
	p := goproxy.NewProxyHttpServer()
	p.CertStore = &certs{known: map[string]*tls.Certificate{}}
	p.Tr.TLSClientConfig = nil // it verifies, as the others do
	p.Tr.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, origin)
	}
	action := &goproxy.ConnectAction{Action: goproxy.ConnectMitm, TLSConfig: goproxy.TLSConfigFromCA(&ca)}
	p.OnRequest().HandleConnectFunc(func(host string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		return action, host
	})
	return http.ListenAndServe(listen, p) //nolint:gosec // as documented: no timeouts
}

// certs keeps leaves, as the documentation advises.
type certs struct {
	mu    sync.Mutex
	known map[string]*tls.Certificate // guarded by mu
}

func (c *certs) Fetch(host string, make func() (*tls.Certificate, error)) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.known[host]; known != nil {
		return known, nil
	}
	made, err := make()
	if err == nil {
		c.known[host] = made
	}
	return made, err
}
