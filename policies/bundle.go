package policies

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
)

// MaxBundleBytes bounds a bundle as it is stored or sent.
const MaxBundleBytes = 64 << 20

// bundleAlgorithms are the signatures of RFC 7518 that have a public key.
var bundleAlgorithms = []string{"ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"}

// BundleKey is what a bundle must be signed with.
type BundleKey struct {
	PEM       []byte // a public key or a certificate
	Algorithm string // RS256 when empty
	Scope     string // what the signature must say of its scope; "" for nothing
}

// bundleKeyID is the name of the one key, whatever a bundle calls it.
const bundleKeyID = "warder"

func (k *BundleKey) verification() (*bundle.VerificationConfig, error) {
	if k == nil || len(bytes.TrimSpace(k.PEM)) == 0 {
		return nil, errors.New("a bundle needs a key that it is signed with")
	}
	if bytes.Contains(k.PEM, []byte("PRIVATE KEY")) {
		return nil, errors.New("the key is a private one\nhint: verifying takes the public key")
	}
	algorithm := k.Algorithm
	if algorithm == "" {
		algorithm = "RS256"
	}
	if !slices.Contains(bundleAlgorithms, algorithm) {
		return nil, fmt.Errorf("algorithm %q is not one of %s", algorithm, strings.Join(bundleAlgorithms, ", "))
	}
	keys := map[string]*bundle.KeyConfig{bundleKeyID: {Key: string(k.PEM), Algorithm: algorithm}}
	return bundle.NewVerificationConfig(keys, bundleKeyID, k.Scope, nil), nil
}

// readBundle verifies a bundle (a gzipped tar, as `opa build` makes it) and
// reads its files as those of a folder. name is for messages.
func readBundle(name string, b []byte, key *BundleKey) (*folder, error) {
	verification, err := key.verification()
	if err != nil {
		return nil, loadFailure(name, name, "%v", err)
	}
	if err := checkBundleSize(b); err != nil {
		return nil, loadFailure(name, name, "is not a bundle: %v", err)
	}
	read, err := bundle.NewReader(bytes.NewReader(b)).
		WithBundleVerificationConfig(verification).
		WithSizeLimitBytes(maxFileBytes).
		WithRegoVersion(ast.RegoV1).
		WithLazyLoadingMode(true). // the files are parsed here, strictly
		Read()
	if err != nil {
		return nil, loadFailure(name, name, "%v", err)
	}
	if read.Type() != bundle.SnapshotBundleType || len(read.WasmModules)+len(read.PlanModules) > 0 {
		return nil, loadFailure(name, name, "is a delta bundle, or holds compiled modules\nhint: build it with `opa build -b DIR`")
	}
	f := &folder{dir: name, modules: map[string]*ast.Module{}, tests: map[string]*ast.Module{}, data: map[string]any{}}
	files := map[string][]byte{}
	for _, raw := range read.Raw {
		rel := strings.TrimPrefix(raw.Path, "/")
		if _, twice := files[rel]; twice || kindOf(rel) == "" {
			return nil, loadFailure(name, rel, "is in the bundle twice, or no file of a policy")
		}
		files[rel] = raw.Value
	}
	return f, f.parse(sortedKeys(files), func(rel string) ([]byte, error) { return files[rel], nil })
}

// checkBundleSize reads through the compressed bytes before anything is kept
// of them.
func checkBundleSize(b []byte) error {
	if len(b) > MaxBundleBytes {
		return fmt.Errorf("larger than %d MiB", MaxBundleBytes>>20)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, io.LimitReader(z, maxTotalBytes+1))
	if err == nil && n > maxTotalBytes {
		err = fmt.Errorf("more than %d MiB when unpacked", maxTotalBytes>>20)
	}
	return err
}
