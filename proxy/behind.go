package proxy

import (
	"context"
	"sync"
	"time"

	"warder/audit"
)

// behind holds the records of exchanges that have ended, which nobody waits for,
// until the next reservation: written together they cost one write and one sync.
// None is held longer than lingers, nor past the end of its run.
type behind struct {
	audit Recorder
	ctx   context.Context // never ends: the client may be gone, the record is not its business

	mu    sync.Mutex // held while appending, so that a flush has appended all that was there
	ended []endedExchange
	since time.Time // when the first of them came
	timer *time.Timer
	armed bool // the timer runs
}

type endedExchange struct {
	run *Run
	rec *audit.Record
}

const (
	lingers    = 2 * time.Millisecond
	mostBehind = 64 // records
)

func newBehind(r Recorder) *behind {
	b := &behind{audit: r, ctx: context.Background()}
	b.timer = time.AfterFunc(time.Hour, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.armed = false
		if left := lingers - time.Since(b.since); left > 0 && len(b.ended) > 0 {
			b.arm(left) // those that it was set for went with a reservation
			return
		}
		b.append()
	})
	b.timer.Stop()
	return b
}

func (b *behind) add(run *Run, rec *audit.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.ended) == 0 {
		b.since = time.Now()
	}
	b.ended = append(b.ended, endedExchange{run, rec})
	if len(b.ended) >= mostBehind {
		b.append()
	} else if !b.armed {
		b.arm(lingers)
	}
}

func (b *behind) arm(d time.Duration) {
	b.armed = true
	b.timer.Reset(d)
}

// flush appends what is held.
func (b *behind) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.append()
}

// append appends what is held; mu is held too.
func (b *behind) append() {
	for _, e := range b.ended {
		if fut := b.audit.AppendBehind(b.ctx, e.rec); fut != nil {
			e.run.keepFuture(fut)
		}
	}
	clear(b.ended)
	b.ended = b.ended[:0]
}
