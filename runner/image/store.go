package image

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// Options make a Store.
type Options struct {
	Dir       string         // folder of the cache; it is made when it is first needed
	Roots     *x509.CertPool // authorities that registries are verified with
	Protected []string       // folders that no folder given as an image may hold
	Logins    string         // file with the caller's registry logins (see logins); "" for none
	Limits    Limits         // zero: DefaultLimits
}

// Store finds images and keeps them. It may be used by several goroutines and
// processes at once.
type Store struct {
	dir       string
	roots     *x509.CertPool
	protected []string
	logins    logins
	limits    Limits
	settle    time.Duration // see digestSettle
}

// NewStore returns a store; nothing is touched yet.
func NewStore(o Options) *Store {
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	return &Store{o.Dir, o.Roots, o.Protected, logins{o.Logins}, o.Limits, digestSettle}
}

// Image is a folder, or an EROFS image, that can be a root file system. Until Close its cache entry
// is locked against removal.
type Image struct {
	Ref    string // the reference in full; of what is used where it is with the path that links lead to
	Digest string // "sha256:…" of the manifest (docker-archive: of the configuration; erofs: of the file); "" of a folder
	Root   string // the folder, or the file
	Erofs  bool   // Root is a file with an EROFS file system
	Config Config
	lock   *os.File
	state  fileState // of an EROFS file when its digest was taken
}

// Close lets go of the cache entry.
func (i *Image) Close() error {
	if i == nil || i.lock == nil {
		return nil
	}
	return i.lock.Close()
}

// Get returns the image, from the cache where it can. A reference by digest that
// is in the cache needs no network; one by tag asks the registry what it is now.
func (s *Store) Get(ctx context.Context, reference string) (*Image, error) {
	ref, err := ParseReference(reference)
	if err != nil {
		return nil, err
	}
	img, err := s.get(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", ref, err)
	}
	if img.Ref == "" {
		img.Ref = ref.String()
	}
	return img, nil
}

func (s *Store) get(ctx context.Context, ref Reference) (*Image, error) {
	switch ref.kind {
	case kindFolder:
		return s.folder(ref.path)
	case kindErofs:
		return s.erofs(ctx, ref.path)
	}
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	lock, err := s.lockStore(ctx, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	switch ref.kind {
	case kindDockerArchive:
		return s.dockerArchive(ctx, ref)
	case kindLayoutArchive:
		tmp, err := os.MkdirTemp(s.dir, ".layout-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(tmp)
		if err := s.extractLayout(ctx, ref.path, tmp); err != nil {
			return nil, err
		}
		ref.path = tmp
		fallthrough
	case kindLayout:
		src, err := openLayout(ref.path, ref.tag)
		if err != nil {
			return nil, err
		}
		return s.fromSource(ctx, src)
	}
	return s.fromRegistry(ctx, ref.repo)
}

func (s *Store) fromRegistry(ctx context.Context, ref name.Reference) (*Image, error) {
	reg := ref.Context().Registry
	auth, helper, err := s.logins.of(reg)
	if err != nil {
		return nil, err
	}
	t := newTransport(s.roots)
	if c, ok := t.(interface{ CloseIdleConnections() }); ok {
		defer c.CloseIdleConnections()
	}
	img, err := s.fromSource(ctx, registry{ref, t, auth})
	if err != nil {
		return nil, explainDenial(err, reg, helper)
	}
	return img, nil
}

func (s *Store) fromSource(ctx context.Context, src source) (*Image, error) {
	m, digest, err := s.chosen(ctx, src)
	if err != nil {
		return nil, err
	}
	if len(m.Layers) > s.limits.Layers {
		return nil, fmt.Errorf("%d layers; at most %d are allowed", len(m.Layers), s.limits.Layers)
	}
	raw, err := s.config(ctx, src, *m.Config)
	if err != nil {
		return nil, err
	}
	img, err := s.tree(ctx, m.Config.Digest, raw, len(m.Layers), func(i int) (io.ReadCloser, error) {
		return s.layerBlob(ctx, src, m.Layers[i])
	})
	if err != nil {
		return nil, err
	}
	img.Digest = digest.String()
	return img, nil
}

// dockerArchive reads what docker save writes. Its manifest has no digest: the
// image is known by that of its configuration, as in Docker.
func (s *Store) dockerArchive(ctx context.Context, ref Reference) (*Image, error) {
	var tag *name.Tag
	if ref.tag != "" {
		t, err := name.NewTag(ref.tag)
		if err != nil {
			return nil, err
		}
		tag = &t
	}
	arch, err := tarball.ImageFromPath(ref.path, tag)
	if err != nil {
		return nil, err
	}
	raw, err := arch.RawConfigFile()
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > s.limits.Document {
		return nil, fmt.Errorf("configuration: larger than %d bytes", s.limits.Document)
	}
	id, _, err := v1.SHA256(bytesReader(raw))
	if err != nil {
		return nil, err
	}
	_, diffs, err := readConfig(raw)
	if err != nil {
		return nil, err
	}
	if len(diffs) > s.limits.Layers {
		return nil, fmt.Errorf("%d layers; at most %d are allowed", len(diffs), s.limits.Layers)
	}
	img, err := s.tree(ctx, id, raw, len(diffs), func(i int) (io.ReadCloser, error) {
		l, err := arch.LayerByDiffID(diffs[i])
		if err != nil {
			return nil, err
		}
		return l.Uncompressed()
	})
	if err != nil {
		return nil, err
	}
	img.Digest = id.String()
	return img, nil
}

// folder uses a folder of the host where it is. It is refused when it would show
// the host, or what is ours.
func (s *Store) folder(dir string) (*Image, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return nil, plain(err)
	}
	fi, err := os.Stat(abs)
	if err != nil {
		return nil, plain(err)
	}
	if !fi.IsDir() {
		return nil, errors.New("not a folder; hint: oci-archive: or docker-archive: for a file")
	}
	if what := s.exposes(abs, fi); what != "" {
		return nil, fmt.Errorf("it would show %s to the task; hint: name a folder that holds a root file system and nothing else", what)
	}
	return &Image{Ref: kindFolder + ":" + abs, Root: abs}, nil
}
