package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	retryFirst = 100 * time.Millisecond
	retryMost  = 2 * time.Second
	expirySlop = time.Minute // an entry this far past its end is gone even by a slow clock
)

// retry repeats fn with growing pauses while its error may pass, until ctx ends.
func retry(ctx context.Context, fn func() error) error {
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := fn()
		if err == nil || !mayPass(err) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

// mayPass reports whether a failed revocation, or one part of it, is worth repeating.
func mayPass(err error) bool {
	if parts, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(parts.Unwrap(), mayPass)
	}
	var ve *vaultError
	return !errors.As(err, &ve) || ve.class == classUnavailable
}

// revoke takes back leases, each confirmed by its target system, then the token.
// It is idempotent: what Vault does not know is gone.
func (v *vault) revoke(ctx context.Context, accessor string, leases []string, correlation string) error {
	var errs []error
	for _, id := range leases {
		if err := v.revokeLease(ctx, id, correlation); err != nil {
			errs = append(errs, err)
		}
	}
	err := v.withLogin(ctx, func(l *login) error {
		_, err := v.conn.do(ctx, vaultCall{
			method: http.MethodPost, path: "auth/token/revoke-accessor", token: l.token,
			body: map[string]any{"accessor": accessor}, correlation: correlation, urgent: true,
		})
		return err
	})
	if err != nil && !tokenGone(err) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// saysGone reports that Vault itself says that it does not know the thing.
func saysGone(err error, texts ...string) bool {
	var ve *vaultError
	if !errors.As(err, &ve) || (ve.status != http.StatusBadRequest && ve.status != http.StatusNotFound) {
		return false
	}
	return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(ve.text, t) })
}

// tokenGone reports that Vault does not know a token any more. While somebody else
// revokes it, its accessor is known for a moment longer.
func tokenGone(err error) bool { return saysGone(err, "invalid accessor", "token not found") }

// recoverOrder puts login tokens last: their end takes the runs' tokens with it,
// and then no lease of those could be revoked one by one.
func recoverOrder(entries []JournalEntry) []JournalEntry {
	out := slices.Clone(entries)
	slices.SortStableFunc(out, func(a, b JournalEntry) int {
		switch {
		case a.Login == b.Login:
			return 0
		case a.Login:
			return 1
		}
		return -1
	})
	return out
}

func (b *Broker) recoverOne(ctx context.Context, e JournalEntry) (gone bool, err error) {
	expired := !e.NotAfter.IsZero() && b.opts.Clock().After(e.NotAfter.Add(expirySlop))
	v := b.vault
	if v == nil || e.Address != v.conn.address || e.Namespace != v.conn.namespace || e.TokenRole != v.role {
		return expired, nil
	}
	if e.Accessor == "" || v.isCurrent(e.Accessor) {
		return false, nil
	}
	if err := v.revoke(ctx, e.Accessor, e.LeaseIDs, "recover/"+e.Run); err != nil {
		if expired {
			return true, nil
		}
		return false, fmt.Errorf("broker: recover: run %s: accessor %s: %w", e.Run, e.Accessor, err)
	}
	b.opts.OnLease(EventRevoke, e.Run, Outcome{Kind: kindToken, Accessor: e.Accessor, Status: StatusRevoked, Detail: "left at the end of its run"})
	return true, nil
}

func (v *vault) isCurrent(accessor string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.current != nil && v.current.accessor == accessor
}
