package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elazarl/goproxy"
)

// Proxy serves the runs of one process. It is safe for concurrent use.
type Proxy struct {
	policy  func() Decider
	audit   Recorder
	log     *slog.Logger
	clock   func() time.Time
	limits  Limits
	leafKey *ecdsa.PrivateKey
	dialer  *dialer
	buffers *sync.Pool

	forward  *goproxy.ProxyHttpServer
	server   *http.Server
	h2base   *http.Server // settings of HTTP/2 connections
	feed     *feed
	served   chan struct{} // closed when the server's accept loop has ended
	panics   atomic.Int64
	heldBack atomic.Int64 // nanoseconds that runs waited for their bandwidth

	metrics  *metrics
	inFlight atomic.Int64 // requests

	mu     sync.Mutex
	closed bool
	runs   map[*Run]struct{}
}

// New checks the options and starts the server that all runs share. It makes no
// connection. Close must be called.
func New(o Options) (*Proxy, error) {
	if o.Policy == nil || o.Audit == nil {
		return nil, errors.New("proxy: no policy or no audit")
	}
	up, err := newUpstreams(o.Upstream)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("proxy: leaf key: %w", err)
	}
	p := &Proxy{
		policy: o.Policy, audit: o.Audit, log: o.Log, clock: o.Clock,
		limits: o.Limits.withDefaults(), leafKey: key, buffers: newBuffers(),
		feed: newFeed(), served: make(chan struct{}), runs: make(map[*Run]struct{}),
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.clock == nil {
		p.clock = time.Now
	}
	p.metrics = p.newMetrics()
	p.dialer = newDialer(up, p.limits.DialTimeout, p.buffers)
	p.dialer.panicked = p.panicked
	p.forward = p.newForwarder()
	p.server = p.newServer()
	p.h2base = p.newH2Base()
	go func() {
		defer close(p.served)
		if err := p.server.Serve(p.feed); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			p.log.Error("proxy: server ended", "error", err)
		}
	}()
	return p, nil
}

func (l Limits) withDefaults() Limits {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	count := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	count(&l.MaxHeaderBytes, 64<<10)
	count(&l.MaxHeaders, 256)
	count(&l.MaxConnsPerRun, 512)
	count(&l.MaxRequestsPerRun, 1024)
	count(&l.MaxDenials, 1000)
	if l.BodyCap <= 0 {
		l.BodyCap = 1 << 20
	}
	set(&l.FirstByteTimeout, 30*time.Second)
	set(&l.HandshakeTimeout, 15*time.Second)
	set(&l.HeaderTimeout, 30*time.Second)
	set(&l.IdleTimeout, 2*time.Minute)
	set(&l.TunnelIdleTimeout, time.Hour)
	set(&l.DialTimeout, 20*time.Second)
	set(&l.UpstreamHeaderTimeout, 15*time.Minute)
	return l
}

// newServer is the one server that speaks HTTP/1 to clients (h2.go: HTTP/2). It has no read or
// write timeout: a healthy stream may last as long as it likes.
func (p *Proxy) newServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           http.HandlerFunc(p.serveHTTP),
		Protocols:         protocols,
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
		ReadHeaderTimeout: p.limits.HeaderTimeout,
		IdleTimeout:       p.limits.IdleTimeout,
		MaxHeaderBytes:    p.limits.MaxHeaderBytes + 4096, // the framer's limit is the one that counts
		ErrorLog:          log.New(debugWriter{p.log}, "", 0),
		ConnContext: func(_ context.Context, c net.Conn) context.Context {
			cc := c.(*clientConn)
			return context.WithValue(cc.run.ctx, connKey{}, cc)
		},
		ConnState: func(c net.Conn, s http.ConnState) {
			switch cc := c.(*clientConn); s {
			case http.StateIdle:
				cc.answers.Add(1)
				cc.busy.Store(false)
			case http.StateClosed:
				cc.finish()
			}
		},
		DisableGeneralOptionsHandler: true,
	}
}

type connKey struct{}

// newForwarder sets everything of goproxy that has a default.
func (p *Proxy) newForwarder() *goproxy.ProxyHttpServer {
	g := goproxy.NewProxyHttpServer()
	refuseDial := errors.New("proxy: dialled outside of the guard")
	g.Logger = log.New(debugWriter{p.log}, "", 0)
	g.Verbose = false
	g.KeepHeader = true         // hop-by-hop fields are ours to remove
	g.KeepAcceptEncoding = true // so is this one
	g.KeepDestinationHeaders = true
	g.AllowHTTP2 = false
	g.PreventCanonicalization = false
	g.CertStore = nil
	g.ConnectDial = func(string, string) (net.Conn, error) { return nil, refuseDial }
	g.ConnectDialWithReq = func(*http.Request, string, string) (net.Conn, error) { return nil, refuseDial }
	g.Tr = &http.Transport{
		DialContext:    func(context.Context, string, string) (net.Conn, error) { return nil, refuseDial },
		DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return nil, refuseDial },
	}
	g.NonproxyHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	})
	g.OnRequest().HandleConnect(goproxy.AlwaysReject)
	g.OnRequest().DoFunc(p.onRequest)
	g.OnResponse().DoFunc(p.onResponse)
	return g
}

// Close ends every run and the server.
func (p *Proxy) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	runs := make([]*Run, 0, len(p.runs))
	for r := range p.runs {
		runs = append(runs, r)
	}
	p.mu.Unlock()
	var errs []error
	for _, r := range runs {
		errs = append(errs, r.Close(ctx))
	}
	_ = p.feed.Close()
	errs = append(errs, p.server.Close())
	<-p.served
	return errors.Join(errs...)
}

// Bandwidth is how many bytes a second each run gets, both ways together; 0: no limit.
func (p *Proxy) Bandwidth() int64 { return p.limits.BytesPerSecond }

func (p *Proxy) addRun(r *Run) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("proxy: run: the proxy is closed")
	}
	p.runs[r] = struct{}{}
	return nil
}

func (p *Proxy) dropRun(r *Run) {
	p.mu.Lock()
	delete(p.runs, r)
	p.mu.Unlock()
}

// panicked counts and logs a recovered panic. A value that is not the runtime's
// may hold anything, so only its type is told.
func (p *Proxy) panicked(where string, v any) {
	p.panics.Add(1)
	what := fmt.Sprintf("%T", v)
	var re runtime.Error
	if err, ok := v.(error); ok && errors.As(err, &re) {
		what = re.Error()
	}
	p.log.Error("proxy: panic", "where", where, "value", what, "stack", string(debug.Stack()))
}

// debugWriter sends what libraries print to the debug level.
type debugWriter struct{ log *slog.Logger }

func (w debugWriter) Write(b []byte) (int, error) {
	w.log.Debug("proxy: library", "message", string(b))
	return len(b), nil
}
