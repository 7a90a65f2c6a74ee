// Package secret holds credential values as a type that prints as a mask
// everywhere: fmt verbs, JSON, YAML, text and slog.
//
// Invariants: the zero value is empty and harmless; the value is readable only
// through Reveal, and internal/archtest names the packages that may call it
// (broker's injectors and signers, internal/scrub).
package secret

import "log/slog"

// Mask is what a secret prints as.
const Mask = "[secret]"

// String is a secret text. Copying it copies a reference; Wipe clears all copies.
type String struct{ b *[]byte }

// New takes a copy of v.
func New(v string) String { b := []byte(v); return String{&b} }

// FromBytes takes ownership of b: the caller must not use it afterwards.
func FromBytes(b []byte) String { return String{&b} }

// Reveal returns the value. Callers are listed in internal/archtest.
func (s String) Reveal() string {
	if s.b == nil {
		return ""
	}
	return string(*s.b)
}

// Len is the length in bytes.
func (s String) Len() int {
	if s.b == nil {
		return 0
	}
	return len(*s.b)
}

// IsZero reports whether there is no value.
func (s String) IsZero() bool { return s.Len() == 0 }

// Wipe overwrites the value, as far as Go allows (copies made by Reveal remain
// until the garbage collector reuses them).
func (s String) Wipe() {
	if s.b != nil {
		clear(*s.b)
		*s.b = nil
	}
}

func (s String) String() string               { return Mask }
func (s String) GoString() string             { return Mask }
func (s String) MarshalText() ([]byte, error) { return []byte(Mask), nil }
func (s String) MarshalJSON() ([]byte, error) { return []byte(`"` + Mask + `"`), nil }
func (s String) LogValue() slog.Value         { return slog.StringValue(Mask) }
