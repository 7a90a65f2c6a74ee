package policies

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
)

// BuildBundle makes a signed OPA bundle of a policy folder, without its tests.
// The folder must load. key is a private key in PEM, algorithm one of RFC 7518
// that has a public key (RS256 when empty).
func BuildBundle(dir string, key []byte, algorithm string) ([]byte, error) {
	if _, err := Load(Options{Dir: dir}); err != nil {
		return nil, err
	}
	f, err := readFolder(dir)
	if err != nil {
		return nil, err
	}
	if algorithm == "" {
		algorithm = "RS256"
	}
	if !slices.Contains(bundleAlgorithms, algorithm) {
		return nil, fmt.Errorf("policies: bundle: algorithm %q is not one of %s", algorithm, strings.Join(bundleAlgorithms, ", "))
	}
	b := bundle.Bundle{Data: f.data}
	b.Manifest.Init()
	b.Manifest.Revision = digestOf(f.sources)
	for _, s := range f.sources {
		if kindOf(s.Path) == "rego" {
			module, problems := parseModule(s.Path, s.Content)
			if len(problems) > 0 {
				return nil, (&LoadError{Dir: dir, Problems: problems}).orNil()
			}
			b.Modules = append(b.Modules, bundle.ModuleFile{URL: "/" + s.Path, Path: "/" + s.Path, Raw: s.Content, Parsed: module})
		}
	}
	if err := b.GenerateSignature(bundle.NewSigningConfig(string(key), algorithm, ""), bundleKeyID, false); err != nil {
		return nil, fmt.Errorf("policies: bundle: sign: %w", err)
	}
	var out bytes.Buffer
	if err := bundle.NewWriter(&out).DisableFormat(true).Write(b); err != nil {
		return nil, fmt.Errorf("policies: bundle: %w", err)
	}
	if out.Len() > MaxBundleBytes {
		return nil, fmt.Errorf("policies: bundle: larger than %d MiB", MaxBundleBytes>>20)
	}
	return out.Bytes(), nil
}
