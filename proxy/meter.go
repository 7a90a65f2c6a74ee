package proxy

import (
	"context"
	"sync"
	"sync/atomic"
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

	held *atomic.Int64 // nanoseconds that were waited for it; nil: not counted

	// In place of time.Now and waitUntil, where the time is told by a test.
	now  func() time.Time
	wait func(ctx context.Context, until time.Time)
}

// meterBurst is how much may pass at once after a pause, as time at the rate.
const meterBurst = 250 * time.Millisecond

// pass waits until n bytes more are in order. It returns early when ctx ends.
func (m *meter) pass(ctx context.Context, n int) {
	if m.rate <= 0 || n <= 0 {
		return
	}
	clock, wait := m.now, m.wait
	if clock == nil {
		clock, wait = time.Now, waitUntil
	}
	now := clock()
	m.mu.Lock()
	if floor := now.Add(-meterBurst); m.next.Before(floor) {
		m.next = floor
	}
	m.next = m.next.Add(time.Duration(float64(n) / m.rate * float64(time.Second)))
	next := m.next
	m.mu.Unlock()
	if !next.After(now) {
		return
	}
	wait(ctx, next)
	if m.held != nil {
		m.held.Add(int64(clock().Sub(now)))
	}
}

// waitUntil returns at that time, or when ctx ends.
func waitUntil(ctx context.Context, until time.Time) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
