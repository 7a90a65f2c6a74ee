package policies

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// LoadRecorded loads a policy from its recorded text: a folder that holds each
// file of Engine.Sources at its Source.Path. digest is what it must have.
func LoadRecorded(dir, digest string) (*Engine, error) {
	o := Options{Dir: dir, recorded: true}
	for i := 1; ; i++ {
		root := filepath.Join(dir, fmt.Sprintf("root%d:", i))
		if _, err := os.Stat(root); err != nil {
			break
		}
		o.Roots = append(o.Roots, root)
	}
	floor := filepath.Join(dir, "floor:")
	if _, err := os.Stat(floor); err == nil {
		o.Floor = floor
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, loadFailure(dir, floor, "cannot read: %v", plain(err)).withCause(err)
	}
	e, err := Load(o)
	if err != nil {
		return nil, err
	}
	if e.Digest() != digest {
		return nil, loadFailure(dir, dir, "has digest %s, and not %s: its text was changed", e.Digest(), digest)
	}
	return e, nil
}

// recordedPart reports whether a folder at the top of a recorded text holds a
// part of its own.
func recordedPart(name string) bool {
	number, ok := strings.CutPrefix(strings.TrimSuffix(name, ":"), "root")
	return name == "floor:" || ok && strings.HasSuffix(name, ":") && number != "" && strings.Trim(number, "0123456789") == ""
}
