package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"warder/internal/identity"
)

// Session is what one run may use. It is safe for concurrent use.
type Session struct {
	b       *Broker
	run     identity.Run
	names   []string
	entries map[string]*entry
	journal Journal
	stand   map[string]string
	vault   *runTokens // nil without Vault
	began   time.Time

	ctx    context.Context // of fetches: they outlive the request that wanted them
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // fetches; added to under mu while not closed

	ending   sync.Mutex // held by End
	outcomes []Outcome
	ended    bool // everything is confirmed
}

func newSession(b *Broker, run identity.Run, names []string, entries map[string]*entry, j Journal) *Session {
	s := &Session{b: b, run: run, names: names, entries: entries, journal: j, stand: map[string]string{}, began: b.opts.Clock()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, name := range names {
		for env, t := range entries[name].cred.standIn {
			if _, ok := s.stand[env]; !ok {
				s.stand[env] = t.fresh()
			}
		}
	}
	if b.vault != nil {
		s.vault = newRunTokens(b.vault, s)
	}
	return s
}

// Offered returns the names that this run may use, sorted.
func (s *Session) Offered() []string { return slices.Clone(s.names) }

// StandIns returns variables for the inside of the sandbox: harmless values of a
// token's shape, made for this run alone.
func (s *Session) StandIns() map[string]string {
	out := make(map[string]string, len(s.stand))
	for k, v := range s.stand {
		out[k] = v
	}
	return out
}

// Grant returns the right to inject a credential into the request that t
// describes. Every refusal is an *Error. The binding is checked before anything
// is fetched; one fetch serves all who wait for the same credential.
func (s *Session) Grant(ctx context.Context, name string, t Target) (*Grant, error) {
	e, ok := s.entries[name]
	if !ok {
		return nil, &Error{Reason: ReasonBinding, Credential: name, Cause: errors.New("not offered to this run")}
	}
	if t.Scheme != "https" {
		return nil, &Error{Reason: ReasonClearText, Credential: name, Cause: fmt.Errorf("scheme %q", t.Scheme)}
	}
	if what := e.cred.binding.refuses(t); what != "" {
		return nil, &Error{Reason: ReasonBinding, Credential: name, Cause: fmt.Errorf("the %s is outside of its binding", what)}
	}
	if s.stopped(e) {
		return nil, &Error{Reason: ReasonUnavailable, Credential: name, Cause: errStopped}
	}
	m, stale, err := s.material(ctx, e, t.RequestID)
	if err != nil {
		var refused *Error
		if errors.As(err, &refused) {
			return nil, refused
		}
		return nil, &Error{Reason: ReasonUnavailable, Credential: name, Cause: err}
	}
	return &Grant{
		Name: name, Kind: e.cred.kind, LeaseID: m.leaseID, Accessor: m.accessor, VaultRequestID: m.requestID,
		Expires: m.expires, Ranges: e.cred.cfg.Ranges, Stale: stale, slot: e.cred.cfg.Inject, value: m.value, m: m,
		clock: s.b.opts.Clock, requestID: t.RequestID,
	}, nil
}

// Rejected says that the bound server refused the value (401): the next request
// fetches anew. It has an effect at most once a minute per credential, so that a
// request that is refused for another reason does not become load on the source.
func (s *Session) Rejected(name string) {
	e, ok := s.entries[name]
	if !ok {
		return
	}
	now := s.b.opts.Clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if (e.current != nil || e.stale != nil) && !now.Before(e.rejectedAt.Add(rejectedAtMost)) {
		e.rejectedAt = now
		e.retire()
	}
}

// End takes back what this run was given: no new grants, running fetches waited
// for, leases revoked one by one, then the tokens; repeated with growing pauses
// until ctx ends. It returns one outcome per credential that was used, sorted by
// name. A further call tries again what is unconfirmed and returns the rest as
// it was.
func (s *Session) End(ctx context.Context) []Outcome {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.ending.Lock()
	defer s.ending.Unlock()
	if s.ended {
		return slices.Clone(s.outcomes)
	}
	s.drain(ctx)
	var open []*runToken
	if s.vault != nil {
		open = s.vault.revokeAll(ctx)
	}
	s.outcomes = s.outcomes[:0]
	for _, name := range s.names {
		e := s.entries[name]
		e.mu.Lock()
		e.retire()
		for _, m := range e.old {
			m.wipe()
		}
		e.old = nil
		if o, ok := e.outcome(open); ok {
			s.outcomes = append(s.outcomes, o)
		}
		e.mu.Unlock()
	}
	s.ended = len(open) == 0
	return slices.Clone(s.outcomes)
}

// takeBackTime is how long what only looks at Vault may take to give back what it fetched.
const takeBackTime = 30 * time.Second

// endWithin ends a session, also when ctx has ended.
func (s *Session) endWithin(ctx context.Context) []Outcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackTime)
	defer cancel()
	return s.End(ctx)
}

// drain waits for fetches, so that a lease that is born late is known. Each is
// bounded by its own timeouts; when ctx ends first they are cut off.
func (s *Session) drain(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.cancel()
		<-done
	}
	s.cancel()
}

// outcome joins what was given out with the tokens that may still live. e.mu is held.
func (e *entry) outcome(open []*runToken) (Outcome, bool) {
	for _, t := range open {
		kind, used := t.users[e.cred.name]
		if !used {
			continue
		}
		o := Outcome{Name: e.cred.name, Kind: kind, Accessor: t.accessor, Status: StatusUnconfirmed, Expires: t.notAfter, Detail: t.detail()}
		if e.used != nil {
			o.LeaseID = e.used.LeaseID
		}
		return o, true
	}
	if e.used == nil {
		return Outcome{}, false
	}
	o := *e.used
	switch {
	case e.cred.fromVault() && o.Kind == KindHMAC:
		o.Detail = "the run's token is revoked; the key never left Vault, and what was signed stays signed"
	case o.Kind == KindHMAC:
		o.Detail = "what was signed stays signed"
	case o.Kind == KindKV, o.Kind == KindAWS && o.Status == StatusStatic:
		o.Detail = "the run's token is revoked; the stored value itself lives on"
	}
	return o, true
}
