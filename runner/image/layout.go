package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// refName is the annotation that names an image of a layout (OCI image
// specification, "Pre-Defined Annotation Keys").
const refName = "org.opencontainers.image.ref.name"

// layoutSource reads an OCI image layout.
type layoutSource struct {
	path layout.Path
	tag  string
}

func openLayout(dir, tag string) (layoutSource, error) {
	p, err := layout.FromPath(dir)
	if err != nil {
		return layoutSource{}, err
	}
	return layoutSource{p, tag}, nil
}

func (l layoutSource) pinned() (v1.Hash, bool) { return v1.Hash{}, false }

// top is the document of the named image; without a name, of the only one.
func (l layoutSource) top(ctx context.Context) ([]byte, error) {
	idx, err := l.path.ImageIndex()
	if err != nil {
		return nil, err
	}
	m, err := idx.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []v1.Descriptor
	for _, d := range m.Manifests {
		if l.tag == "" || d.Annotations[refName] == l.tag {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 1:
		b, err := l.document(ctx, found[0].Digest)
		if err != nil {
			return nil, err
		}
		return checked(b, found[0].Digest, "manifest")
	case len(found) == 0:
		return nil, fmt.Errorf("no image %q in the layout", l.tag)
	case l.tag == "" && platforms(found):
		return idx.RawManifest() // one image for several machines
	}
	return nil, errors.New("more than one image in the layout; hint: add its name, oci:FOLDER:NAME")
}

func platforms(list []v1.Descriptor) bool {
	seen := map[string]bool{}
	for _, d := range list {
		if d.Platform == nil || seen[d.Platform.String()] || d.MediaType == types.OCIImageIndex {
			return false
		}
		seen[d.Platform.String()] = true
	}
	return true
}

func (l layoutSource) document(_ context.Context, h v1.Hash) ([]byte, error) {
	rc, err := l.path.Blob(h)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	return io.ReadAll(io.LimitReader(rc, DefaultLimits().Document+1))
}

func (l layoutSource) blob(_ context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	return l.path.Blob(d.Digest)
}

// extractLayout unpacks the regular files of a layout's tar archive below dir.
func (s *Store) extractLayout(ctx context.Context, archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := decompress(f)
	if err != nil {
		return err
	}
	defer r.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root, limits: s.limits, written: map[string]bool{}, holds: map[string]bool{}}
	tr := tar.NewReader(r)
	for u.entries = 1; u.entries <= s.limits.Entries; u.entries++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		name, err := u.clean(h.Name)
		if err == nil && h.Typeflag == tar.TypeReg {
			if _, err = u.parent(path.Dir(name)); err == nil {
				err = u.put(tr, h, name)
			}
		}
		if err != nil {
			return fmt.Errorf("entry %q: %w", cut(h.Name), err)
		}
	}
	return fmt.Errorf("more than %d entries", s.limits.Entries)
}
