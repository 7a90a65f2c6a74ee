package proxy

import (
	"context"
	"fmt"
	"strings"
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

// broken is a policy whose decisions panic.
type broken struct{ *policies.Engine }

func (broken) Decide(context.Context, *policies.Input) policies.Decision { panic("CANARY-of-a-panic") }

// A panic in judging what is open ends that, and not the process.
func TestAPanicOfANewPolicyEndsWhatIsOpen_I10(t *testing.T) {
	engine := engineOf(t, allPaths)
	var policy atomic.Value
	policy.Store([]Decider{engine})
	e := newEnv(t, ticking(t), func(_ *env, o *Options, _ *RunOptions) {
		o.Policy = func() Decider { return policy.Load().([]Decider)[0] }
	})
	stream := event(t, e.tls("plain.allowed.test"), "/stream")
	if err := lines(stream, 3); err != nil {
		t.Fatal(err)
	}
	policy.Store([]Decider{broken{engine}})
	e.p.PolicyChanged()
	cutOff(t, "a stream that cannot be judged", stream)
	if rec := e.tape.completed(t, 1)[0]; rec.Reason != reasonInternalError {
		t.Errorf("recorded as %q", rec.Reason)
	}
	if e.p.panics.Load() != 1 || strings.Contains(e.logs.String(), "CANARY") {
		t.Errorf("%d panics counted; log %s", e.p.panics.Load(), e.logs)
	}
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
