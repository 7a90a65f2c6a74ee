package proxy

import (
	"net/http"
	"runtime"
	"sync"
	"time"

	"warder/policies"
)

// What was let through is judged again when another policy comes into force: an
// answer may stream for hours, and a WebSocket or a tunnel for days.

const (
	// maxKeptBodies bounds the bodies that one run keeps for that. Beyond it a body
	// counts as not read: where the policy needs it, the request is no longer allowed.
	maxKeptBodies = 64 << 20
	// stopWithin is how long a client may take for what is on its way to it when its
	// exchange is stopped.
	stopWithin = 500 * time.Millisecond
)

// ongoing is an exchange or an opaque connection that was let through.
type ongoing interface {
	// again judges it by another policy. A refusal says that it must end.
	again(e Decider, j *judged) *refusal
	// halt ends it at once, whatever it waits for. It does not wait for that.
	halt(f *refusal)
}

// going is what is known of an ongoing one.
type going struct {
	*judged
	by Decider // who let it through
}

// judged is what something was let through for. It never changes.
type judged struct {
	in         *policies.Input
	credential string // that it carries
}

// begin makes o known, or notes that it was judged anew.
func (r *Run) begin(o ongoing, j *judged, by Decider) {
	r.mu.Lock()
	r.ongoing[o] = going{j, by}
	r.mu.Unlock()
}

// begin makes the exchange known, with what the policy has seen of it.
func (x *exchange) begin(in *policies.Input, by Decider) {
	if n := int64(len(in.Request.Body)); n > x.keptBody {
		if x.run.keptBody.Add(n-x.keptBody) > maxKeptBodies {
			x.run.keptBody.Add(x.keptBody - n)
			unread := *in
			unread.Request.Body, unread.Request.BodyRead, unread.Request.BodyTruncated = nil, false, false
			in = &unread
		} else {
			x.keptBody = n
		}
	}
	x.judged = &judged{in: in, credential: x.credential()}
	x.run.begin(x, x.judged, by)
}

// join makes the connection known. A policy that came into force since it was
// judged is asked too.
func (o *carried) join(in *policies.Input, by Decider) *refusal {
	j := &judged{in: in}
	for {
		o.c.run.begin(o, j, by)
		now := o.c.p.policy()
		if now == by {
			return nil
		}
		if now == nil {
			return refuse(reasonPolicyError, "no policy is in force")
		}
		if f := o.again(now, j); f != nil {
			return f
		}
		by = now
	}
}

func (r *Run) end(o ongoing) {
	r.mu.Lock()
	delete(r.ongoing, o)
	r.mu.Unlock()
}

// PolicyChanged judges all that is going on again by the policy that Options.Policy
// now gives, and ends what that does not allow. It returns when all is judged, and
// is called after each change, by one goroutine at a time.
func (p *Proxy) PolicyChanged() {
	engine := p.policy()
	p.mu.Lock()
	runs := make([]*Run, 0, len(p.runs))
	for r := range p.runs {
		runs = append(runs, r)
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	turn := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	for _, r := range runs {
		r.mu.Lock()
		list := make(map[ongoing]going, len(r.ongoing))
		for o, g := range r.ongoing {
			if g.by != engine {
				list[o] = g
			}
		}
		r.mu.Unlock()
		for o, g := range list {
			turn <- struct{}{}
			wg.Go(func() {
				defer func() { <-turn }()
				r.judgeAgain(o, g, engine)
			})
		}
	}
	wg.Wait()
}

func (r *Run) judgeAgain(o ongoing, g going, engine Decider) {
	defer func() {
		if v := recover(); v != nil {
			r.p.panicked("policy change", v)
			o.halt(refuse(reasonInternalError, "internal error"))
		}
	}()
	f := refuse(reasonPolicyError, "no policy is in force")
	if engine != nil {
		if f = o.again(engine, g.judged); f != nil && f.reason == reasonPolicyTimeout {
			f = o.again(engine, g.judged) // what a busy host delayed is not yet refused
		}
	}
	if f != nil {
		o.halt(f)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, still := r.ongoing[o]; still && now == g {
		r.ongoing[o] = going{g.judged, engine}
	}
}

// again implements ongoing. What carries a credential must be allowed with that
// one, and what carries none without.
func (x *exchange) again(e Decider, j *judged) *refusal {
	in := *j.in
	in.TimeNS, in.Usage = x.p.clock().UnixNano(), nil
	if e.Needs().Usage {
		in.Usage = x.run.usage(x.auth.host)
	}
	d := e.Decide(x.run.ctx, &in)
	if d.MonitorPasses() && j.credential == "" {
		return nil
	}
	f := refuse(reasonDenied, d.Message)
	switch {
	case d.Verdict == policies.Ask:
		f.reason = reasonApprovalPending
	case d.Verdict != policies.Allow:
		if f.reason = d.Reason; reasonByCode(d.Reason).code != d.Reason {
			f.reason = reasonPolicyError
		}
	case d.Credential != j.credential:
		f.detail = "another credential would be used now"
	case x.tgt.encodedSlash && !d.EncodedSlash:
		f.detail = "encoded slash (%2F) in the path"
	default:
		return nil
	}
	f.rule, f.hint, f.cause, f.decision = d.Rule, d.Hint, cutByPolicy, &d
	return f
}

// cutByPolicy is the detail of a record whose policy is not the one that let through.
const cutByPolicy = "a policy that came into force meanwhile does not allow it"

// halt implements ongoing. An answer that has not begun becomes a denial, one that
// has breaks off.
func (x *exchange) halt(f *refusal) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over {
		return
	}
	if x.cut == nil {
		x.cut = f
	}
	if x.stop != nil {
		x.stop()
	}
	if x.hijacked != nil {
		_ = x.hijacked.Close()
		if x.far != nil {
			_ = x.far.Close()
		}
		return
	}
	// A client that sends and takes nothing must not hold it up: net/http waits for
	// a read of the body that is under way.
	ctl := http.NewResponseController(x.w.ResponseWriter)
	_ = ctl.SetReadDeadline(time.Now())
	_ = ctl.SetWriteDeadline(time.Now().Add(stopWithin))
}

// going notes how to stop what is about to be sent, unless it must not be sent any more.
func (x *exchange) going(stop func()) *refusal {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stop = stop
	return x.cut
}

// ended lets go of what only an exchange that goes on needs.
func (x *exchange) ended() {
	if x.judged != nil {
		x.run.end(x)
		x.run.keptBody.Add(-x.keptBody)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	if x.stop != nil {
		x.stop()
	}
}

// again implements ongoing.
func (o *carried) again(e Decider, j *judged) *refusal {
	in := *j.in
	in.TimeNS = o.c.p.clock().UnixNano()
	d := e.Decide(o.c.run.ctx, &in)
	if d.Verdict == policies.Tunnel || d.Verdict == policies.Passthrough && o.mode == "passthrough" {
		return nil
	}
	f := refuse(reasonDenied, "the connection may no longer pass unread")
	f.rule, f.cause, f.decision = d.Rule, cutByPolicy, &d
	return f
}

// halt implements ongoing.
func (o *carried) halt(f *refusal) {
	if o.halted.CompareAndSwap(nil, f) {
		_ = o.client.Close()
		if up := o.up.Load(); up != nil {
			_ = up.Close()
		}
	}
}
