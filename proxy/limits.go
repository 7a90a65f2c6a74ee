package proxy

import (
	"fmt"
	"net/http"
	"sync/atomic"

	"warder/policies"
)

// maxCounters bounds what is counted apart in one run: the sandbox chooses hosts,
// and keys that a policy makes of a request.
const maxCounters = 1 << 16

// counter is the traffic of one scope. Requests are counted under Run.mu, so that
// they are compared and counted in one; the rest as it passes.
type counter struct {
	requests, out, in, cost atomic.Int64
}

// bound is a limit of the decision and the count that it is held against.
type bound struct {
	policies.Limit
	used *counter
}

// withinLimits counts the request, and refuses it when a limit of the decision is
// used up. Limits per run, host or credential are those of the rule that sets
// them and count its requests alone; a key of the author's counts the requests of
// all rules that name it.
func (x *exchange) withinLimits(req *http.Request) *refusal {
	r := x.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.decision.Verdict == policies.Allow {
		for _, l := range x.decision.Limits {
			c := r.counter(x.limitScope(l))
			if c == nil {
				return tooManyCounters()
			}
			x.bounds = append(x.bounds, bound{l, c})
		}
	}
	for _, b := range x.bounds {
		if f := x.usedUp(b); f != nil {
			return f
		}
	}
	if x.limitsCost() {
		askUncoded(req.Header)
	}
	host := r.counter(hostScope(x.auth.host))
	if host == nil && x.usage {
		return tooManyCounters() // the policy would take it for an unused one
	}
	x.counted = append(x.counted, &r.total, host)
	if name := x.credential(); name != "" {
		c := r.usedBy[name]
		if c == nil {
			c = &counter{}
			r.usedBy[name] = c
		}
		x.counted = append(x.counted, c)
	}
	for _, b := range x.bounds {
		x.counted = append(x.counted, b.used)
	}
	x.counted = distinct(x.counted)
	for _, c := range x.counted {
		c.requests.Add(1)
	}
	return nil
}

func tooManyCounters() *refusal {
	return refuse(reasonLimitExceeded, "too many hosts or keys are counted in this run")
}

// distinct leaves out what is there before, and nothing.
func distinct(list []*counter) []*counter {
	kept := list[:0]
next:
	for _, c := range list {
		for _, k := range kept {
			if k == c {
				continue next
			}
		}
		if c != nil {
			kept = append(kept, c)
		}
	}
	return kept
}

// counter is that of a scope, nil when there are too many. r.mu is held.
func (r *Run) counter(scope string) *counter {
	c := r.used[scope]
	if c == nil && len(r.used) < maxCounters {
		c = &counter{}
		r.used[scope] = c
	}
	return c
}

func hostScope(host string) string { return "host " + host }

// limitScope names what a limit counts.
func (x *exchange) limitScope(l policies.Limit) string {
	of := "rule " + l.Rule + "\x00"
	switch l.Per {
	case "run":
		return of
	case "host":
		return of + hostScope(x.auth.host)
	case "credential":
		return of + "credential " + x.decision.Credential
	}
	return "key " + l.Per
}

// usedUp is the refusal when nothing is left of a limit.
func (x *exchange) usedUp(b bound) *refusal {
	for _, m := range b.measures() {
		if m.most > 0 && m.used.Load() >= m.most {
			return x.limitRefusal(b, m)
		}
	}
	return nil
}

// measure is one amount that a limit allows.
type measure struct {
	what string
	most int64
	used *atomic.Int64
}

func (b *bound) measures() [4]measure {
	return [4]measure{
		{"units of cost", b.Cost, &b.used.cost},
		{"requests", b.Requests, &b.used.requests},
		{"bytes_out", b.BytesOut, &b.used.out},
		{"bytes_in", b.BytesIn, &b.used.in},
	}
}

// limitRefusal names the limit, what is used of it and what is left.
func (x *exchange) limitRefusal(b bound, m measure) *refusal {
	f := refuse(reasonLimitExceeded, fmt.Sprintf("rule %s allows %d %s per %s: %d used, %d left",
		b.Rule, m.most, m.what, b.Per, m.used.Load(), max(0, m.most-m.used.Load())))
	f.rule = x.decision.Rule
	if b.Rule != "" {
		f.rule = b.Rule
	}
	return f
}

// spendOut counts body bytes towards the upstream; a refusal says that they are
// more than a limit allows.
func (x *exchange) spendOut(n int) *refusal {
	for _, c := range x.counted {
		c.out.Add(int64(n))
	}
	return x.overspent(2)
}

// spendIn counts body bytes towards the client.
func (x *exchange) spendIn(n int) *refusal {
	for _, c := range x.counted {
		c.in.Add(int64(n))
	}
	return x.overspent(3)
}

// overspent looks at one measure of every limit.
func (x *exchange) overspent(which int) *refusal {
	for i := range x.bounds {
		if m := x.bounds[i].measures()[which]; m.most > 0 && m.used.Load() > m.most {
			return x.limitRefusal(x.bounds[i], m)
		}
	}
	return nil
}

// usage is what a run has used so far, as policies see it.
func (r *Run) usage(host string) *policies.Usage {
	u := &policies.Usage{Run: r.total.amounts(), Credentials: map[string]policies.Amounts{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, c := range r.usedBy {
		u.Credentials[name] = c.amounts()
	}
	if c := r.used[hostScope(host)]; c != nil {
		u.Host = c.amounts()
	}
	return u
}

func (c *counter) amounts() policies.Amounts {
	return policies.Amounts{Requests: c.requests.Load(), BytesOut: c.out.Load(), BytesIn: c.in.Load(), Cost: c.cost.Load()}
}
