package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/vault/api"

	"warder/internal/config"
	"warder/internal/secret"
)

// vault is the connection, its login and what all runs share of it.
type vault struct {
	conn    *conn
	auth    config.Auth
	role    string
	journal Journal
	stale   time.Duration // how long a value outlives its time while Vault is away
	onLease func(event, runID string, o Outcome)
	log     *slog.Logger

	extendsNone atomic.Bool // Vault does not let us extend tokens of runs

	unwrapped bool // the wrapped SecretID has been used; of whatever logs in

	mu       sync.Mutex
	current  *login
	former   []*login
	underWay *attempt // one at a time; nil: none
	closed   bool
}

// login is a token of the broker's own.
type login struct {
	token    secret.String
	accessor string // "" for a token from a file
	made     bool   // by us: so renewed and revoked by us
	stop     context.CancelFunc
	done     chan struct{} // closed when the keeper has ended

	mu      sync.Mutex
	dead    bool
	expires deadline // zero: not known
}

func newVault(o Options) (*vault, error) {
	c, err := newConn(*o.Vault, o.Clock)
	if err != nil {
		return nil, err
	}
	a := o.Vault.Auth
	if err := validateAuth(a, o.OneShot); err != nil {
		return nil, err
	}
	if o.Vault.TokenRole == "" || strings.ContainsAny(o.Vault.TokenRole, "/?#") || !validFieldText(o.Vault.TokenRole) {
		return nil, errors.New("vault.token_role: the name of the role that makes the runs' tokens is needed")
	}
	if o.Vault.Stale < 0 || time.Duration(o.Vault.Stale) > maxStale {
		return nil, fmt.Errorf("vault.stale: at least 0 and at most %s", maxStale)
	}
	if o.Journal == nil {
		return nil, errors.New("broker: a journal is needed with Vault")
	}
	return &vault{
		conn: c, auth: a, role: o.Vault.TokenRole, journal: o.Journal, stale: time.Duration(o.Vault.Stale), onLease: o.OnLease, log: o.Log,
	}, nil
}

// withLogin runs fn with the broker's token. When the token turns out to be dead
// it logs in once more and repeats fn once.
func (v *vault) withLogin(ctx context.Context, fn func(l *login) error) error {
	for attempt := 0; ; attempt++ {
		l, err := v.session(ctx)
		if err != nil {
			return err
		}
		err = fn(l)
		if !isClass(err, classDenied) || attempt > 0 || v.alive(ctx, l.token) {
			return err
		}
		l.kill()
		v.log.Warn("the token for Vault is no longer valid, logging in again", "method", v.auth.Method)
	}
}

// alive reports false only when Vault itself says that it does not know the token.
func (v *vault) alive(ctx context.Context, token secret.String) bool {
	_, err := v.conn.do(ctx, vaultCall{method: http.MethodGet, path: "auth/token/lookup-self", token: token, urgent: true})
	return !isClass(err, classDenied)
}

// accept journals a fresh login before its first use and starts its keeper.
func (v *vault) accept(ctx context.Context, sec *api.Secret) (*login, error) {
	if sec == nil || sec.Auth == nil || sec.Auth.ClientToken == "" || sec.Auth.Accessor == "" {
		return nil, errors.New("vault login: no service token in the answer")
	}
	l := &login{token: secret.New(sec.Auth.ClientToken), accessor: sec.Auth.Accessor, made: true}
	defer func() {
		if fault := recover(); fault != nil {
			v.revokeSelf(ctx, l)
			panic(fault)
		}
	}()
	if slices.Contains(sec.Auth.Policies, "root") {
		v.revokeSelf(ctx, l)
		return nil, errors.New("vault login: the role gives a root token")
	}
	ttl := time.Duration(sec.Auth.LeaseDuration) * time.Second
	if ttl <= 0 {
		v.revokeSelf(ctx, l)
		return nil, errors.New("vault login: the role gives a token that never ends")
	}
	if err := v.extend(ctx, l, ttl); err != nil {
		v.revokeSelf(ctx, l)
		return nil, err
	}
	if sec.Auth.Renewable {
		kctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		l.stop, l.done = stop, make(chan struct{})
		go func() {
			defer close(l.done)
			defer func() {
				if recover() != nil { // the panic's value may hold the token
					l.kill()
					v.log.Error("the renewal of the login to Vault panicked; the next call logs in again")
				}
			}()
			v.keep(kctx, l, ttl)
		}()
	}
	return l, nil
}

// extend notes the new end of a login, in the journal first.
func (v *vault) extend(ctx context.Context, l *login, ttl time.Duration) error {
	end := v.conn.clock().Add(ttl)
	err := v.journal.Put(ctx, JournalEntry{
		Address: v.conn.address, Namespace: v.conn.namespace, TokenRole: v.role,
		Accessor: l.accessor, NotAfter: end.UTC().Round(0), Login: true,
	})
	if err != nil {
		return fmt.Errorf("vault login: journal: %w", err)
	}
	l.mu.Lock()
	l.expires = deadlineAt(end)
	l.mu.Unlock()
	return nil
}

// keep renews a login until ctx ends or Vault does not know it any more.
func (v *vault) keep(ctx context.Context, l *login, ttl time.Duration) {
	wait := ttl / 3
	for {
		timer := time.NewTimer(max(wait-rand.N(wait/10+1), 100*time.Millisecond)) //nolint:gosec // jitter
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		sec, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "auth/token/renew-self", token: l.token, body: map[string]any{}, urgent: true})
		switch {
		case err == nil && sec != nil && sec.Auth != nil && sec.Auth.LeaseDuration > 0:
			ttl = time.Duration(sec.Auth.LeaseDuration) * time.Second
			wait = ttl / 3
			if err := v.extend(ctx, l, ttl); err != nil {
				v.log.Error("the renewed login could not be journaled", "cause", err.Error())
			}
		case isClass(err, classDenied) && !v.alive(ctx, l.token):
			l.kill()
			v.log.Warn("the token for Vault is no longer valid")
			return
		case l.isDead(v.conn.clock()):
			return
		default:
			wait = max(ttl/20, 500*time.Millisecond)
		}
	}
}

func (l *login) kill() {
	l.mu.Lock()
	l.dead = true
	l.mu.Unlock()
}

func (l *login) isDead(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead || (!l.expires.mono.IsZero() && l.expires.passed(now))
}

// revokeSelf gives up a token that is not accepted. One that Vault does not take back is
// told by its accessor, since it may have no end of its own.
func (v *vault) revokeSelf(ctx context.Context, l *login) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*v.conn.timeout)
	defer cancel()
	err := retry(ctx, func() error {
		_, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "auth/token/revoke-self", token: l.token, urgent: true})
		return err
	})
	if err != nil {
		v.log.Error("a refused login could not be revoked; revoke it by its accessor", "accessor", shortText(l.accessor), "cause", err.Error())
	}
	l.token.Wipe()
}

// closeLogin also asks for one that we take for dead: a fault of ours or a clock that
// was set may have said so, and only Vault knows.
func (v *vault) closeLogin(ctx context.Context, l *login) error {
	err := retry(ctx, func() error {
		_, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "auth/token/revoke-self", token: l.token, urgent: true})
		if isClass(err, classDenied) && !v.alive(ctx, l.token) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return v.journal.Delete(ctx, l.accessor)
}
