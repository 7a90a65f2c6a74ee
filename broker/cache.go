package broker

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	margin          = 10 * time.Second // least life of a value that is handed out, unless its whole life is short
	failureFirst    = time.Second      // a failed fetch is not repeated before this,
	failureMost     = 15 * time.Second // doubling up to this
	rejectedAtMost  = time.Minute      // one Rejected per credential and this time has an effect
	refreshFraction = 3                // refresh ahead after 2/3 of a life
	maxOld          = 64               // replaced values that are wiped at the end
	maxStale        = time.Hour        // most of the grace while Vault is away
)

// entry is the cache of one credential in one session.
type entry struct {
	cred *credential

	mu         sync.Mutex
	current    *material
	dead       deadline // of current, margin subtracted
	refresh    time.Time
	stale      *material // past its time, for as long as Vault is away and a grace lasts
	staleEnd   deadline
	old        []*material // replaced; wiped at the end
	call       *call       // the fetch in flight
	failures   int
	failed     error
	retryAt    time.Time
	rejectedAt time.Time
	used       *Outcome // what has been given out so far; nil: nothing
}

// call is one fetch that any number of requests wait for.
type call struct {
	done  chan struct{}
	began time.Time
	m     *material
	stale bool
	err   error
}

// deadline holds a time twice, so that a value is dead when either the wall
// clock or the monotonic clock says so: the one may be set, the other may stand
// still while the machine sleeps.
type deadline struct{ mono, wall time.Time }

func deadlineAt(t time.Time) deadline { return deadline{t, t.Round(0)} }

func (d deadline) passed(now time.Time) bool {
	return !now.Before(d.mono) || !now.Round(0).Before(d.wall)
}

// material returns a live value from the cache or from one shared fetch; stale
// says that it is past its time and used because Vault is away.
func (s *Session) material(ctx context.Context, e *entry, requestID string) (m *material, stale bool, err error) {
	now := s.b.opts.Clock()
	e.mu.Lock()
	if s.isClosed() {
		e.mu.Unlock()
		return nil, false, errors.New("the run has ended")
	}
	if m := e.current; m != nil {
		if !e.dead.passed(now) {
			if !now.Before(e.refresh) && e.call == nil && !now.Before(e.retryAt) {
				s.start(e, requestID)
			}
			e.mu.Unlock()
			return m, false, nil
		}
		e.retire()
		e.outlive(m, s.grace(e))
	}
	c := e.call
	if c == nil {
		if e.failed != nil && now.Before(e.retryAt) {
			defer e.mu.Unlock()
			if m := e.inGrace(now, e.failed); m != nil {
				return m, true, nil
			}
			return nil, false, &Error{Reason: ReasonUnavailable, Credential: e.cred.name, Cause: e.failed, RetryAfter: e.retryAt.Sub(now)}
		}
		if c = s.start(e, requestID); c == nil {
			e.mu.Unlock()
			return nil, false, errors.New("the run has ended")
		}
	}
	e.mu.Unlock()
	select {
	case <-c.done:
		return c.m, c.stale, c.err
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

// grace is how long a value of e may be used past its time.
func (s *Session) grace(e *entry) time.Duration {
	if s.vault == nil || !e.cred.fromVault() {
		return 0
	}
	return s.vault.v.stale
}

// outlive keeps a value whose time is over for a grace, which never goes past its
// lease or expiry. e.mu is held.
func (e *entry) outlive(m *material, grace time.Duration) {
	if grace <= 0 {
		return
	}
	end := e.dead.mono.Add(grace)
	if !m.expires.IsZero() && m.expires.Before(end) {
		end = m.expires
	}
	e.stale, e.staleEnd = m, deadlineAt(end)
}

// inGrace returns a value past its time when err says that Vault is away, and nil
// when it says anything else: a refusal is never outlived. e.mu is held.
func (e *entry) inGrace(now time.Time, err error) *material {
	if e.stale == nil || !isClass(err, classUnavailable) || e.staleEnd.passed(now) {
		return nil
	}
	return e.stale
}

// retire takes the current value out of use. e.mu is held.
func (e *entry) retire() {
	e.stale = nil
	if e.current != nil {
		e.keepOld(e.current)
		e.current = nil
	}
}

// keepOld remembers a value to be wiped at the end, in a long session the last
// ones only; the others go when the last request that has them does. e.mu is held.
func (e *entry) keepOld(m *material) {
	if len(e.old) >= maxOld {
		e.old = slices.Delete(e.old, 0, 1)
	}
	e.old = append(e.old, m)
}

func (s *Session) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// enter counts work that End waits for; false when the session has ended. The
// caller owes one work.Done.
func (s *Session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Add(1)
	}
	return !s.closed
}

// start begins a fetch; nil when the session has ended. e.mu is held.
func (s *Session) start(e *entry, requestID string) *call {
	if !s.enter() {
		return nil
	}
	c := &call{done: make(chan struct{}), began: s.b.opts.Clock()}
	e.call = c
	go func() {
		defer s.work.Done()
		m, err := s.fetch(e, requestID)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.settle(s, c, m, err)
		close(c.done)
	}()
	return c
}

func (s *Session) fetch(e *entry, requestID string) (m *material, err error) {
	defer func() {
		if p := recover(); p != nil { // the panic's value may hold what was fetched
			m, err = nil, errors.New("a fault in the source")
			s.b.opts.Log.Error("the source of a credential panicked", "credential", e.cred.name, "kind", e.cred.kind)
		}
	}()
	m, err = e.cred.source.fetch(s.ctx, s, requestID)
	if err == nil && m.empty() {
		return nil, errors.New("the source gave nothing")
	}
	return m, err
}

// settle stores what a fetch brought. e.mu is held.
func (e *entry) settle(s *Session, c *call, m *material, err error) {
	e.call = nil
	now := s.b.opts.Clock()
	if err != nil {
		wait := e.pause(err)
		e.failed, e.retryAt = err, now.Add(wait)
		if c.m = e.inGrace(now, err); c.m != nil {
			c.stale = true
		} else {
			c.err = &Error{Reason: ReasonUnavailable, Credential: e.cred.name, Cause: err, RetryAfter: wait}
		}
		s.b.opts.Log.Warn("credential unavailable", "credential", e.cred.name, "run", s.run.ID, "cause", err.Error())
		return
	}
	e.failures, e.failed, e.retryAt = 0, nil, time.Time{}
	c.m = m
	e.note(m)
	e.retire()
	life := m.keep
	if !m.expires.IsZero() {
		life = min(life, m.expires.Sub(now))
	}
	if life <= 0 {
		e.keepOld(m)
		return
	}
	e.current = m
	// A life may have begun at any time since it was asked for; an answer can be slow.
	e.dead = deadlineAt(c.began.Add(life - min(margin, life/4)))
	ahead := life - life/refreshFraction
	e.refresh = c.began.Add(ahead - rand.N(ahead/10+1)) //nolint:gosec // jitter
}

// pause counts a failure and says how long no fetch is tried. One that was held
// back does not count: it says itself when it is worth trying. e.mu is held.
func (e *entry) pause(err error) time.Duration {
	var ve *vaultError
	if errors.As(err, &ve) && ve.gated {
		return ve.retryAfter
	}
	e.failures++
	wait := min(failureFirst<<min(e.failures-1, 10), failureMost)
	if ve != nil {
		wait = max(wait, ve.retryAfter)
	}
	return wait
}

// note remembers what was given out, for the outcome of the run.
func (e *entry) note(m *material) {
	status := StatusStatic
	switch {
	case m.revocable:
		status = StatusRevoked
	case !m.expires.IsZero():
		status = StatusExpires
	}
	o := &Outcome{Name: e.cred.name, Kind: e.cred.kind, LeaseID: m.leaseID, Accessor: m.accessor, Status: status}
	if status == StatusExpires {
		o.Expires = m.expires
		if e.used != nil && e.used.Expires.After(o.Expires) {
			o.Expires = e.used.Expires
		}
	}
	e.used = o
}
