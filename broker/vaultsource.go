package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"

	"warder/internal/config"
	"warder/internal/secret"
)

// kvKeep is how long a stored value is used before it is read again: KV has no
// lease, so this is how soon a changed value is seen.
const kvKeep = 5 * time.Minute

// vaultSource asks one path with a token of the run.
type vaultSource struct {
	v    *vault
	name string
	kind string
	cfg  config.VaultSource
	user string // field of the user's name; "" for none
	path string // asked for a value; a prefix of it for jwt
	jwt  transitJWT
}

func (v *vault) setSource(c *credential) error {
	s := *c.cfg.Source.Vault
	kind, path, err := vaultPath(s)
	if err != nil {
		return fmt.Errorf("credentials.%s.source.vault: %w", c.name, err)
	}
	c.kind = kind
	src := &vaultSource{v: v, name: c.name, kind: kind, cfg: s, path: path}
	if b := c.cfg.Inject.Basic; b != nil {
		src.user = b.UsernameField
	}
	c.source = src
	return nil
}

// vaultPath returns the kind and the path below /v1/. Of a kv path without
// `mount` the first segment is the mount; version 2 has "data" behind it.
func vaultPath(s config.VaultSource) (kind, path string, err error) {
	at := func(mount, middle, name string) string {
		if s.Mount != "" {
			mount = strings.Trim(s.Mount, "/")
		}
		return mount + middle + name
	}
	switch {
	case s.KV != "":
		kind = KindKV
		path, err = kvPath(s, s.KV)
	case s.AWS != "":
		kind, path = KindAWS, s.AWS
		if !isAWSEngine(s) {
			path, err = kvPath(s, s.AWS)
		}
	case s.Read != "":
		kind, path = KindRead, s.Read
		if s.Mount != "" {
			err = errors.New("mount does not belong to read, whose path is whole")
		}
	case s.OIDC != "":
		kind, path = KindOIDC, "identity/oidc/token/"+s.OIDC
	case s.TOTP != "":
		kind, path = KindTOTP, at("totp", "/code/", s.TOTP)
	case s.PKI != "":
		kind, path = KindPKI, s.PKI
		if parts := strings.Split(s.PKI, "/"); len(parts) < 3 || parts[len(parts)-2] != "sign" {
			err = errors.New("a path like pki/sign/ROLE is needed: the key is made here, so Vault signs and issues none")
		}
	case s.JWT != "":
		kind, path = KindJWT, at("transit", "/sign/", s.JWT)
	case s.HMAC != "":
		kind, path = KindHMAC, at("transit", "/hmac/", s.HMAC+"/"+hmacAlgorithm(s.Algorithm))
	}
	if err != nil {
		return "", "", err
	}
	return kind, path, checkVaultPath(path)
}

func kvPath(s config.VaultSource, rest string) (string, error) {
	mount := strings.Trim(s.Mount, "/")
	if mount == "" {
		var ok bool
		if mount, rest, ok = strings.Cut(rest, "/"); !ok {
			return "", errors.New("the mount and a path below it are needed, like secret/github")
		}
	}
	if s.Version == 1 {
		return mount + "/" + rest, nil
	}
	return mount + "/data/" + rest, nil
}

// isAWSEngine tells the two places of access keys apart: MOUNT/creds/ROLE and
// MOUNT/sts/ROLE are those of Vault's engine, any other path is a stored value.
func isAWSEngine(s config.VaultSource) bool {
	parts := strings.Split(s.AWS, "/")
	return s.Version == 0 && s.Mount == "" && len(parts) >= 3 && slices.Contains([]string{"creds", "sts"}, parts[len(parts)-2])
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

func (c *vaultSource) fetch(ctx context.Context, s *Session, requestID string) (m *material, err error) {
	correlation := s.correlation(requestID)
	err = c.withToken(ctx, s, correlation, func(t *runToken) error {
		switch c.kind {
		case KindHMAC:
			m = &material{accessor: t.accessor, keep: kvKeep, sign: c.signWith(s)}
		case KindJWT:
			m, err = c.signJWT(ctx, s, t, correlation)
		case KindPKI:
			m, err = c.signCSR(ctx, s, t, correlation)
		default:
			var sec *api.Secret
			if sec, err = c.v.conn.do(ctx, vaultCall{method: http.MethodGet, path: c.path, token: t.token, correlation: correlation}); err == nil {
				m, err = c.material(ctx, s, t, sec)
			}
		}
		return err
	})
	if err != nil {
		if m != nil {
			m.wipe()
		}
		return nil, err
	}
	return m, nil
}

// correlation is what Vault's audit log has of a request of ours.
func (s *Session) correlation(requestID string) string {
	if requestID == "" {
		return s.run.ID
	}
	return s.run.ID + "/" + requestID
}

// withToken runs fn with the run's token. When it turns out to have ended by
// itself fn is repeated once with another one.
func (c *vaultSource) withToken(ctx context.Context, s *Session, correlation string, fn func(t *runToken) error) error {
	set := s.vault.set(c.cfg.Policies)
	for attempt := 0; ; attempt++ {
		t, err := s.vault.get(ctx, set, correlation)
		if err != nil {
			return err
		}
		t.use(c.name, c.kind)
		err = fn(t)
		if e := s.entries[c.name]; e != nil && s.stopped(e) {
			return c.undo(ctx, s, set, t)
		}
		if !isClass(err, classDenied) {
			return err
		}
		switch s.vault.fateOf(ctx, t) {
		case fateKilled:
			s.retireAll(c.cfg.Policies)
			return s.vault.drop(set, t, true)
		case fateLost:
			if err2 := s.vault.drop(set, t, false); err2 != nil {
				return err2
			}
			if attempt == 0 {
				continue
			}
		case fateAlive:
		}
		return fmt.Errorf("%w; hint: the run's policies %s need capability %s on it", err, strings.Join(set.policies, ", "), c.capability())
	}
}

// capability is what a policy must give on the path.
func (c *vaultSource) capability() string {
	switch c.kind {
	case KindJWT, KindPKI, KindHMAC:
		return "update"
	}
	return "read"
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

// lease journals the lease of an answer, if it has one, before its value is used.
func (c *vaultSource) lease(ctx context.Context, s *Session, t *runToken, sec *api.Secret) (*material, error) {
	m := &material{accessor: t.accessor}
	if sec == nil {
		return nil, &vaultError{class: classNotFound, op: c.op(), text: "an empty answer"}
	}
	m.requestID = sec.RequestID
	if sec.LeaseID == "" {
		return m, nil
	}
	if !safeLease(sec.LeaseID) {
		return nil, &vaultError{class: classInvalid, op: c.op(), text: "an odd lease id"}
	}
	if err := s.vault.addLease(ctx, t, sec.LeaseID); err != nil {
		return nil, err
	}
	m.leaseID = sec.LeaseID
	c.v.onLease(EventIssue, s.run.ID, Outcome{Name: c.name, Kind: c.kind, LeaseID: m.leaseID, Accessor: t.accessor, Status: StatusExpires, Expires: t.notAfter})
	return m, nil
}

// op is how errors name the call.
func (c *vaultSource) op() string {
	if c.capability() == "update" {
		return "POST " + c.path
	}
	return "GET " + c.path
}

// material takes the value out of an answer.
func (c *vaultSource) material(ctx context.Context, s *Session, t *runToken, sec *api.Secret) (*material, error) {
	m, err := c.lease(ctx, s, t, sec)
	if err != nil {
		return nil, err
	}
	switch c.kind {
	case KindKV:
		m.value, err = c.field(kvData(sec, c.cfg.Version), c.cfg.Field)
		m.keep = kvKeep // lease_duration of KV is nothing (2) or a hint (1)
	case KindOIDC:
		m.value, err = c.field(sec.Data, "token")
		c.ends(m, number(sec.Data["ttl"]))
	case KindTOTP: // never kept: a code is good for one step
		m.value, err = c.field(sec.Data, "code")
		m.expires = c.v.conn.clock().Add(totpPeriod)
	case KindAWS:
		err = c.awsKeys(m, t, sec)
	default:
		m.value, err = c.field(sec.Data, c.cfg.Field)
		if err == nil && c.user != "" {
			m.user, err = c.field(sec.Data, c.user)
		}
		c.setLife(m, t, sec)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// kvData is the stored value: version 2 wraps it.
func kvData(sec *api.Secret, version int) map[string]any {
	if version == 1 {
		return sec.Data
	}
	data, _ := sec.Data["data"].(map[string]any)
	return data
}

func (c *vaultSource) field(data map[string]any, name string) (secret.String, error) {
	v, ok := data[name].(string)
	if !ok {
		return secret.String{}, fmt.Errorf("vault: %s: field %q is missing or not a text", c.op(), name)
	}
	if err := checkValue(v); err != nil {
		return secret.String{}, fmt.Errorf("vault: %s: field %q: %w", c.op(), name, err)
	}
	return secret.New(v), nil
}

// ends sets the life of a value that nobody can revoke; 0 or less is not kept.
func (c *vaultSource) ends(m *material, seconds int64) {
	now := c.v.conn.clock()
	m.keep = time.Duration(min(max(seconds, 0), int64(foreverKeep/time.Second))) * time.Second
	m.expires = now.Add(m.keep)
}

// number reads a whole number of an answer; 0 when it is none.
func number(v any) int64 {
	n, ok := v.(json.Number)
	if !ok {
		return 0
	}
	i, _ := n.Int64()
	return i
}

// setLife of a generic read: no longer than its lease and its token. A duration
// of 0 or less is never cached. Keys of AWS's token service have a lease that ends
// nothing: Vault answers its revocation well, and they live on to their time.
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
	m.revocable = !hasSession(sec.Data)
	m.expires = now.Add(m.keep)
	if m.revocable && t.notAfter.Before(m.expires) {
		m.expires = t.notAfter
	}
	m.keep = min(m.keep, m.expires.Sub(now))
}

// hasSession reports keys of AWS's token service, by what goes with them alone.
func hasSession(data map[string]any) bool {
	return slices.ContainsFunc(awsSession, func(name string) bool { s, _ := data[name].(string); return s != "" })
}

// safeLease reports whether a lease id can stand in a path, as Vault makes them.
func safeLease(id string) bool { return len(id) < 1024 && checkVaultPath(id) == nil }
