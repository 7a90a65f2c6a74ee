package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

const byOperator = "revoked by the operator"

// Revoke takes back at once what journals name, although their runs live: of one
// credential its leases, with credential "" all leases and tokens. A live run then
// gets no other token. What is left to its owner's journal stays there. done says
// what is confirmed; err what is not, and which entries are of another Vault.
func (b *Broker) Revoke(ctx context.Context, entries []JournalEntry, credential string) (done []Outcome, err error) {
	prefix := ""
	if credential != "" {
		c, ok := b.creds[credential]
		if !ok {
			return nil, fmt.Errorf("broker: revoke: credential %q is not configured", credential)
		}
		src, ok := c.source.(*vaultSource)
		if !ok {
			return nil, nil // nothing that a journal could name
		}
		prefix = src.path + "/"
	}
	var errs []error
	for _, e := range entries {
		v := b.vault
		if v == nil || e.Address != v.conn.address || e.Namespace != v.conn.namespace {
			errs = append(errs, fmt.Errorf("broker: revoke: run %s: its token is of another Vault, %s", e.Run, shortText(e.Address)))
			continue
		}
		if e.Login || e.Accessor == "" {
			continue
		}
		out, err := b.revokeEntry(ctx, e, credential, prefix)
		if err != nil {
			errs = append(errs, fmt.Errorf("broker: revoke: run %s: accessor %s: %w", e.Run, e.Accessor, err))
		}
		for _, o := range out {
			b.opts.OnLease(EventRevoke, e.Run, o)
		}
		done = append(done, out...)
	}
	return done, errors.Join(errs...)
}

func (b *Broker) revokeEntry(ctx context.Context, e JournalEntry, credential, prefix string) (done []Outcome, err error) {
	v := b.vault
	correlation := "revoke/" + e.Run
	if credential == "" {
		err := retry(ctx, func() error { return v.revoke(ctx, e.Accessor, e.LeaseIDs, correlation) })
		if err != nil {
			return nil, err
		}
		return []Outcome{{Kind: kindToken, Accessor: e.Accessor, Status: StatusRevoked, Detail: byOperator}}, nil
	}
	var errs []error
	for _, id := range slices.DeleteFunc(slices.Clone(e.LeaseIDs), func(id string) bool { return !strings.HasPrefix(id, prefix) }) {
		err := retry(ctx, func() error { return v.revokeLease(ctx, id, correlation) })
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, Outcome{Name: credential, Kind: b.creds[credential].kind, LeaseID: id, Accessor: e.Accessor, Status: StatusRevoked, Detail: byOperator})
	}
	return done, errors.Join(errs...)
}

// revokeLease takes back one lease, confirmed by its target system. It is
// idempotent: what Vault does not know is gone.
func (v *vault) revokeLease(ctx context.Context, id, correlation string) error {
	if !safeLease(id) {
		return &vaultError{class: classInvalid, op: "revoke", text: "an odd lease id"}
	}
	err := v.withLogin(ctx, func(l *login) error {
		_, err := v.conn.do(ctx, vaultCall{
			method: http.MethodPost, path: "sys/leases/revoke/" + id, token: l.token,
			body: map[string]any{"sync": true}, correlation: correlation, urgent: true,
		})
		return err
	})
	if err != nil && !saysGone(err, "invalid lease", "lease not found") {
		return fmt.Errorf("lease not revoked in its target system: %w", err)
	}
	return nil
}

var errStopped = errors.New("the operator has stopped its use by this run")

// undo takes back what a fetch brought for a credential whose use the operator has
// stopped meanwhile. Whoever revokes stops first and reads the journal then, and we
// write the journal first and look for a stop then: so one of both sees the other.
// What fails here is tried again at the end of the run.
func (c *vaultSource) undo(ctx context.Context, s *Session, set *tokenSet, t *runToken) error {
	t.mu.Lock()
	leases := slices.Clone(t.leases)
	t.mu.Unlock()
	var err error
	if s.allStopped(set) {
		_ = s.vault.drop(set, t, true)
		err = c.v.revoke(ctx, t.accessor, leases, s.run.ID)
	} else {
		for _, id := range leases {
			if strings.HasPrefix(id, c.path+"/") {
				err = errors.Join(err, c.v.revokeLease(ctx, id, s.run.ID))
			}
		}
	}
	if err != nil {
		c.v.log.Error("what was fetched for a stopped credential is not revoked yet", "run", s.run.ID, "credential", c.name, "accessor", t.accessor, "cause", err.Error())
	}
	return errStopped
}

// allStopped reports that nobody in this run may use a set of policies any more.
func (s *Session) allStopped(set *tokenSet) bool {
	for _, e := range s.entries {
		if v, ok := e.cred.source.(*vaultSource); ok && s.vault.set(v.cfg.Policies) == set && !s.stopped(e) {
			return false
		}
	}
	return true
}

// Stopped reports that the operator has stopped the use of a credential by this
// run. What is under way with it should end.
func (s *Session) Stopped(name string) bool {
	e, ok := s.entries[name]
	return ok && s.stopped(e)
}

// stopped takes the value of e out of use when the operator has stopped it.
func (s *Session) stopped(e *entry) bool {
	if s.b.opts.Stopped == nil || !s.b.opts.Stopped(s.run.ID, e.cred.name, s.began) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.retire()
	return true
}
