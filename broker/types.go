package broker

import (
	"context"
	"time"
)

// Reasons a grant is refused; codes of the proxy's fixed reason table.
const (
	ReasonUnavailable = "credential-unavailable"
	ReasonBinding     = "credential-binding"
	ReasonClearText   = "clear-text-credential"
)

// Error is a refused grant. Reason may be shown to the sandbox; Cause is for
// the operator and the log only (it may name Vault paths, never a value).
type Error struct {
	Reason     string
	Credential string
	Cause      error
	Detail     string        // may be shown to the sandbox; "": the meaning of the reason is enough
	RetryAfter time.Duration // 0: no advice
}

func (e *Error) Error() string {
	s := "broker: " + e.Credential + ": " + e.Reason
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Cause }

// Target is the place a credential is asked for: the canonical, judged request.
type Target struct {
	RequestID string // for Vault's X-Correlation-Id
	Scheme    string
	Host      string
	Port      int
	Method    string
	Path      string // as received, percent-encoded
}

// Status of a credential when its run has ended.
const (
	StatusRevoked     = "revoked"
	StatusExpires     = "expires"
	StatusStatic      = "static"
	StatusUnconfirmed = "unconfirmed"
)

// Outcome says what became of one credential of a run.
type Outcome struct {
	Name     string    `json:"name"`
	Kind     string    `json:"kind"`
	LeaseID  string    `json:"lease_id,omitempty"`
	Accessor string    `json:"accessor,omitempty"`
	Status   string    `json:"status"`
	Expires  time.Time `json:"expires,omitzero"` // with StatusExpires and StatusUnconfirmed: latest possible end
	Detail   string    `json:"detail,omitempty"`
}

// JournalEntry is what survives a crash: accessors and lease ids, never tokens.
type JournalEntry struct {
	Run       string    `json:"run"`
	Address   string    `json:"address"`
	Namespace string    `json:"namespace,omitempty"`
	TokenRole string    `json:"token_role"`
	Accessor  string    `json:"accessor"`
	LeaseIDs  []string  `json:"lease_ids,omitempty"`
	NotAfter  time.Time `json:"not_after"`
	Login     bool      `json:"login,omitempty"` // the accessor of a login token of ours
}

// Journal is written before a token is handed out. The runner's state file implements it.
type Journal interface {
	Put(ctx context.Context, e JournalEntry) error // insert or replace by Accessor; durable on return
	Delete(ctx context.Context, accessor string) error
}
