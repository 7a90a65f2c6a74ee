package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParse: whatever the bytes, parse returns a Config that keeps its promises
// or an error with a place in the file, and never panics.
func FuzzParse(f *testing.F) {
	f.Add(full)
	for _, tc := range faultCases {
		f.Add(tc.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse("/etc/w/warder.yaml", []byte(text), "/home/u")
		if err != nil {
			var at *Error
			if !errors.As(err, &at) {
				t.Fatalf("not an *Error: %v", err)
			}
			// YAML ends a line at CR, LF or both.
			if lines := strings.Count(text, "\n") + strings.Count(text, "\r") + 1; at.Line < 1 || at.Line > lines+1 || at.Col < 1 {
				t.Fatalf("%v is outside the file of %d lines", err, lines)
			}
			return
		}
		if c.Version != Version || c.Sandbox.Memory < minMemory || c.Sandbox.Timeout <= 0 || c.Sandbox.CPUs <= 0 {
			t.Fatalf("a bad Config was accepted: %+v", c)
		}
		if c.Policy.Path != "" && !filepath.IsAbs(c.Policy.Path) || !filepath.IsAbs(c.Audit.Dir) {
			t.Fatalf("a relative path: %+v", c)
		}
		_ = fmt.Sprint(c.Merged())
	})
}
