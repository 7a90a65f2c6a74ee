package broker

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// gate holds calls back while Vault does not answer: after a failure nobody
// calls for a while, then one call goes ahead and the others wait for its fate.
type gate struct {
	mu       sync.Mutex
	failures int
	closed   time.Time // until
	probing  bool
	last     error
}

func (g *gate) enter(now time.Time, op string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.failures == 0:
		return nil
	case now.Before(g.closed):
		return &vaultError{op: op, text: "not tried, Vault failed before", err: g.last, gated: true, retryAfter: g.closed.Sub(now)}
	case g.probing:
		return &vaultError{op: op, text: "not tried, Vault failed before", err: g.last, gated: true, retryAfter: failureFirst}
	}
	g.probing = true
	return nil
}

func (g *gate) leave(now time.Time, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.probing = false
	var ve *vaultError
	if !errors.As(err, &ve) || ve.class != classUnavailable || ve.status == http.StatusInternalServerError {
		g.failures, g.last = 0, nil // Vault answers; one engine may still fail
		return
	}
	if errors.Is(err, context.Canceled) {
		return
	}
	g.failures++
	wait := min(failureFirst<<min(g.failures-1, 10), failureMost)
	g.closed, g.last = now.Add(max(wait, ve.retryAfter)), ve
}
