package proxy

import (
	"context"
	"sync"
	"time"
)

// refusalRate is how many refusals one run gets in a second. Further ones have to
// wait for theirs: a run that is refused again and again shall not take the machine,
// or the log, from the others.
const refusalRate = 250

// wearily lets a refusal wait its turn. What failed by no fault of the run's does not.
func (r *Run) wearily(ctx context.Context, f *refusal) {
	if reasonByCode(f.reason).verdict == verdictDeny {
		r.refusals.pass(ctx, 1)
	}
}

// meter holds one run to a number of bytes a second, both ways together, or of
// something else. The zero meter holds nothing back.
type meter struct {
	rate float64 // a second; 0: no limit

	mu   sync.Mutex
	next time.Time // when what was let through so far would have passed at rate
}

// meterBurst is how much may pass at once after a pause, as time at the rate.
const meterBurst = 250 * time.Millisecond

// pass waits until n bytes more are in order. It returns early when ctx ends.
func (m *meter) pass(ctx context.Context, n int) {
	if m.rate <= 0 || n <= 0 {
		return
	}
	now := time.Now()
	m.mu.Lock()
	if floor := now.Add(-meterBurst); m.next.Before(floor) {
		m.next = floor
	}
	m.next = m.next.Add(time.Duration(float64(n) / m.rate * float64(time.Second)))
	wait := m.next.Sub(now)
	m.mu.Unlock()
	if wait <= 0 {
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
