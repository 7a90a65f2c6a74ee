package proxy

import "time"

// stopEvery is how often an operator's stops are looked for: another process leaves
// them, so nobody calls.
const stopEvery = 250 * time.Millisecond

// stopper knows which credentials an operator has stopped. *broker.Session is one.
type stopper interface{ Stopped(credential string) bool }

// watchStops ends what carries a credential whose use has been stopped, until the
// run is closed.
func (r *Run) watchStops(s stopper) {
	tick := time.NewTicker(stopEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
			r.haltStopped(s)
		}
	}
}

func (r *Run) haltStopped(s stopper) {
	defer recoverTo(new(error), "stops", r.p.panicked)
	r.mu.Lock()
	carries := map[string][]ongoing{}
	for o, g := range r.ongoing {
		if g.credential != "" {
			carries[g.credential] = append(carries[g.credential], o)
		}
	}
	r.mu.Unlock()
	for name, list := range carries {
		if !s.Stopped(name) {
			continue
		}
		for _, o := range list {
			f := refuse(reasonCredentialUnavailable, "credential "+name+": its use has been stopped")
			f.cause = "the operator has stopped its use by this run"
			o.halt(f)
		}
	}
}
