package proxy

import "time"

// quietLooks is how often an exchange is looked at within the idle limit.
const quietLooks = 4

const stoodStill = "nothing moved within the idle limit"

// quiet is what was seen of an exchange; it belongs to endQuiet.
type quiet struct {
	moved int64
	looks int
}

// endQuiet ends exchanges on which nothing has moved for TunnelIdleTimeout, to a quarter
// of it, as long as the run lives. An answer that comes in pieces, however seldom, goes on.
func (r *Run) endQuiet() {
	tick := time.NewTicker(max(r.p.limits.TunnelIdleTimeout/quietLooks, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		r.haltQuiet()
	}
}

func (r *Run) haltQuiet() {
	defer recoverTo(new(error), "idle limit", r.p.panicked)
	for _, x := range r.quietExchanges() {
		x.halt(&refusal{reason: reasonUpstreamTimeout, detail: stoodStill, cause: stoodStill})
	}
}

func (r *Run) quietExchanges() (list []*exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.ongoing {
		x, ok := o.(*exchange)
		if !ok {
			continue // an opaque connection has deadlines of its own
		}
		if moved := x.sent.Load() + x.received.Load(); moved != x.quiet.moved {
			x.quiet = quiet{moved: moved}
		} else if x.quiet.looks++; x.quiet.looks >= quietLooks {
			list = append(list, x)
		}
	}
	return list
}
