package proxy

import (
	"net/http"
	"time"
)

// readDeadline bounds how long a slot that has to see the whole body waits for
// it. The returned function lifts the bound.
func (x *exchange) readDeadline() func() {
	if !x.grant.ReadsBody() {
		return func() {}
	}
	ctl := http.NewResponseController(x.w.ResponseWriter)
	_ = ctl.SetReadDeadline(time.Now().Add(x.p.limits.HeaderTimeout))
	return func() { _ = ctl.SetReadDeadline(time.Time{}) }
}

// rejected tells the source that the upstream did not take the credential, so
// that the next request may get another value.
func (x *exchange) rejected(status int) {
	if s, ok := x.run.granter.(interface{ Rejected(name string) }); ok && x.grant != nil && status == http.StatusUnauthorized {
		s.Rejected(x.grant.Name)
	}
}

// present makes the pools of the exchange's credential ones whose connections have
// the grant's client certificate, if it is one. Those of a former certificate are
// let go: what is under way in them ends with its exchange.
func (x *exchange) present() {
	cert := x.grant.ClientCertificate()
	if cert == nil {
		return
	}
	r, name := x.run, x.credential()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.certs[name] == cert {
		return
	}
	if old := r.transports[name]; old != nil {
		old.CloseIdleConnections()
	}
	if old := r.grpc[name]; old != nil {
		old.CloseIdleConnections()
	}
	d := *r.dialer
	d.cert = cert
	r.transports[name], r.grpc[name] = newTransport(&d, r.p.limits), newGRPCTransport(&d)
	r.certs[name] = cert
}
