package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// source is where manifests and blobs come from. Nothing that it returns is
// believed before its digest is checked.
type source interface {
	// top returns the document that the reference names.
	top(ctx context.Context) ([]byte, error)
	// pinned is the digest in the reference, if there is one.
	pinned() (v1.Hash, bool)
	// document returns a manifest or an index by digest.
	document(ctx context.Context, h v1.Hash) ([]byte, error)
	// blob returns a configuration or a layer as it is stored.
	blob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error)
}

// manifest is an image manifest or an index, of either of the two dialects.
type manifest struct {
	Config    *v1.Descriptor  `json:"config"`
	Layers    []v1.Descriptor `json:"layers"`
	Manifests []v1.Descriptor `json:"manifests"`
}

// maxNesting is how many indexes may stand above a manifest.
const maxNesting = 3

// chosen follows indexes down to the image manifest for this machine.
func (s *Store) chosen(ctx context.Context, src source) (manifest, v1.Hash, error) {
	raw, err := s.topDocument(ctx, src)
	if err != nil {
		return manifest{}, v1.Hash{}, err
	}
	for range maxNesting {
		digest, _, err := v1.SHA256(bytesReader(raw))
		if err != nil {
			return manifest{}, v1.Hash{}, err
		}
		var m manifest
		if err := json.Unmarshal(raw, &m); err != nil {
			return m, digest, fmt.Errorf("manifest %s: %w", digest, err)
		}
		switch {
		case m.Manifests != nil && (m.Config != nil || m.Layers != nil):
			return m, digest, fmt.Errorf("manifest %s: an index and an image at once", digest)
		case m.Config != nil:
			return m, digest, nil
		case len(m.Manifests) == 0:
			return m, digest, fmt.Errorf("manifest %s: neither an image nor an index; hint: images of schema 1 are not supported", digest)
		}
		d, err := forThisMachine(m.Manifests)
		if err != nil {
			return m, digest, err
		}
		if raw, err = s.documentByDigest(ctx, src, d.Digest); err != nil {
			return m, digest, err
		}
	}
	return manifest{}, v1.Hash{}, errors.New("indexes inside indexes inside indexes")
}

func forThisMachine(list []v1.Descriptor) (v1.Descriptor, error) {
	for _, d := range list {
		if d.Platform != nil && d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH {
			return d, nil
		}
	}
	if len(list) == 1 && list[0].Platform == nil {
		return list[0], nil
	}
	return v1.Descriptor{}, fmt.Errorf("no image for linux/%s in it", runtime.GOARCH)
}

// topDocument asks the source what the reference names, unless the reference
// names a digest that is in the cache.
func (s *Store) topDocument(ctx context.Context, src source) ([]byte, error) {
	h, pinned := src.pinned()
	if pinned {
		if b, err := s.cachedDocument(h); err == nil {
			return b, nil
		}
	}
	raw, err := src.top(ctx)
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > s.limits.Document {
		return nil, fmt.Errorf("manifest: larger than %d bytes", s.limits.Document)
	}
	if !pinned { // keep it for a reference by digest
		if h, _, err = v1.SHA256(bytesReader(raw)); err != nil {
			return nil, err
		}
	}
	if raw, err = checked(raw, h, "manifest"); err != nil {
		return nil, err
	}
	return raw, s.keepDocument(h, raw)
}

func (s *Store) documentByDigest(ctx context.Context, src source, h v1.Hash) ([]byte, error) {
	if b, err := s.cachedDocument(h); err == nil {
		return b, nil
	}
	raw, err := src.document(ctx, h)
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > s.limits.Document {
		return nil, fmt.Errorf("manifest: larger than %d bytes", s.limits.Document)
	}
	if raw, err = checked(raw, h, "manifest"); err != nil {
		return nil, err
	}
	return raw, s.keepDocument(h, raw)
}
