package config

import "testing"

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"1": 1, "1048576": mib, "64k": 64 * kib, "64K": 64 * kib, "64Ki": 64 * kib, "512Mi": 512 * mib, "512m": 512 * mib,
		"1Gi": gib, "2T": 2 * tib, "8388607Ti": 8388607 * tib,
	} {
		got, err := ParseSize(in)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
		if again, err := ParseSize(got.String()); err != nil || again != got {
			t.Errorf("%q prints as %q, which reads as %d, %v", in, got, again, err)
		}
	}
	for _, in := range []string{
		"", "0", "0Mi", "-1", "+1", "1.5Gi", "1e3", "0x10", "1_000", " 1", "1 Mi", "Mi", "1MiB", "1iM", "1II", "1kk",
		"8388608Ti", "9223372036854775808", "99999999999999999999",
	} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for _, in := range []string{"1ns", "10m", "1h30m", "1.5s", "8784h"} {
		if _, err := ParseDuration(in); err != nil {
			t.Errorf("ParseDuration(%q): %v", in, err)
		}
	}
	for _, in := range []string{"", "0", "0s", "10", "-1s", "1d", "8785h", "9999999h", "inf"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func TestFlagsUseTheSameText(t *testing.T) {
	var z Size
	var d Duration
	if z.Set("1Gi") != nil || d.Set("2m") != nil || z.String() != "1Gi" || d.String() != "2m0s" {
		t.Errorf("size %v, duration %v", z, d)
	}
	if z.Set("x") == nil || z != gib || d.Set("x") == nil || d.String() != "2m0s" {
		t.Error("a bad value was taken, or changed the old one")
	}
}
