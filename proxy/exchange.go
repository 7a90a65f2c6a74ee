package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"warder/audit"
	"warder/broker"
	"warder/internal/identity"
	"warder/internal/scrub"
	"warder/policies"
)

// exchange is one request and its answer. It belongs to the handler's goroutine;
// what the transport's goroutines touch is atomic or under mu.
type exchange struct {
	p       *Proxy
	run     *Run
	conn    *clientConn
	w       responseWriter
	id      string // UUIDv7
	start   time.Time
	release func() // lets go of the run of a listener's client; nil elsewhere
	head    head

	// canonical request
	method, proto, scheme string
	auth                  authority
	tgt                   target
	upgrade               bool
	grpc                  bool                // over HTTP/2
	header                map[string][]string // as judged, lower-case names
	names                 []string            // of header
	queryKeys             []string

	decision policies.Decision
	judged   *judged // nil: it was not let through
	usage    bool    // the policy looks at what was used
	keptBody int64   // bytes of it
	quiet    quiet
	bounds   []bound // the limits of the decision
	counted  []*counter
	would    string
	reserved bool
	flying   *Run // counted in there
	handed   bool // the connection went to somebody else; nothing to record here
	grant    *broker.Grant
	scrubber *scrub.Scrubber // of what was injected
	refusal  *refusal

	standIns atomic.Int64 // seen in the body
	sent     atomic.Int64 // body bytes towards the upstream
	received atomic.Int64 // body bytes towards the client
	masked   []*atomic.Int64
	cost     *costMeter // nil: no limit by cost
	maskedHd int64
	attempts int
	dst      *audit.Dst
	policy   *audit.Policy // of the decision, once recorded
	status   int
	timing   audit.Timing

	out      sendBody
	answer   answerBody
	upstream upstreamUse

	early    sync.Mutex // held while an interim answer is written; apart, as that may take long
	headSent bool       // no more of them
	interims int        // their size so far

	clientGone <-chan struct{} // closed when the client has gone away; set before the request is sent

	mu       sync.Mutex
	cut      *refusal // a limit was reached, or the peer failed, in mid-body
	hijacked net.Conn
	body     *clientBody // nil: none
	duplex   bool        // the answer may overtake the body
	over     bool        // the exchange has ended
	stop     context.CancelFunc
	far      io.Closer // the upstream's side, from its answer on
}

func (p *Proxy) newExchange(c *clientConn, h head, r *http.Request) *exchange {
	c.exchanges.Add(1)
	x := &exchange{
		p: p, run: c.run, conn: c, id: identity.NewID(), start: time.Now(), head: h,
		method: r.Method, proto: strings.ToLower(r.Proto), scheme: c.arr.scheme(), auth: c.arr.want,
	}
	if c.h2 {
		x.proto = "h2"
		x.grpc = isGRPC(r.Header)
	}
	return x
}

// takeOff counts the request in. One that is answered here is over soon and does
// not count.
func (x *exchange) takeOff() *refusal {
	x.p.inFlight.Add(1)
	x.flying = x.run
	if x.run.flying.Add(1) > int64(x.p.limits.MaxRequestsPerRun) {
		return refuse(reasonTooMany, "too many requests under way")
	}
	return nil
}

func (x *exchange) land() {
	if x.flying != nil {
		x.p.inFlight.Add(-1)
		x.flying.flying.Add(-1)
	}
}

// refuse notes why the request goes no further; the first reason stands.
func (x *exchange) refuse(f *refusal) {
	if x.refusal == nil {
		x.refusal = f
		if !f.gone {
			x.status = f.httpStatus()
			if x.grpc {
				x.status = http.StatusOK // the denial is in grpc-status
			}
		}
	}
}

// interrupt notes a failure in mid-body; the first one stands.
func (x *exchange) interrupt(f *refusal) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cut == nil {
		x.cut = f
	}
}

func (x *exchange) interrupted() *refusal {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cut
}

// end runs once per exchange, also after a panic: it completes the record and
// makes sure that a broken answer does not look whole.
func (x *exchange) end() {
	v := recover()
	x.ended()
	err, _ := v.(error)
	abort := errors.Is(err, http.ErrAbortHandler)
	if v != nil && !abort {
		x.p.panicked("exchange", v)
		x.refusal = nil
		x.refuse(refuse(reasonInternalError, "internal error"))
		abort = x.w.started
		if !abort {
			x.w.writeResponse(x.denial(nil))
		}
	}
	if x.handed {
		return
	}
	if x.release != nil {
		defer x.release()
	}
	if x.hijacked != nil {
		_ = x.hijacked.Close()
		defer x.conn.ended()
	}
	if f := x.interrupted(); f != nil {
		abort = true
		if x.refusal == nil {
			x.refusal = f
		}
	}
	if !abort && x.hijacked == nil {
		x.drain()
	}
	x.complete()
	if abort {
		if x.w.started && x.hijacked == nil {
			x.w.Flush() // what did arrive of the answer
		}
		panic(http.ErrAbortHandler)
	}
}
