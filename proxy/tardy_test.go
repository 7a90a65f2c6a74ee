package proxy

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"warder/policies"
)

// tardy is a policy whose next decisions come too late.
type tardy struct {
	*policies.Engine
	late atomic.Int64
}

func (d *tardy) Decide(ctx context.Context, in *policies.Input) policies.Decision {
	if d.late.Add(-1) >= 0 {
		return policies.Decision{Verdict: policies.Deny, Reason: policies.ReasonPolicyTimeout}
	}
	return d.Engine.Decide(ctx, in)
}

// A new policy whose first evaluation comes too late on a busy host cuts nothing that it
// allows; one that cannot be evaluated in time does.
func TestOneEvaluationTooLateCutsNothing_F153(t *testing.T) {
	for late := range int64(3) {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			engine := engineOf(t, allPaths)
			var policy atomic.Pointer[tardy]
			policy.Store(&tardy{Engine: engine})
			e := newEnv(t, ticking(t), func(_ *env, o *Options, _ *RunOptions) {
				o.Policy = func() Decider { return policy.Load() }
			})
			stream := event(t, e.tls("plain.allowed.test"), "/stream")
			if err := lines(stream, 3); err != nil {
				t.Fatal(err)
			}
			next := &tardy{Engine: engine}
			next.late.Store(late)
			policy.Store(next)
			e.p.PolicyChanged()
			if late == 2 {
				cutOff(t, "a stream that cannot be judged", stream)
				if rec := e.tape.completed(t, 1)[0]; rec.Reason != reasonPolicyTimeout {
					t.Errorf("recorded as %q", rec.Reason)
				}
				return
			}
			if err := lines(stream, 20); err != nil {
				t.Errorf("the stream: %v", err)
			}
		})
	}
}
