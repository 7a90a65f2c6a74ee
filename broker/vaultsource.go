package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"

	"warder/internal/config"
	"warder/internal/secret"
)

// kvKeep is how long a stored value is used before it is read again: KV has no
// lease, so this is how soon a changed value is seen.
const kvKeep = 5 * time.Minute

// vaultSource reads one path with a token of the run.
type vaultSource struct {
	v    *vault
	name string
	kind string
	cfg  config.VaultSource
	path string
}

func (v *vault) setSource(c *credential) error {
	s := *c.cfg.Source.Vault
	path, err := vaultPath(s)
	if err != nil {
		return fmt.Errorf("credentials.%s.source.vault: %w", c.name, err)
	}
	c.kind = KindKV
	if s.Read != "" {
		c.kind = KindRead
	}
	c.source = &vaultSource{v: v, name: c.name, kind: c.kind, cfg: s, path: path}
	return nil
}

// vaultPath returns the path below /v1/. Of a kv path without `mount` the first
// segment is the mount; version 2 has "data" behind it.
func vaultPath(s config.VaultSource) (string, error) {
	mount, rest := strings.Trim(s.Mount, "/"), s.KV
	if s.Read != "" {
		if s.Mount != "" {
			return "", errors.New("mount belongs to kv; a read path is whole")
		}
		return s.Read, checkVaultPath(s.Read)
	}
	if mount == "" {
		var ok bool
		if mount, rest, ok = strings.Cut(s.KV, "/"); !ok {
			return "", errors.New("the mount and a path below it are needed, like secret/github")
		}
	}
	path := mount + "/" + rest
	if s.Version != 1 {
		path = mount + "/data/" + rest
	}
	return path, checkVaultPath(path)
}

func checkVaultPath(p string) error {
	if !validFieldText(p) || strings.ContainsAny(p, "?#\\") {
		return errors.New("not a path of Vault's")
	}
	for _, s := range strings.Split(p, "/") {
		if s == "" || s == "." || s == ".." {
			return errors.New("a path of Vault's has no empty or dot segments")
		}
	}
	return nil
}

func (c *vaultSource) fetch(ctx context.Context, s *Session, requestID string) (*material, error) {
	correlation := s.run.ID
	if requestID != "" {
		correlation += "/" + requestID
	}
	set := s.vault.set(c.cfg.Policies)
	for attempt := 0; ; attempt++ {
		t, err := s.vault.get(ctx, set, correlation)
		if err != nil {
			return nil, err
		}
		t.use(c.name, c.kind)
		sec, err := c.v.conn.do(ctx, vaultCall{method: http.MethodGet, path: c.path, token: t.token, correlation: correlation})
		if err == nil {
			return c.material(ctx, s, t, sec)
		}
		if !isClass(err, classDenied) {
			return nil, err
		}
		switch s.vault.fateOf(ctx, t) {
		case fateKilled:
			s.retireAll(c.cfg.Policies)
			return nil, s.vault.drop(set, t, true)
		case fateLost:
			if err2 := s.vault.drop(set, t, false); err2 != nil {
				return nil, err2
			}
			if attempt == 0 {
				continue
			}
		case fateAlive:
		}
		return nil, fmt.Errorf("%w; hint: the run's policies %s need capability read on it", err, strings.Join(set.policies, ", "))
	}
}

// retireAll takes all values out of use that were fetched with one set of policies.
func (s *Session) retireAll(policies []string) {
	set := s.vault.set(policies)
	for _, e := range s.entries {
		if v, ok := e.cred.source.(*vaultSource); ok && s.vault.set(v.cfg.Policies) == set {
			e.mu.Lock()
			e.retire()
			e.mu.Unlock()
		}
	}
}

// material journals the lease of an answer, if it has one, and takes the value out of it.
func (c *vaultSource) material(ctx context.Context, s *Session, t *runToken, sec *api.Secret) (*material, error) {
	m := &material{accessor: t.accessor}
	if sec == nil {
		return nil, &vaultError{class: classNotFound, op: "GET " + c.path, text: "an empty answer"}
	}
	m.requestID = sec.RequestID
	if sec.LeaseID != "" {
		if !safeLease(sec.LeaseID) {
			return nil, &vaultError{class: classInvalid, op: "GET " + c.path, text: "an odd lease id"}
		}
		if err := s.vault.addLease(ctx, t, sec.LeaseID); err != nil {
			return nil, err
		}
		m.leaseID = sec.LeaseID
		c.v.onLease(EventIssue, s.run.ID, Outcome{Name: c.name, Kind: c.kind, LeaseID: m.leaseID, Accessor: t.accessor, Status: StatusExpires, Expires: t.notAfter})
	}
	data := sec.Data
	if c.kind == KindKV && c.cfg.Version != 1 {
		data, _ = sec.Data["data"].(map[string]any)
	}
	v, ok := data[c.cfg.Field].(string)
	if !ok {
		return nil, fmt.Errorf("vault: GET %s: field %q is missing or not a text", c.path, c.cfg.Field)
	}
	if err := checkValue(v); err != nil {
		return nil, fmt.Errorf("vault: GET %s: field %q: %w", c.path, c.cfg.Field, err)
	}
	m.value = secret.New(v)
	if c.kind == KindKV {
		m.keep = kvKeep // lease_duration of KV is nothing (2) or a hint (1)
		return m, nil
	}
	c.setLife(m, t, sec)
	return m, nil
}

// setLife of a generic read: no longer than its lease and its token. A duration
// of 0 or less is never cached.
func (c *vaultSource) setLife(m *material, t *runToken, sec *api.Secret) {
	now := c.v.conn.clock()
	if sec.LeaseDuration > 0 {
		m.keep = time.Duration(min(sec.LeaseDuration, int(foreverKeep/time.Second))) * time.Second
	}
	if m.leaseID == "" {
		if m.keep > 0 {
			m.expires = now.Add(m.keep)
		}
		return
	}
	m.revocable = true
	m.expires = now.Add(m.keep)
	if t.notAfter.Before(m.expires) {
		m.expires = t.notAfter
	}
	m.keep = min(m.keep, m.expires.Sub(now))
}

// safeLease reports whether a lease id can stand in a path, as Vault makes them.
func safeLease(id string) bool { return len(id) < 1024 && checkVaultPath(id) == nil }
