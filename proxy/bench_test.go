package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"
)

const benchRequest = "GET /v1/items?page=2 HTTP/1.1\r\nHost: plain.allowed.test\r\nAccept: application/json\r\nAccept-Encoding: gzip\r\n" +
	"User-Agent: bench/1.0\r\nX-Request-Id: 0123456789abcdef\r\nContent-Type: application/json\r\nCache-Control: no-cache\r\n\r\n"

func benchAnswer(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h["X-A"], h["X-B"], h["Vary"] = []string{"1"}, []string{"2"}, []string{"Accept"}
	h["Content-Type"], h["Content-Length"] = []string{"application/json"}, []string{"1024"}
	w.Write(benchBody)
}

var benchBody = []byte(strings.Repeat("x", 1024))

func benchClient(b *testing.B, open func() *tls.Conn) {
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		c := open()
		defer c.Close()
		br := bufio.NewReader(c)
		for pb.Next() {
			io.WriteString(c, benchRequest)
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				b.Error(err)
				return
			}
			io.Copy(io.Discard, resp.Body)
		}
	})
}

// BenchmarkIntercepted is one request over a kept connection through the whole
// pipeline, with durable records.
func BenchmarkIntercepted(b *testing.B) {
	e := newEnv(b, benchAnswer, func(e *env, o *Options, _ *RunOptions) { o.Audit, o.Log = e.tape.Log, nil })
	b.SetParallelism(16)
	benchClient(b, func() *tls.Conn {
		c := e.tls("plain.allowed.test")
		c.NetConn().SetDeadline(time.Time{})
		return c
	})
}

// BenchmarkReverseProxy is the same with net/http's own reverse proxy and
// nothing else: no policy, no record, no checks.
func BenchmarkReverseProxy(b *testing.B) {
	e := newEnv(b, benchAnswer)
	rp := &httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "https", Host: "plain.allowed.test:443"}) },
		BufferPool: poolOf{e.p}, ErrorLog: log.New(io.Discard, "", 0),
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: e.up.pool},
			MaxIdleConnsPerHost: 1024, DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", e.up.tls)
			},
		},
	}
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	leaf, err := e.run.minter.leaf("plain.allowed.test")
	if err != nil {
		b.Fatal(err)
	}
	ln := tls.NewListener(in, &tls.Config{Certificates: []tls.Certificate{*leaf}})
	s := &http.Server{Handler: rp, ReadHeaderTimeout: time.Minute}
	go s.Serve(ln)
	b.Cleanup(func() { s.Close() })
	b.SetParallelism(16)
	benchClient(b, func() *tls.Conn {
		c, err := tls.Dial("tcp", ln.Addr().String(), e.clientTLS("plain.allowed.test"))
		if err != nil {
			b.Fatal(err)
		}
		return c
	})
}

type poolOf struct{ p *Proxy }

func (o poolOf) Get() []byte  { return *o.p.buffers.Get().(*[]byte) }
func (o poolOf) Put(b []byte) { o.p.buffers.Put(&b) }
