// Package identity names a run the same way in policy input, audit records and
// credential requests. It holds plain values and imports nothing of the product.
package identity

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"sync"

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
func NewID() string { return string(AppendID(make([]byte, 0, 36))) }

// AppendID appends what NewID returns.
func AppendID(dst []byte) []byte {
	random := readers.Get().(*bufio.Reader)
	id, err := uuid.NewV7FromReader(random)
	readers.Put(random)
	if err != nil {
		panic("identity: no randomness: " + err.Error())
	}
	var text [36]byte
	hex.Encode(text[0:8], id[0:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:36], id[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return append(dst, text[:]...)
}

// readers ask the system for the randomness of 16 ids at once.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(rand.Reader, 256) }}
