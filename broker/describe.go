package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
)

// Info is what may be told about a credential: everything but its value.
type Info struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Source   string   `json:"source"` // "vault: secret/data/github", "env: NAME", …
	Slot     string   `json:"slot"`   // "header Authorization", "basic", "query key", "mtls", …
	Hosts    []string `json:"hosts"`
	Methods  []string `json:"methods"` // null: any; empty: none
	Paths    []string `json:"paths"`   // null: any; empty: none
	StandIns []string `json:"stand_ins"`
	Policies []string `json:"policies,omitempty"` // of the run's Vault token
	AtEnd    string   `json:"at_end"`             // what the end of a run means for the value: revoked, expires, static
}

// List describes all configured credentials, sorted by name.
func (b *Broker) List() []Info {
	var out []Info
	for _, name := range slices.Sorted(maps.Keys(b.creds)) {
		out = append(out, b.creds[name].info())
	}
	return out
}

func (c *credential) info() Info {
	i := Info{
		Name: c.name, Kind: c.kind, Hosts: slices.Clone(c.cfg.Hosts),
		StandIns: slices.Sorted(maps.Keys(c.cfg.StandIn)), AtEnd: StatusStatic,
	}
	if c.cfg.Methods != nil {
		i.Methods = append([]string{}, *c.cfg.Methods...)
	}
	if c.cfg.Paths != nil {
		i.Paths = append([]string{}, *c.cfg.Paths...)
	}
	i.Slot = slotText(c.cfg.Inject)
	switch s := c.source.(type) {
	case *vaultSource:
		i.Source, i.Policies = "vault: "+s.path, slices.Clone(s.cfg.Policies)
		switch {
		case c.kind == KindRead, c.kind == KindAWS && isAWSEngine(s.cfg):
			i.AtEnd = StatusRevoked
		case c.kind == KindOIDC, c.kind == KindJWT, c.kind == KindPKI, c.kind == KindTOTP:
			i.AtEnd = StatusExpires
		}
	case envSource:
		i.Source = "env: " + s.name
	case fileSource:
		i.Source = "file: " + s.path
	case commandSource:
		i.Source = "command: " + s.argv[0] // its arguments may hold anything
	case *jwtSource:
		i.Source, i.AtEnd = "jwt: "+s.cfg.Audience, StatusExpires
	case totpSource:
		i.Source, i.AtEnd = "totp: "+s.cfg.KeyFile, StatusExpires
	case hmacSource:
		i.Source = "hmac: " + s.cfg.KeyFile
	case localPKI:
		i.Source, i.AtEnd = "pki: "+s.cfg.CACertFile, StatusExpires
	}
	return i
}

func slotText(in config.Inject) string {
	switch {
	case in.Header != "":
		return "header " + in.Header
	case in.Basic != nil:
		return "basic"
	case in.Query != "":
		return "query " + in.Query
	case in.Form != "":
		return "form " + in.Form
	case in.SigV4 != nil:
		return "sigv4 " + in.SigV4.Region + " " + in.SigV4.Service
	case in.MTLS != nil:
		return "mtls"
	case in.HMAC != nil:
		return "hmac " + in.HMAC.Header
	}
	return ""
}

// Facts are the result of Probe.
type Facts struct {
	Info
	Length         int        `json:"length"`            // of the value, in bytes; 0 when no value is sent
	Searched       bool       `json:"searched"`          // long enough to be searched in answers' bodies
	Expires        *time.Time `json:"expires,omitempty"` // nil: static
	LeaseID        string     `json:"lease_id,omitempty"`
	Accessor       string     `json:"accessor,omitempty"`
	VaultRequestID string     `json:"vault_request_id,omitempty"`
	Outcomes       []Outcome  `json:"outcomes"`
}

// Probe fetches one credential as a run would, forgets the value and takes
// everything back. The error is that of the fetch; an outcome may still be
// unconfirmed. shortest is the least length that is searched in bodies.
func (b *Broker) Probe(ctx context.Context, name string, j Journal, shortest int) (Facts, error) {
	c, ok := b.creds[name]
	if !ok {
		return Facts{}, fmt.Errorf("broker: probe: credential %q is not configured; it has: %s", name, strings.Join(slices.Sorted(maps.Keys(b.creds)), ", "))
	}
	s, err := b.Begin(identity.Run{ID: identity.NewRunID()}, []string{name}, j)
	if err != nil {
		return Facts{}, err
	}
	f := Facts{Info: c.info()}
	m, _, err := s.material(ctx, s.entries[name], "probe")
	if err == nil && m.sign != nil {
		_, f.VaultRequestID, err = m.sign(ctx, []byte("probe"), "probe")
	}
	if err == nil {
		f.Length = m.value.Len()
		f.Searched = f.Length >= shortest
		f.LeaseID, f.Accessor, f.VaultRequestID = m.leaseID, m.accessor, cmp.Or(m.requestID, f.VaultRequestID)
		if !m.expires.IsZero() {
			f.Expires = &m.expires
		}
	}
	err = causeOf(err)
	f.Outcomes = s.endWithin(ctx)
	return f, err
}

// causeOf is what the operator is told of a refusal.
func causeOf(err error) error {
	var refused *Error
	if errors.As(err, &refused) && refused.Cause != nil {
		return refused.Cause
	}
	return err
}
