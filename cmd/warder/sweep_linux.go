package main

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Pauses between the sweeps of a process that goes on: after one that left something,
// each twice as long as the last.
const (
	sweepAgain = 5 * time.Second
	sweepMost  = 5 * time.Minute
)

// sweep ends dead runs beside this one; the returned function waits for it, at most
// sweepWait.
func (a *app) sweep(ctx context.Context, stderr io.Writer) (wait func()) {
	return inBackground(ctx, sweepWait, func(ctx context.Context) { _ = a.sweepOnce(ctx, stderr) })
}

// sweepOn does it for as long as something is left, and again whenever owed says that
// there may be: what could not be taken back at the end of a run is, by a process that
// lives on, once Vault answers. The returned function ends it.
func (a *app) sweepOn(ctx context.Context, owed <-chan struct{}, stderr io.Writer) (wait func()) {
	return inBackground(ctx, 0, func(ctx context.Context) {
		repeat(ctx, owed, sweepAgain, func() error { return a.sweepOnce(ctx, stderr) })
	})
}

func (a *app) sweepOnce(ctx context.Context, stderr io.Writer) error {
	if err := a.open(ctx); err != nil {
		return err // said already; nothing can be revoked
	}
	rep, err := a.state.Sweep(ctx, a.broker.Recover)
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(stderr, "warder: sweep: %d dead runs unconfirmed: %v\n", len(rep.Unconfirmed), err)
	}
	return err
}

// repeat does it at once, after each error again with growing pauses from first on, and
// whenever more says so, until ctx ends.
func repeat(ctx context.Context, more <-chan struct{}, first time.Duration, do func() error) {
	pause := first
	for {
		var again <-chan time.Time
		if do() != nil {
			again = time.After(pause)
			pause = min(2*pause, sweepMost)
		} else {
			pause = first
		}
		select {
		case <-ctx.Done():
			return
		case <-more:
			pause = first
		case <-again:
		}
	}
}

// inBackground runs it beside the caller; wait gives it some time more, then ends it.
func inBackground(ctx context.Context, more time.Duration, do func(context.Context)) (wait func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(ctx)
	}()
	return func() {
		select {
		case <-done:
		case <-time.After(more):
		}
		cancel()
		<-done
	}
}
