package broker

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestF140AHerdIsOneCallAndTheWaitIsKept: 500 requests for a credential that is not
// there yet, and a Vault that asks for three seconds.
func TestF140AHerdIsOneCallAndTheWaitIsKept(t *testing.T) {
	hold := make(chan struct{})
	f := newFake(t, nil)
	f.set("auth/token/create/agent-run", func(w http.ResponseWriter, r *http.Request) {
		<-hold
		w.Header().Set("Retry-After", "3")
		jsonAnswer(429, `{"errors":["rate limit quota exceeded"]}`)(w, r)
	})
	r := fakeRig(t, f)
	sess, _ := r.begin(t)
	var wg sync.WaitGroup
	for range 500 {
		wg.Go(func() {
			_, err := sess.Grant(t.Context(), "github-read", issues)
			if e := refused(t, err, ReasonUnavailable); e.RetryAfter <= 0 || e.RetryAfter > 3*time.Second {
				t.Error("told to come back in", e.RetryAfter)
			}
		})
	}
	// One of them waits no longer than it wants to.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := sess.Grant(ctx, "github-read", issues)
	refused(t, err, ReasonUnavailable)
	close(hold)
	wg.Wait()
	if n := f.total(); n != 1 {
		t.Fatal("calls of 501 requests:", n)
	}
	f.set("auth/token/create/agent-run", nil)
	for range 29 { // not before its time, by anybody
		r.clock.add(100 * time.Millisecond)
		other, _ := r.begin(t)
		for _, s := range []*Session{sess, other} {
			_, err := s.Grant(t.Context(), "github-read", issues)
			refused(t, err, ReasonUnavailable)
		}
	}
	if n := f.total(); n != 1 {
		t.Fatal("the wait was not kept: calls", n)
	}
	r.clock.add(200 * time.Millisecond)
	grant(t, sess, "github-read")
	if n := f.count("POST auth/token/create/agent-run"); n != 2 {
		t.Fatal("calls once the wait is over:", n)
	}
}
