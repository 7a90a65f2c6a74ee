package image

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// The cache is a folder of the caller's alone:
//
//	blobs/sha256/HEX   manifests, configurations and layers as they are stored
//	trees/HEX          the tree of the configuration with this digest, complete
//	locks/HEX          held shared by users of the tree, alone by whoever makes
//	                   or removes it
//	digests/DEV-INO    the digest of a file that is used where it is
const (
	blobsDir = "blobs/sha256"
	treesDir = "trees"
	locksDir = "locks"

	partSuffix = ".part" // of a tree that is being made or removed
)

func (s *Store) makeDirs() error {
	if s.dir == "" {
		return errors.New("no folder for the cache")
	}
	for _, d := range []string{"", blobsDir, treesDir, locksDir} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), 0o700); err != nil {
			return fmt.Errorf("cache: %w", err)
		}
	}
	return nil
}

func (s *Store) blobPath(h v1.Hash) string { return filepath.Join(s.dir, blobsDir, h.Hex) }

// valid refuses a digest that is not a file name.
func valid(h v1.Hash) error {
	if b, err := hex.DecodeString(h.Hex); h.Algorithm != "sha256" || err != nil || len(b) != 32 {
		return fmt.Errorf("digest %q is not a SHA-256", cut(h.String()))
	}
	return nil
}

func (s *Store) cachedDocument(h v1.Hash) ([]byte, error) {
	if err := valid(h); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(s.blobPath(h))
	if err != nil {
		return nil, err
	}
	return checked(b, h, "cached document")
}

func (s *Store) keepDocument(h v1.Hash, b []byte) error {
	return s.keep(h, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// keep writes a blob under a name of its own and renames it.
func (s *Store) keep(h v1.Hash, write func(io.Writer) error) error {
	if err := valid(h); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Join(s.dir, blobsDir), ".part-")
	if err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	err = write(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), s.blobPath(h))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// config returns the configuration that a manifest names.
func (s *Store) config(ctx context.Context, src source, d v1.Descriptor) ([]byte, error) {
	if d.Size > s.limits.Document {
		return nil, fmt.Errorf("configuration: larger than %d bytes", s.limits.Document)
	}
	if err := s.fetch(ctx, src, d, "configuration"); err != nil {
		return nil, err
	}
	return s.cachedDocument(d.Digest)
}

// fetch makes sure that a blob is in the cache.
func (s *Store) fetch(ctx context.Context, src source, d v1.Descriptor, what string) error {
	if err := valid(d.Digest); err != nil {
		return err
	}
	if _, err := os.Stat(s.blobPath(d.Digest)); err == nil {
		return nil
	}
	if d.Size < 0 || d.Size > s.limits.Blob {
		return fmt.Errorf("%s %s: %d bytes; at most %d are allowed", what, d.Digest, d.Size, s.limits.Blob)
	}
	rc, err := src.blob(ctx, d)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, d.Digest, err)
	}
	defer rc.Close()
	v, err := verified(rc, d.Digest, d.Size, what)
	if err != nil {
		return err
	}
	return s.keep(d.Digest, func(w io.Writer) error {
		_, err := io.Copy(w, v)
		return err
	})
}

// layerBlob returns a layer, unpacked, out of the cache.
func (s *Store) layerBlob(ctx context.Context, src source, d v1.Descriptor) (io.ReadCloser, error) {
	if err := s.fetch(ctx, src, d, "layer"); err != nil {
		return nil, err
	}
	f, err := os.Open(s.blobPath(d.Digest))
	if err != nil {
		return nil, err
	}
	v, err := verified(f, d.Digest, d.Size, "cached layer")
	if err != nil {
		f.Close()
		return nil, err
	}
	r, err := decompress(v)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &layerReader{r, f}, nil
}

type layerReader struct {
	io.ReadCloser
	file *os.File
}

func (l *layerReader) Close() error { return errors.Join(l.ReadCloser.Close(), l.file.Close()) }

// tree returns the unpacked image, made now when the cache does not have it.
func (s *Store) tree(ctx context.Context, id v1.Hash, rawConfig []byte, layers int, open func(int) (io.ReadCloser, error)) (*Image, error) {
	if err := valid(id); err != nil {
		return nil, err
	}
	cfg, diffs, err := readConfig(rawConfig)
	if err != nil {
		return nil, err
	}
	if len(diffs) != layers {
		return nil, fmt.Errorf("configuration has %d layers, manifest %d", len(diffs), layers)
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, locksDir, id.Hex), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	img := &Image{Root: filepath.Join(s.dir, treesDir, id.Hex), Config: cfg, lock: lock}
	for {
		if err = flock(ctx, lock, unix.LOCK_SH); err != nil {
			break
		}
		if _, err = os.Stat(img.Root); err == nil {
			return img, nil
		}
		if err = flock(ctx, lock, unix.LOCK_EX); err != nil {
			break
		}
		if _, err = os.Stat(img.Root); err == nil {
			continue // somebody else was faster
		}
		if err = s.build(ctx, img.Root, diffs, open); err != nil {
			break
		}
	}
	lock.Close()
	return nil, err
}

// build unpacks the layers beside the final place and renames the whole.
func (s *Store) build(ctx context.Context, dst string, diffs []v1.Hash, open func(int) (io.ReadCloser, error)) error {
	part := dst + partSuffix
	if err := os.RemoveAll(part); err != nil { // of a process that was killed
		return err
	}
	if err := os.Mkdir(part, 0o755); err != nil {
		return err
	}
	err := s.unpackAll(ctx, part, diffs, open)
	if err == nil {
		err = os.Rename(part, dst)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(part))
	}
	return nil
}

func (s *Store) unpackAll(ctx context.Context, dir string, diffs []v1.Hash, open func(int) (io.ReadCloser, error)) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{root: root, limits: s.limits}
	for i, want := range diffs {
		if err := s.unpackLayer(ctx, u, want, i, open); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
	}
	return root.Chmod(".", 0o755)
}

func (s *Store) unpackLayer(ctx context.Context, u *unpacker, want v1.Hash, i int, open func(int) (io.ReadCloser, error)) error {
	rc, err := open(i)
	if err != nil {
		return err
	}
	defer rc.Close()
	v, err := verified(rc, want, 2*s.limits.Bytes, "content")
	if err != nil {
		return err
	}
	if err := u.layer(ctx, v); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, v) // padding; the digest is checked at the end
	return err
}

// flock waits for the lock, or for the end of ctx.
func flock(ctx context.Context, f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for another process that unpacks it: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
