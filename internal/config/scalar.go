package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxDuration bounds every duration of the file: a year, far below the point
// where adding one to a time overflows.
const maxDuration = 366 * 24 * time.Hour

// ParseDuration reads Go's text form of a duration ("90s", "10m", "1h30m"). It
// must be positive and at most a year; a number without a unit is an error.
func ParseDuration(s string) (Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration; hint: write a number and a unit, such as 30s, 10m or 1h", s)
	case d <= 0:
		return 0, fmt.Errorf("%q is not a positive duration; hint: such as 30s, 10m or 1h", s)
	case d > maxDuration:
		return 0, fmt.Errorf("%q is longer than a year", s)
	}
	return Duration(d), nil
}

// Std returns d as a time.Duration.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String is Go's text form.
func (d Duration) String() string { return time.Duration(d).String() }

// Set parses s into d; with String and Type it makes *Duration a flag value.
func (d *Duration) Set(s string) error {
	v, err := ParseDuration(s)
	if err == nil {
		*d = v
	}
	return err
}

// Type names the value in a command's help.
func (*Duration) Type() string { return "duration" }

// UnmarshalYAML reads the text form.
func (d *Duration) UnmarshalYAML(decode func(any) error) error {
	var s string
	if err := decode(&s); err != nil {
		return err
	}
	return d.Set(s)
}

// Multipliers of a Size. Every suffix is a power of 1024, with or without the
// "i" and in either case, as in the memory flags of container tools: "512m",
// "512M" and "512Mi" are one amount.
const (
	kib Size = 1 << 10
	mib Size = 1 << 20
	gib Size = 1 << 30
	tib Size = 1 << 40
)

var errSize = errors.New("not a size; hint: write whole bytes, or a whole number with Ki, Mi, Gi or Ti, such as 512Mi")

// ParseSize reads a number of bytes: "1048576", "64k", "512Mi", "1Gi". It must
// be positive and a whole number.
func ParseSize(s string) (Size, error) {
	num := strings.TrimRight(s, "kKmMgGtTiI")
	mult := Size(1)
	switch strings.ToLower(s[len(num):]) {
	case "":
	case "k", "ki":
		mult = kib
	case "m", "mi":
		mult = mib
	case "g", "gi":
		mult = gib
	case "t", "ti":
		mult = tib
	default:
		return 0, fmt.Errorf("%q: %w", s, errSize)
	}
	n, err := strconv.ParseUint(num, 10, 63)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", s, errSize)
	}
	if n == 0 || Size(n) > math.MaxInt64/mult {
		return 0, fmt.Errorf("%q is out of range: a size is at least 1 byte and below 8 EiB", s)
	}
	return Size(n) * mult, nil
}

// String is the shortest exact form, such as "512Mi".
func (z Size) String() string {
	for _, u := range []struct {
		unit Size
		name string
	}{{tib, "Ti"}, {gib, "Gi"}, {mib, "Mi"}, {kib, "Ki"}} {
		if z != 0 && z%u.unit == 0 {
			return strconv.FormatInt(int64(z/u.unit), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(z), 10)
}

// Set parses s into z; with String and Type it makes *Size a flag value.
func (z *Size) Set(s string) error {
	v, err := ParseSize(s)
	if err == nil {
		*z = v
	}
	return err
}

// Type names the value in a command's help.
func (*Size) Type() string { return "size" }

// UnmarshalYAML reads the text form or a plain number.
func (z *Size) UnmarshalYAML(decode func(any) error) error {
	var v any
	if err := decode(&v); err != nil {
		return err
	}
	return z.Set(fmt.Sprint(v))
}
