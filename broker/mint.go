package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/vault/api"

	"warder/internal/secret"
)

// A run's token is made in two steps. It is born with a life of some seconds and,
// once its accessor is in the journal, extended to its whole life. So a token that
// nobody heard of, because the process died or the answer was lost, ends by itself
// at once, whoever the broker's own token belongs to.
const (
	// runTokenLife is the whole life of a run's token and its explicit maximum; the
	// role may give less. A longer run gets a successor.
	runTokenLife = 15 * time.Minute
	// unheardLife is the least life that a token is born with: time for the answer,
	// the journal and the call that extends it, three times that of one call.
	unheardLife = 3 * defaultCallTimeout
)

// mint makes a token and journals it before it can be used.
func (r *runTokens) mint(ctx context.Context, policies []string, correlation string) (*runToken, error) {
	var t *runToken
	err := r.v.withLogin(ctx, func(l *login) (err error) {
		born := max(unheardLife, 3*r.v.conn.timeout)
		if r.v.extendsNone.Load() {
			born = runTokenLife
		}
		t, err = r.make(ctx, l, policies, born, correlation)
		if errors.Is(err, errNotExtended) && r.v.alive(ctx, l.token) {
			if !r.v.extendsNone.Swap(true) {
				r.v.log.Warn("tokens of runs cannot be extended, so one whose making is not heard of lives longer; hint: the broker's policy needs update on auth/token/renew-accessor, and the token role renewable=true",
					"life", runTokenLife.String(), "cause", err.Error())
			}
			t, err = r.make(ctx, l, policies, runTokenLife, correlation)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.all = append(r.all, t)
	r.mu.Unlock()
	r.v.onLease(EventIssue, r.s.run.ID, Outcome{Kind: kindToken, Accessor: t.accessor, Status: StatusExpires, Expires: t.notAfter})
	return t, nil
}

// errNotExtended is a token that Vault does not let us extend.
var errNotExtended = errors.New("vault: the run's token cannot be extended")

// make makes one token with a first life. One that is not as asked for, or that
// cannot be journaled or extended, is given back and refused.
func (r *runTokens) make(ctx context.Context, l *login, policies []string, born time.Duration, correlation string) (*runToken, error) {
	asked := r.v.conn.clock()
	// The end of a run cuts nothing off here: a token that is made is heard of.
	sec, err := r.v.conn.do(context.WithoutCancel(ctx), vaultCall{
		method: http.MethodPost, path: "auth/token/create/" + r.v.role, token: l.token, correlation: correlation,
		body: map[string]any{
			"policies": policies, "ttl": born.String(), "explicit_max_ttl": runTokenLife.String(),
			"display_name": "run-" + r.s.run.ID, "meta": map[string]string{"run_id": r.s.run.ID},
		},
	})
	if err != nil {
		r.v.giveBackWrapped(ctx, l, err)
		return nil, err
	}
	if sec == nil || sec.Auth == nil || sec.Auth.ClientToken == "" {
		return nil, errors.New("vault: the token role gave no token")
	}
	for _, w := range sec.Warnings {
		r.v.log.Debug("vault warns", "role", r.v.role, "text", shortText(w))
	}
	a := sec.Auth
	t := &runToken{token: secret.New(a.ClientToken), accessor: a.Accessor, login: l, users: map[string]string{}}
	t.lives(asked, r.v.conn.clock(), a.LeaseDuration)
	short := born < runTokenLife && t.life == born // less is the role's own maximum, more its own will
	if short {
		t.notAfter = r.v.conn.clock().Add(runTokenLife) // as the journal must have it
	}
	if err = r.judge(a, policies); err == nil {
		err = r.record(ctx, t)
	}
	if err == nil && short {
		err = r.extend(ctx, t, a.Renewable)
	}
	if err != nil {
		r.discard(ctx, t)
		return nil, err
	}
	return t, nil
}

// giveBackWrapped revokes a token that came wrapped, which is refused.
func (v *vault) giveBackWrapped(ctx context.Context, l *login, err error) {
	var ve *vaultError
	if !errors.As(err, &ve) || ve.wrapped == "" {
		return
	}
	if err := v.revokeAs(context.WithoutCancel(ctx), l, ve.wrapped); err != nil {
		v.log.Warn("a wrapped token could not be revoked and ends by itself", "accessor", shortText(ve.wrapped), "cause", err.Error())
	}
}

// lives notes the life that Vault gave at some time between asked and now: it is
// used until the earliest possible end, and is gone at the latest.
func (t *runToken) lives(asked, now time.Time, seconds int) {
	t.life = time.Duration(seconds) * time.Second
	t.notAfter = now.Add(t.life)
	t.dead = deadlineAt(asked.Add(t.life - min(margin, t.life/4)))
}

// extend gives a token that is in the journal its whole life.
func (r *runTokens) extend(ctx context.Context, t *runToken, renewable bool) error {
	if !renewable {
		return fmt.Errorf("%w: token role %s does not make renewable ones", errNotExtended, r.v.role)
	}
	asked := r.v.conn.clock()
	sec, err := r.v.conn.do(ctx, vaultCall{
		method: http.MethodPost, path: "auth/token/renew-accessor", token: t.login.token, urgent: true,
		body: map[string]any{"accessor": t.accessor, "increment": runTokenLife.String()},
	})
	switch {
	case isClass(err, classDenied):
		return errors.Join(errNotExtended, err)
	case err != nil:
		return err
	case sec == nil || sec.Auth == nil || sec.Auth.LeaseDuration <= 0:
		return errors.New("vault: the run's token was extended to no time at all")
	}
	t.lives(asked, r.v.conn.clock(), sec.Auth.LeaseDuration)
	return nil
}

func (r *runTokens) judge(a *api.SecretAuth, policies []string) error {
	role := "vault: token role " + r.v.role
	switch {
	case a.Accessor == "":
		return fmt.Errorf("%s gives tokens without an accessor, which nobody can revoke; hint: token_type=service", role)
	case a.LeaseDuration <= 0:
		return fmt.Errorf("%s gives tokens that never end; hint: set token_explicit_max_ttl", role)
	case a.Orphan:
		return fmt.Errorf("%s gives orphan tokens, which outlive the login; hint: orphan=false", role)
	}
	for _, p := range a.TokenPolicies {
		if p != "default" && !slices.Contains(policies, p) {
			return fmt.Errorf("%s adds policy %q, which was not asked for", role, shortText(p))
		}
	}
	return nil
}

// discard revokes a token that is not accepted, by itself: it may have no accessor.
// One that is not confirmed gone is tried again at the end of the run.
func (r *runTokens) discard(ctx context.Context, t *runToken) {
	ctx = context.WithoutCancel(ctx)
	_, err := r.v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "auth/token/revoke-self", token: t.token, urgent: true})
	if err != nil && t.accessor != "" {
		err = r.v.revokeAs(ctx, t.login, t.accessor)
	}
	switch {
	case err == nil || tokenGone(err):
		if t.accessor != "" {
			_ = r.s.journal.Delete(ctx, t.accessor) // what it names is gone
		}
		t.token.Wipe()
		return
	case t.accessor != "":
		r.mu.Lock()
		r.all = append(r.all, t)
		r.mu.Unlock()
	}
	r.v.log.Error("a refused token could not be revoked yet", "accessor", t.accessor, "cause", err.Error())
}
