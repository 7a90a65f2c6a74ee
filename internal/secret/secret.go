// Package secret holds credential values as a type that prints as a mask
// everywhere: fmt verbs, JSON, YAML, text and slog.
//
// Invariants: the zero value is empty and harmless; the value is readable only
// through Reveal, and internal/archtest names the packages that may call it
// (broker's injectors and signers, internal/scrub). No verb of fmt reaches it, nor
// reflection over a struct that has a secret in a field without a capital. Where the
// host allows, what is kept lies in memory that is never swapped out nor dumped;
// what Reveal returns is an ordinary copy, as short-lived as its use.
package secret

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
)

// Mask is what a secret prints as.
const Mask = "[secret]"

// String is a secret text. Copying it copies a reference; Wipe clears all
// copies. It is safe for concurrent use.
type String struct{ v *value }

// value hides its bytes in a closure: fmt follows pointers in fields on which it
// may not call methods, but it cannot look into a function.
type value struct {
	mu      sync.RWMutex
	cell    func() *[]byte
	release func() // gives locked memory back, cleared; nil: ordinary memory
}

// New takes a copy of v.
func New(v string) String { return FromBytes([]byte(v)) }

// FromBytes takes ownership of b: the caller must not use it afterwards. Its value
// is moved into locked memory, if there is some, and b is cleared.
func FromBytes(b []byte) String {
	held, release := locked.take(len(b))
	if held == nil {
		return ordinary(b)
	}
	copy(held, b)
	clear(b)
	v := &value{cell: func() *[]byte { return &held }, release: release}
	runtime.AddCleanup(v, func(release func()) { release() }, release)
	return String{v}
}

// Brief takes a copy of what lives no longer than one exchange: ordinary memory.
func Brief(v string) String { return ordinary([]byte(v)) }

func ordinary(b []byte) String { return String{&value{cell: func() *[]byte { return &b }}} }

// Reveal returns the value. Callers are listed in internal/archtest.
func (s String) Reveal() string {
	if s.v == nil {
		return ""
	}
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return string(*s.v.cell())
}

// Len is the length in bytes.
func (s String) Len() int {
	if s.v == nil {
		return 0
	}
	s.v.mu.RLock()
	defer s.v.mu.RUnlock()
	return len(*s.v.cell())
}

// IsZero reports whether there is no value.
func (s String) IsZero() bool { return s.Len() == 0 }

// Wipe overwrites the value, as far as Go allows (copies made by Reveal remain
// until the garbage collector reuses them).
func (s String) Wipe() {
	if s.v == nil {
		return
	}
	s.v.mu.Lock()
	defer s.v.mu.Unlock()
	b := s.v.cell()
	clear(*b)
	*b = nil
	if s.v.release != nil {
		s.v.release()
	}
}

// Format writes the mask for every verb; without it, fmt would show the bytes
// for those that a text does not have.
func (s String) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Mask) }

func (s String) String() string               { return Mask }
func (s String) GoString() string             { return Mask }
func (s String) MarshalText() ([]byte, error) { return []byte(Mask), nil }
func (s String) MarshalJSON() ([]byte, error) { return []byte(`"` + Mask + `"`), nil }
func (s String) LogValue() slog.Value         { return slog.StringValue(Mask) }
