package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"

	"warder/audit"
	"warder/broker"
	"warder/internal/identity"
	"warder/internal/scrub"
	"warder/internal/secret"
)

// Granter gives credentials to one run. *broker.Session implements it.
type Granter interface {
	Grant(ctx context.Context, credential string, t broker.Target) (*broker.Grant, error)
}

// Run is one run's side of the proxy: its CA, its upstream pools, its limits.
// It is safe for concurrent use.
type Run struct {
	p        *Proxy
	id       *identity.Run // nil: callers that are not identified yet
	offered  []string
	granter  Granter
	standIns []StandIn
	nameOf   func(netip.Addr) (string, bool)
	ca       *CA
	minter   *minter
	tls      *tls.Config // one for all its connections, so that sessions resume
	dialer   *dialer
	flow     meter
	refusals meter
	flying   atomic.Int64 // requests under way
	total    counter      // of all that was let through
	keptBody atomic.Int64 // bytes of bodies kept for judging again
	lobby    *lobby       // set: callers are not identified yet

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // one per connection

	mu         sync.Mutex
	closed     bool
	conns      map[net.Conn]struct{}
	transports map[string]*http.Transport  // by credential, "" without
	grpc       map[string]*http2.Transport // the same, for gRPC
	certs      map[string]*tls.Certificate // of these pools, where they have one
	overrides  map[string]bool             // recorded
	denials    []Denial
	used       map[string]*counter        // by scope
	usedBy     map[string]*counter        // by credential
	scrubbers  map[string]*scrub.Scrubber // by credential: of the values used last
	ongoing    map[ongoing]going
	last       *audit.Future // of the latest completed record
}

// NewRun opens a run. Close must be called.
func (p *Proxy) NewRun(o RunOptions) (*Run, error) {
	if o.Run.ID == "" {
		return nil, errors.New("proxy: run: no id")
	}
	id := o.Run
	return p.newRun(&id, o)
}

func (p *Proxy) newRun(id *identity.Run, o RunOptions) (*Run, error) {
	ca := o.CA
	if ca == nil {
		var err error
		if ca, err = NewCA(); err != nil {
			return nil, err
		}
	}
	r := &Run{
		p: p, id: id, offered: slices.Clone(o.Offered), granter: o.Granter, nameOf: o.NameOf,
		standIns: slices.DeleteFunc(slices.Clone(o.StandIns), func(s StandIn) bool { return s.Value == "" }),
		ca:       ca, minter: newMinter(ca, p.leafKey, p.clock),
		conns:      make(map[net.Conn]struct{}),
		transports: make(map[string]*http.Transport),
		grpc:       make(map[string]*http2.Transport),
		certs:      make(map[string]*tls.Certificate),
		overrides:  make(map[string]bool),
		scrubbers:  make(map[string]*scrub.Scrubber),
		used:       make(map[string]*counter),
		usedBy:     make(map[string]*counter),
		ongoing:    make(map[ongoing]going),
	}
	r.flow.rate, r.refusals.rate = float64(p.limits.BytesPerSecond), refusalRate
	r.flow.held = &p.heldBack
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.tls = &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1", "http/1.0"},
		GetCertificate: r.certificate, Time: p.clock,
	}
	d := *p.dialer
	d.used = r.noteOverride
	r.dialer = &d
	if err := p.addRun(r); err != nil {
		return nil, err
	}
	go r.endQuiet()
	if s, ok := o.Granter.(stopper); ok {
		go r.watchStops(s)
	}
	return r, nil
}

// CACertPEM is the certificate that the run's clients must trust.
func (r *Run) CACertPEM() []byte { return r.ca.CertPEM() }

func (r *Run) identity() string {
	if r.id == nil {
		return ""
	}
	return r.id.ID
}

// ServeConn takes a transparent connection and returns at once.
func (r *Run) ServeConn(c net.Conn, d Destination) {
	arr := arrival{transparent: true}
	arr.want = destination(d)
	r.accept(c, arr)
}

// ServeExplicit takes a connection on which the client speaks to a proxy
// (CONNECT, absolute-form) and returns at once.
func (r *Run) ServeExplicit(c net.Conn) { r.accept(c, arrival{proxying: true}) }

// Refuse records a connection that was not accepted at all.
func (r *Run) Refuse(d Destination, reason string) {
	c := &clientConn{p: r.p, run: r, arr: arrival{transparent: true, want: destination(d)}}
	f := refuse(reason, reasonByCode(reason).meaning)
	c.recordRefused(identity.NewID(), f)
}

func destination(d Destination) authority {
	a := authority{host: d.Name, port: int(d.Addr.Port()), stated: true}
	if d.Name == "" {
		a.host, a.literal = d.Addr.Addr().Unmap().WithZone("").String(), true
	} else if host, literal, err := canonicalHost(d.Name); err == nil {
		a.host, a.literal = host, literal
	}
	return a
}

func (r *Run) accept(raw net.Conn, arr arrival) {
	if f := r.track(raw); f != nil {
		c := &clientConn{p: r.p, run: r, arr: arr}
		c.recordRefused(identity.NewID(), f)
		_ = raw.Close()
		return
	}
	if r.lobby == nil {
		go r.p.serve(r, raw, arr, func() { r.untrack(raw) })
		return
	}
	r.lobby.places.arrive(raw)
	go r.p.serve(r, raw, arr, func() {
		r.lobby.places.gone(raw)
		r.untrack(raw)
	})
}

// track counts a connection in; the caller owes one untrack.
func (r *Run) track(raw net.Conn) *refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return refuse(reasonTooMany, "the run has ended")
	}
	if len(r.conns) >= r.p.limits.MaxConnsPerRun && r.lobby == nil { // a listener counts by client
		return refuse(reasonTooMany, "too many open connections")
	}
	r.conns[raw] = struct{}{}
	r.wg.Add(1)
	return nil
}

func (r *Run) untrack(raw net.Conn) {
	r.mu.Lock()
	delete(r.conns, raw)
	r.mu.Unlock()
	r.wg.Done()
}

// Close stops accepting, cuts what is open and waits until every exchange has
// its completed record in the log, or ctx ends. What is appended after it and
// waited for, as the end of a run is, makes all of them durable.
func (r *Run) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	open := slices.Collect(maps.Keys(r.conns))
	r.mu.Unlock()
	r.cancel()
	for _, c := range open { // the end of TLS may wait for a client that takes nothing
		_ = c.Close()
	}
	done := make(chan struct{})
	go func() { // also when nobody waits any more
		r.wg.Wait()
		r.forget()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("proxy: close run %s: %w", r.identity(), ctx.Err())
	}
	r.mu.Lock()
	last := r.last
	r.mu.Unlock()
	if last != nil {
		if err := last.Wait(ctx); err != nil {
			return fmt.Errorf("proxy: close run %s: records: %w", r.identity(), err)
		}
	}
	return nil
}

// forget drops what is kept for a run that has nothing open.
func (r *Run) forget() {
	r.p.dropRun(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.transports {
		t.CloseIdleConnections()
	}
	for _, t := range r.grpc {
		t.CloseIdleConnections()
	}
	clear(r.scrubbers)
}

// Denials lists the refused requests, oldest first, at most Limits.MaxDenials.
func (r *Run) Denials() []Denial {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.denials)
}

func (r *Run) deny(d Denial) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.denials) >= r.p.limits.MaxDenials {
		r.denials = append(r.denials[:0], r.denials[1:]...)
	}
	r.denials = append(r.denials, d)
}

func (r *Run) keepFuture(f *audit.Future) {
	r.mu.Lock()
	r.last = f
	r.mu.Unlock()
}

// noteOverride records, once per run and name, that upstream.hosts was used.
func (r *Run) noteOverride(ctx context.Context, name string, o override) {
	value := name + "=" + o.addr.String()
	if o.port != 0 {
		value = name + "=" + netip.AddrPortFrom(o.addr, o.port).String()
	}
	r.mu.Lock()
	seen := r.overrides[name]
	r.overrides[name] = true
	r.mu.Unlock()
	if seen {
		return
	}
	r.keepFuture(r.p.audit.Append(context.WithoutCancel(ctx), &audit.Record{
		Event: audit.EventOverride, Run: r.id,
		Override: &audit.Override{Setting: "proxy.upstream.hosts", Value: value},
	}))
}

// scrubber finds the secrets of one exchange. It is made once for all exchanges
// that have the same ones.
func (r *Run) scrubber(credential string, secrets []secret.String) *scrub.Scrubber {
	r.mu.Lock()
	known := r.scrubbers[credential]
	r.mu.Unlock()
	s := known.For(secrets)
	if s != known {
		r.mu.Lock()
		if !r.closed {
			r.scrubbers[credential] = s
		}
		r.mu.Unlock()
	}
	return s
}

// grpcTransport is the same over HTTP/2, one pool for each credential.
func (r *Run) grpcTransport(credential string) *http2.Transport {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.grpc[credential]
	if t == nil {
		t = newGRPCTransport(r.dialer)
		r.grpc[credential] = t
	}
	return t
}

// transport is the pool of one credential ("" without): connections are never
// shared between runs or credentials.
func (r *Run) transport(credential string) *http.Transport {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.transports[credential]
	if t == nil {
		t = newTransport(r.dialer, r.p.limits)
		r.transports[credential] = t
	}
	return t
}
