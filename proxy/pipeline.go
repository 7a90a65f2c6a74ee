package proxy

import (
	"context"
	"maps"
	"net/http"

	"github.com/elazarl/goproxy"
)

// This file is the order of the pipeline; each step is in a file of its own.
//
//	identify run → canonicalise        serveHTTP
//	→ decide → reserve record          onRequest
//	→ grant → inject                   onRequest
//	→ guarded dial → forward           exchange.RoundTrip
//	→ scrub                            onResponse
//	→ complete record                  exchange.end

// serveHTTP is the handler of every request, however it arrived.
func (p *Proxy) serveHTTP(rw http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*clientConn)
	var h head
	var f *refusal
	if c.h2 {
		if !c.streams.begin() {
			panic(http.ErrAbortHandler)
		}
		defer c.streams.running.Done()
		h, f = p.h2Head(r)
	} else {
		c.busy.Store(true)
		h = c.fr.takeHead()
	}
	x := p.newExchange(c, h, r)
	// A copy: the server goes on to look at its own.
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	x.watchBody(r)
	x.w.ResponseWriter, x.w.x = rw, x
	w := &x.w
	defer x.end()

	if f == nil {
		f = x.identify(r)
	}
	if f == nil && x.release != nil {
		var done func()
		r, done = x.bound(r)
		defer done()
	}
	if f == nil && c.arr.proxying && r.Method == http.MethodConnect {
		f = x.connect(r)
		if f == nil {
			return
		}
	}
	if f == nil {
		f = x.takeOff()
		defer x.land()
	}
	if f == nil {
		f = x.canonicalise(r)
	}
	if f != nil {
		x.refuse(f)
		x.run.wearily(r.Context(), f)
		w.writeResponse(x.denial(r))
		return
	}
	if x.auth.host == reservedHost {
		x.serveReserved(r)
		return
	}
	p.forward.ServeHTTP(w, r)
}

type exchangeKey struct{}

// onRequest is what happens before anything leaves. A response ends it.
func (p *Proxy) onRequest(r *http.Request, ctx *goproxy.ProxyCtx) (*http.Request, *http.Response) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	ctx.RoundTripper = x
	for _, step := range [...]func(*exchange, *http.Request) *refusal{
		(*exchange).decide,
		(*exchange).noStandIn,
		(*exchange).withinLimits,
		(*exchange).reserve,
		(*exchange).grantCredential,
		(*exchange).inject,
		(*exchange).noStandInLeft,
	} {
		if f := step(x, r); f != nil {
			if cut := x.interrupted(); cut != nil {
				f = cut // why the step had to give up
			}
			x.refuse(f)
			x.run.wearily(r.Context(), f)
			return r, x.denial(r)
		}
	}
	return r, nil
}

// RoundTrip dials through the guard and forwards, streaming.
func (x *exchange) RoundTrip(r *http.Request, _ *goproxy.ProxyCtx) (*http.Response, error) {
	return x.forward(r)
}

// onResponse is what happens before anything of an answer reaches the client.
func (p *Proxy) onResponse(resp *http.Response, ctx *goproxy.ProxyCtx) *http.Response {
	x := ctx.Req.Context().Value(exchangeKey{}).(*exchange)
	if x.refusal != nil {
		return resp
	}
	f := x.upstreamFailure(ctx.Error)
	if f == nil {
		f = x.acceptable(resp)
	}
	if f == nil {
		f = x.scrub(resp)
	}
	if f != nil {
		x.refuse(f)
		return x.denial(ctx.Req)
	}
	x.status = resp.StatusCode
	x.cost = x.meterCost(resp.Header)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		// The fields go over as they are; goproxy would copy each (it keeps those
		// that are there).
		maps.Copy(x.w.Header(), resp.Header)
		resp.Header = nil
	}
	return resp
}
