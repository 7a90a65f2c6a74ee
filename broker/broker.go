// Package broker turns the name of a credential into a value in a request that
// is about to leave: from HashiCorp Vault (or OpenBao) through a token of the
// run's own, or from the local source. At the end of the run it takes back what
// can be taken back and says what cannot.
//
// Invariants:
//   - A value goes only to a host, port, method and path that its credential is
//     bound to, and only over https; this is checked before anything is fetched.
//   - Zero values deny: an empty Target, binding or answer never yields a value.
//   - Two runs never share a token, a lease or a cache entry.
//   - The journal knows an accessor or lease before the first use of its token.
//   - No answer, an odd answer and a late answer of a source all refuse the one
//     request with an *Error; the run goes on.
//   - Errors and log lines name credentials and Vault paths, never values.
//   - Nothing of the process's environment reaches the connection to Vault.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
)

// Options is what a Broker is made from.
type Options struct {
	Vault       *config.Vault                // nil: no Vault
	Credentials map[string]config.Credential // by name
	ConfigFile  string                       // file they were read from; it must belong to the caller where a credential is a file or a command
	StateDir    string                       // keys of local jwt credentials live in StateDir/keys
	Journal     Journal                      // for login tokens; required with Vault
	OneShot     bool                         // one run and exit: refuses wrapped SecretIDs, which work once
	Clock       func() time.Time             // nil: time.Now
	Getenv      func(string) (string, bool)  // nil: os.LookupEnv
	Log         *slog.Logger                 // nil: discard

	// Stopped is asked before each grant whether the operator has stopped the use
	// of a credential by a run that began at since; nil: never.
	Stopped func(run, credential string, since time.Time) bool

	// OnLease is told of every token and lease: event is "lease.issue",
	// "lease.revoke" or "lease.unconfirmed". It may be nil and must not block.
	OnLease func(event, runID string, o Outcome)
}

// Broker serves the runs of one process. It is safe for concurrent use.
type Broker struct {
	opts  Options
	creds map[string]*credential
	vault *vault // nil without Vault

	mu     sync.Mutex
	closed bool
}

// New validates everything that can be judged without asking anybody: it makes
// no network call and reads no secret.
func New(o Options) (*Broker, error) {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Getenv == nil {
		o.Getenv = os.LookupEnv
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.OnLease == nil {
		o.OnLease = func(string, string, Outcome) {}
	}
	b := &Broker{opts: o, creds: make(map[string]*credential, len(o.Credentials))}
	if o.Vault != nil {
		v, err := newVault(o)
		if err != nil {
			return nil, err
		}
		b.vault = v
	}
	for _, name := range slices.Sorted(maps.Keys(o.Credentials)) {
		c, err := b.newCredential(name, o.Credentials[name])
		if err != nil {
			return nil, err
		}
		b.creds[name] = c
	}
	if err := standInConflict(b.creds); err != nil {
		return nil, err
	}
	return b, nil
}

// Begin opens the session of a run that may use the offered credentials; nil
// means all that are configured, an empty list none. A name that is not
// configured is an error. j is the journal of this run; it may be nil only when
// no offered credential comes from Vault. Nothing is fetched yet.
func (b *Broker) Begin(run identity.Run, offered []string, j Journal) (*Session, error) {
	if run.ID == "" {
		return nil, errors.New("broker: begin: the run has no id")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errors.New("broker: begin: the broker is closed")
	}
	if offered == nil {
		offered = slices.Collect(maps.Keys(b.creds))
	}
	names := slices.Clone(offered)
	slices.Sort(names)
	names = slices.Compact(names)
	entries := make(map[string]*entry, len(names))
	for _, name := range names {
		c, ok := b.creds[name]
		if !ok {
			return nil, fmt.Errorf("broker: begin: credential %q is not configured; hint: `warder credential list` shows the names", name)
		}
		if c.fromVault() && j == nil {
			return nil, fmt.Errorf("broker: begin: credential %q comes from Vault and there is no journal for its tokens", name)
		}
		entries[name] = &entry{cred: c}
	}
	return newSession(b, run, names, entries, j), nil
}

// Close revokes the login token that the broker made itself, if any. Sessions
// must have ended. A token_file token is neither renewed nor revoked.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	if b.vault == nil {
		return nil
	}
	return b.vault.close(ctx)
}

// Recover takes back what a dead process left in its journal. Only entries of
// the same Vault address, namespace and token role are revoked; an entry is also
// done once its latest possible end has passed. done lists the accessors that
// are confirmed gone; err says what is not.
func (b *Broker) Recover(ctx context.Context, entries []JournalEntry) (done []string, err error) {
	var errs []error
	for _, e := range recoverOrder(entries) {
		ok, err := b.recoverOne(ctx, e)
		if ok {
			done = append(done, e.Accessor)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return done, errors.Join(errs...)
}
