package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"warder/internal/secret"
)

// Events of Options.OnLease.
const (
	EventIssue       = "lease.issue"
	EventRevoke      = "lease.revoke"
	EventUnconfirmed = "lease.unconfirmed"
)

const kindToken = "token" // Outcome.Kind of a run's token in these events

// runTokens are the Vault tokens of one run: one for each distinct set of policies.
type runTokens struct {
	v *vault
	s *Session

	mu   sync.Mutex
	sets map[string]*tokenSet
	all  []*runToken // that may still live
}

// tokenSet is one set of policies and the token that has it now.
type tokenSet struct {
	policies []string
	mu       sync.Mutex // one mint at a time
	current  *runToken
	killed   error // somebody revoked a token of this run: no other is made
}

// runToken is one child token. Its accessor is in the journal before its first use.
type runToken struct {
	token    secret.String
	accessor string
	life     time.Duration // as Vault said last
	notAfter time.Time     // latest possible end
	dead     deadline      // earliest possible end, margin subtracted
	login    *login        // its parent

	mu     sync.Mutex
	leases []string
	users  map[string]string // credential → kind
	err    error             // of the last attempt to revoke
}

func newRunTokens(v *vault, s *Session) *runTokens {
	return &runTokens{v: v, s: s, sets: map[string]*tokenSet{}}
}

func (r *runTokens) set(policies []string) *tokenSet {
	p := slices.Clone(policies)
	slices.Sort(p)
	p = slices.Compact(p)
	key := strings.Join(p, ",") // a policy's name has no comma
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sets[key] == nil {
		r.sets[key] = &tokenSet{policies: p}
	}
	return r.sets[key]
}

// get returns a live token for a set of policies, making one when needed.
func (r *runTokens) get(ctx context.Context, set *tokenSet, correlation string) (*runToken, error) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if set.killed != nil {
		return nil, set.killed
	}
	if t := set.current; t != nil && !t.dead.passed(r.v.conn.clock()) {
		return t, nil
	}
	t, err := r.mint(ctx, set.policies, correlation)
	if err != nil {
		return nil, err
	}
	set.current = t
	r.forgetExpired(ctx)
	return t, nil
}

// record writes t, with its leases, to the journal of the run. t.mu is held, or t is not shared yet.
func (r *runTokens) record(ctx context.Context, t *runToken) error {
	err := r.s.journal.Put(ctx, JournalEntry{
		Run: r.s.run.ID, Address: r.v.conn.address, Namespace: r.v.conn.namespace, TokenRole: r.v.role,
		Accessor: t.accessor, LeaseIDs: slices.Clone(t.leases), NotAfter: t.notAfter.UTC().Round(0),
	})
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// use notes that a credential is fetched through t.
func (t *runToken) use(name, kind string) {
	t.mu.Lock()
	t.users[name] = kind
	t.mu.Unlock()
}

// addLease journals a lease before its value is used.
func (r *runTokens) addLease(ctx context.Context, t *runToken, id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leases = append(t.leases, id)
	return r.record(ctx, t)
}

// fate of a token that Vault refuses.
type fate int

const (
	fateAlive  fate = iota // the path is refused, not the token
	fateLost               // ended with its login or its time: a new one may be made
	fateKilled             // somebody revoked it
)

func (r *runTokens) fateOf(ctx context.Context, t *runToken) fate {
	var asked *login
	err := r.v.withLogin(ctx, func(l *login) error {
		asked = l
		_, err := r.v.conn.do(ctx, vaultCall{
			method: http.MethodPost, path: "auth/token/lookup-accessor", token: l.token,
			body: map[string]any{"accessor": t.accessor}, urgent: true,
		})
		return err
	})
	switch {
	case !saysGone(err, "invalid accessor"):
		return fateAlive
	case asked != t.login || t.dead.passed(r.v.conn.clock()):
		return fateLost
	}
	return fateKilled
}

// drop takes a dead token out of use; with kill no other is made for this set.
func (r *runTokens) drop(set *tokenSet, t *runToken, kill bool) error {
	set.mu.Lock()
	defer set.mu.Unlock()
	if set.current == t {
		set.current = nil
	}
	if kill {
		set.killed = errors.New("vault: the run's token has been revoked: nothing more is fetched with its policies")
	}
	return set.killed
}

// forgetExpired drops tokens that ended by themselves from the journal.
func (r *runTokens) forgetExpired(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.v.conn.clock()
	r.all = slices.DeleteFunc(r.all, func(t *runToken) bool {
		if !now.After(t.notAfter.Add(expirySlop)) {
			return false
		}
		t.token.Wipe()
		return r.s.journal.Delete(ctx, t.accessor) == nil
	})
}

// revokeAll takes everything back and returns what is not confirmed gone. All
// fetches have ended.
func (r *runTokens) revokeAll(ctx context.Context) []*runToken {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = slices.DeleteFunc(r.all, func(t *runToken) bool {
		t.err = retry(ctx, func() error { return r.v.revoke(ctx, t.accessor, t.leases, r.s.run.ID) })
		if t.err == nil {
			t.err = r.s.journal.Delete(context.WithoutCancel(ctx), t.accessor)
		}
		o := Outcome{Kind: kindToken, Accessor: t.accessor, Status: StatusRevoked}
		if t.err != nil {
			o.Status, o.Expires, o.Detail = StatusUnconfirmed, t.notAfter, t.detail()
			r.v.log.Error("revocation unconfirmed", "run", r.s.run.ID, "accessor", t.accessor, "latest_end", t.notAfter, "cause", t.err.Error())
			r.v.onLease(EventUnconfirmed, r.s.run.ID, o)
			return false
		}
		r.v.onLease(EventRevoke, r.s.run.ID, o)
		t.token.Wipe()
		return true
	})
	return slices.Clone(r.all)
}

func (t *runToken) detail() string {
	if t.err == nil {
		return ""
	}
	return shortText(t.err.Error())
}

func (v *vault) revokeAs(ctx context.Context, l *login, accessor string) error {
	_, err := v.conn.do(ctx, vaultCall{
		method: http.MethodPost, path: "auth/token/revoke-accessor", token: l.token,
		body: map[string]any{"accessor": accessor}, urgent: true,
	})
	return err
}
