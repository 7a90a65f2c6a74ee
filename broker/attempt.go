package broker

import (
	"context"
	"errors"
	"fmt"
)

// attempt is a login under way. It belongs to nobody who waits for it: when they go, a
// token that Vault has made is still heard of, journaled and revoked in the end.
type attempt struct {
	done  chan struct{} // closed when login and err are there
	login *login
	err   error
	left  bool // the broker was closed meanwhile and did not wait; under vault.mu
}

var errClosed = errors.New("vault: the broker is closed")

// session returns a login that is not known to be dead, logging in when there is none.
func (v *vault) session(ctx context.Context) (*login, error) {
	l, a, err := v.currentOr(ctx)
	if a == nil {
		return l, err
	}
	select {
	case <-a.done:
		return a.login, a.err
	case <-ctx.Done():
		return nil, v.wentAway(ctx.Err())
	}
}

// wentAway is the error of whoever did not wait for a login.
func (v *vault) wentAway(err error) error {
	return fmt.Errorf("vault login: %w", &vaultError{op: "POST auth/" + v.mount() + "/login", err: err})
}

// currentOr returns the current login, or the attempt to wait for.
func (v *vault) currentOr(ctx context.Context) (*login, *attempt, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, nil, errClosed
	}
	if v.current != nil && !v.current.isDead(v.conn.clock()) {
		return v.current, nil, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, v.wentAway(err)
	}
	if v.underWay == nil {
		v.underWay = &attempt{done: make(chan struct{})}
		go v.logIn(context.WithoutCancel(ctx), v.underWay, v.current) // each of its calls has an end of its own
	}
	return nil, v.underWay, nil
}

// logIn makes an attempt; before is the login that is dead, if there is one.
func (v *vault) logIn(ctx context.Context, a *attempt, before *login) {
	defer close(a.done)
	a.login, a.err = v.tryLogin(ctx, before)
	v.mu.Lock()
	v.underWay = nil
	left := a.left
	if a.err == nil && !left {
		if v.current != nil {
			v.former = append(v.former, v.current)
		}
		v.current = a.login
	}
	v.mu.Unlock()
	if a.err == nil && left {
		v.giveUpLate(ctx, a.login)
		a.login, a.err = nil, errClosed
	}
}

// giveUpLate revokes a login that came after the end.
func (v *vault) giveUpLate(ctx context.Context, l *login) {
	defer func() {
		if recover() != nil { // the panic's value may hold the token
			v.log.Error("a fault of our own while a login was given up")
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 2*v.conn.timeout)
	defer cancel()
	if err := v.giveUp(ctx, l); err != nil {
		v.log.Warn("a login that came after the end is not confirmed revoked", "cause", err.Error())
	}
}

func (v *vault) tryLogin(ctx context.Context, before *login) (l *login, err error) {
	defer func() {
		if recover() != nil { // the panic's value may hold the token
			l, err = nil, errors.New("vault login: a fault of our own; the next call tries again")
		}
	}()
	return v.authenticate(ctx, before)
}

// close ends the keepers and revokes what we made, with growing pauses until ctx ends.
func (v *vault) close(ctx context.Context) error {
	var errs []error
	if !v.refuseMore(ctx) {
		errs = append(errs, errors.New("vault: a login is still under way; it is revoked when it comes, and ends by itself where this process ends before"))
	}
	v.mu.Lock()
	all := v.former
	if v.current != nil {
		all = append(all, v.current)
	}
	v.current, v.former = nil, nil
	v.mu.Unlock()
	for _, l := range all {
		if err := v.giveUp(ctx, l); err != nil {
			errs = append(errs, fmt.Errorf("vault: the login token is not confirmed revoked: %w", err))
		}
	}
	v.conn.closeIdle()
	return errors.Join(errs...)
}

// refuseMore lets nobody log in from now on, and waits for who does. It returns false
// when ctx ended before.
func (v *vault) refuseMore(ctx context.Context) bool {
	v.mu.Lock()
	v.closed = true
	a := v.underWay
	v.mu.Unlock()
	if a == nil {
		return true
	}
	select {
	case <-a.done:
		return true
	case <-ctx.Done():
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	a.left = v.underWay == a
	return !a.left
}

// giveUp ends the keeper of a login and revokes it where it is ours.
func (v *vault) giveUp(ctx context.Context, l *login) error {
	if l.stop != nil {
		l.stop()
		<-l.done
	}
	if l.made {
		if err := v.closeLogin(ctx, l); err != nil {
			return err
		}
	}
	l.token.Wipe()
	return nil
}
