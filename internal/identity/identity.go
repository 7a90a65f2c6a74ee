// Package identity names a run the same way in policy input, audit records and
// credential requests. It holds plain values and imports nothing of the product.
package identity

import (
	"crypto/rand"

	"github.com/google/uuid"
)

// Run identifies one task execution. Every field except ID is a claim made by
// the person or program that started the run, never by the code inside it.
type Run struct {
	ID          string            `json:"id"`                     // "r-" + UUIDv7 (RFC 9562)
	Task        string            `json:"task,omitempty"`         // --task
	Agent       string            `json:"agent,omitempty"`        // --agent
	User        string            `json:"user,omitempty"`         // the host user that started the run
	Labels      map[string]string `json:"labels,omitempty"`       // --label K=V
	ImageDigest string            `json:"image_digest,omitempty"` // "sha256:…" of the root file system, when it has one
}

// NewRunID returns a fresh run id, sortable by time of creation.
func NewRunID() string { return "r-" + NewID() }

// NewID returns a UUIDv7 in its canonical text form. It panics only when the
// system has no randomness, in which case nothing else could be trusted either.
func NewID() string {
	id, err := uuid.NewV7FromReader(rand.Reader)
	if err != nil {
		panic("identity: no randomness: " + err.Error())
	}
	return id.String()
}
