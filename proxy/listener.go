package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// lobby knows the callers of one listener: each client is one run from its first
// use until it has had no open connection for a while.
type lobby struct {
	p    *Proxy
	o    ListenOptions
	ctx  context.Context
	tls  *tls.Config // nil: the listener itself speaks no TLS
	home *Run        // has all connections; may call nothing

	clients atomic.Pointer[[]Client]
	local   bool // on a loopback address

	places *places
	ending sync.WaitGroup // ends of runs

	mu   sync.Mutex
	runs map[string]*guest
}

type guest struct {
	ready chan struct{} // closed when run or err is set
	run   *Run
	err   error
	since time.Time // of the last use
}

// ServeListener serves an explicit proxy on ln until ctx ends or ln fails, then
// ends the runs that it began. Without clients ln must be on a loopback address.
func (p *Proxy) ServeListener(ctx context.Context, ln net.Listener, o ListenOptions) error {
	if o.Open == nil || o.Close == nil {
		return errors.New("proxy: listen: no way to begin or end a run")
	}
	if len(o.Clients) == 0 && !onLoopback(ln.Addr()) {
		return fmt.Errorf("proxy: listen: %s: without clients only a loopback address is served; hint: set proxy.clients", ln.Addr())
	}
	if o.IdleEnd <= 0 {
		o.IdleEnd = 10 * time.Minute
	}
	if o.EndTime <= 0 {
		o.EndTime = 30 * time.Second
	}
	p.keepAway(ln.Addr())
	home, err := p.newRun(nil, RunOptions{})
	if err != nil {
		return err
	}
	l := &lobby{p: p, o: o, ctx: ctx, home: home, runs: make(map[string]*guest), places: newPlaces(p.limits.MaxConnsPerRun)}
	l.local = onLoopback(ln.Addr())
	list := slices.Clone(o.Clients)
	l.clients.Store(&list)
	l.tls = l.clientTLS()
	home.lobby = l
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var sweeper sync.WaitGroup
	sweepCtx, cancel := context.WithCancel(ctx)
	sweeper.Go(func() { l.sweepUntil(sweepCtx) })
	err = l.accept(ln)
	cancel()
	sweeper.Wait()
	end, done := l.endTime()
	defer done()
	closeErr := home.Close(end)
	l.endAll(end)
	l.ending.Wait()
	if ctx.Err() != nil {
		return closeErr
	}
	return errors.Join(err, closeErr)
}

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err == nil && strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host
}

func onLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// accept survives a lack of descriptors by waiting (EMFILE, ENFILE).
func (l *lobby) accept(ln net.Listener) error {
	wait := 5 * time.Millisecond
	for {
		c, err := ln.Accept()
		switch {
		case err == nil:
			wait = 5 * time.Millisecond
			l.home.accept(c, arrival{proxying: true})
		case errors.Is(err, net.ErrClosed) || l.ctx.Err() != nil:
			return nil
		case isTemporary(err):
			l.p.log.Warn("proxy: accept", "error", err, "retry", wait)
			select {
			case <-time.After(wait):
			case <-l.ctx.Done():
			}
			wait = min(2*wait, time.Second)
		default:
			return fmt.Errorf("proxy: accept: %w", err)
		}
	}
}

func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// identify finds the run that a request belongs to: the stack it came through,
// or the token that the caller of a listener shows.
func (x *exchange) identify(r *http.Request) *refusal {
	l := x.run.lobby
	if l == nil {
		return nil
	}
	who, ok := x.conn.client, x.conn.client != Client{}
	if !ok {
		who, ok = l.authenticate(r.Header.Get("Proxy-Authorization"))
	}
	if !ok {
		return refuse(reasonUnauthenticated, "the proxy does not know this client")
	}
	run, release, f := l.admit(r.Context(), who, x.conn, x.conn.raw)
	if f == nil {
		x.run, x.release = run, release
	}
	return f
}

// admit counts a connection, which was accepted as raw, into the run of a known client.
func (l *lobby) admit(ctx context.Context, who Client, c, raw net.Conn) (*Run, func(), *refusal) {
	if !l.places.settle(raw, who) {
		return nil, nil, refuse(reasonTooMany, "too many open connections")
	}
	for range 2 { // the run may end for idleness between the two steps
		run, err := l.enter(ctx, who)
		if errors.Is(err, errUnknownCaller) {
			return nil, nil, l.turnAway(raw)
		}
		if err != nil {
			f := refuse(reasonInternalError, "the client's run could not begin")
			f.cause = err.Error()
			return nil, nil, f
		}
		f := run.track(c)
		if f == nil && !l.stillKnows(who) { // taken out while its run began
			run.untrack(c)
			return nil, nil, l.turnAway(raw)
		}
		if f == nil {
			return run, func() { run.untrack(c) }, nil
		}
		if !run.ended() {
			return nil, nil, f
		}
		l.forget(who.Name, run)
	}
	return nil, nil, refuse(reasonTooMany, "the client's run has just ended")
}

// authenticate takes "Bearer TOKEN", or Basic with the token as its password.
func (l *lobby) authenticate(field string) (who Client, ok bool) {
	if len(l.known()) == 0 {
		return Client{}, true
	}
	token := ""
	scheme, rest, _ := strings.Cut(field, " ")
	switch strings.ToLower(scheme) {
	case "bearer":
		token = strings.TrimSpace(rest)
	case "basic":
		if pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest)); err == nil {
			_, token, _ = strings.Cut(string(pair), ":")
		}
	}
	return l.byToken(token)
}

// byToken compares every client in constant time.
func (l *lobby) byToken(token string) (who Client, ok bool) {
	sum := sha256.Sum256([]byte(token))
	for _, c := range l.known() {
		if subtle.ConstantTimeCompare(sum[:], c.Token[:]) == 1 && token != "" {
			who, ok = c, true
		}
	}
	return who, ok
}

// enter gives the run of a client, beginning it at first use. Concurrent first
// uses begin one.
func (l *lobby) enter(ctx context.Context, who Client) (*Run, error) {
	name := who.Name
	l.mu.Lock()
	if !l.knows(who) {
		l.mu.Unlock()
		return nil, errUnknownCaller
	}
	g := l.runs[name]
	mine := g == nil
	if mine {
		g = &guest{ready: make(chan struct{})}
		l.runs[name] = g
	}
	g.since = time.Now()
	l.mu.Unlock()
	if mine {
		l.begin(ctx, who, g)
		if g.err != nil {
			l.mu.Lock()
			if l.runs[name] == g { // not one that came under this name since
				delete(l.runs, name)
			}
			l.mu.Unlock()
		}
		close(g.ready)
	}
	select {
	case <-g.ready:
		return g.run, g.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *lobby) begin(ctx context.Context, who Client, g *guest) {
	defer recoverTo(&g.err, "begin of a run", l.p.panicked)
	g.run, g.err = l.o.Open(context.WithoutCancel(ctx), who)
	if g.err == nil && g.run == nil {
		g.err = errors.New("proxy: no run")
	}
}

func (l *lobby) sweepUntil(ctx context.Context) {
	tick := time.NewTicker(max(l.o.IdleEnd/4, time.Millisecond))
	defer tick.Stop()
	updates := l.o.Updates
	for {
		select {
		case <-ctx.Done():
			return
		case list, open := <-updates:
			if !open {
				updates = nil
				continue
			}
			l.take(list)
		case <-tick.C:
			l.endIdle()
		}
	}
}

// endIdle ends the runs without an open connection that were not used lately.
func (l *lobby) endIdle() {
	idle := map[string]*guest{}
	l.mu.Lock()
	for name, g := range l.runs {
		select {
		case <-g.ready:
		default:
			continue
		}
		if time.Since(g.since) > l.o.IdleEnd && g.run.idle() {
			idle[name] = g
			delete(l.runs, name)
		}
	}
	l.mu.Unlock()
	l.endGuests(idle)
}

// endGuests ends the runs of guests whom nobody finds any more: the end of one waits for
// its credentials, not the others.
func (l *lobby) endGuests(guests map[string]*guest) {
	for name, g := range guests {
		l.ending.Go(func() {
			ctx, done := l.endTime()
			defer done()
			l.endGuest(ctx, name, g)
		})
	}
}

// endTime bounds the end of a run, which the end of the listener does not cut short.
func (l *lobby) endTime() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(l.ctx), l.o.EndTime)
}

func (l *lobby) endGuest(ctx context.Context, name string, g *guest) {
	defer recoverTo(new(error), "end of a run", l.p.panicked)
	<-g.ready
	if g.run == nil {
		return
	}
	if err := g.run.Close(ctx); err != nil {
		l.p.log.Error("proxy: end of a client's run", "client", name, "error", err)
	}
	l.o.Close(ctx, name, g.run)
}

// forget drops a run that has ended by itself, so that the next use begins one.
func (l *lobby) forget(name string, run *Run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.runs[name]
	if g == nil {
		return
	}
	select {
	case <-g.ready:
		if g.run == run {
			delete(l.runs, name)
		}
	default: // another, which is just beginning
	}
}

func (l *lobby) endAll(ctx context.Context) {
	l.mu.Lock()
	all := l.runs
	l.runs = map[string]*guest{}
	l.mu.Unlock()
	for name, g := range all {
		l.ending.Go(func() { l.endGuest(ctx, name, g) })
	}
}

// idle reports that no connection or exchange is open.
func (r *Run) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns) == 0
}

func (r *Run) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}
