package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// storeLock is held shared while an image is fetched, alone while images are removed.
const storeLock = ".store"

func (s *Store) lockStore(ctx context.Context, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(s.dir, locksDir, storeLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if err := flock(ctx, f, how); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Prune removes every image that no run uses, and returns how many there were.
// It waits for fetches under way, until the end of ctx.
func (s *Store) Prune(ctx context.Context) (int, error) {
	if s.dir != "" {
		if err := os.RemoveAll(filepath.Join(s.dir, digestsDir)); err != nil {
			return 0, fmt.Errorf("cache: %w", err)
		}
	}
	trees, err := os.ReadDir(filepath.Join(s.dir, treesDir))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cache: %w", err)
	}
	lock, err := s.lockStore(ctx, unix.LOCK_EX)
	if err != nil {
		return 0, err
	}
	defer lock.Close()
	removed := 0
	for _, t := range trees {
		gone, err := s.removeTree(t.Name())
		if err != nil {
			return removed, fmt.Errorf("cache: %w", err)
		}
		if gone {
			removed++
		}
	}
	blobs := filepath.Join(s.dir, blobsDir)
	return removed, errors.Join(os.RemoveAll(blobs), os.MkdirAll(blobs, 0o700))
}

// removeTree renames first: half a tree must never stand under its final name.
func (s *Store) removeTree(name string) (bool, error) {
	id, half := strings.CutSuffix(name, partSuffix)
	lock, err := os.OpenFile(filepath.Join(s.dir, locksDir, id), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil // in use
		}
		return false, err
	}
	part := filepath.Join(s.dir, treesDir, id+partSuffix)
	if !half {
		if err := os.RemoveAll(part); err != nil {
			return false, err
		}
		if err := os.Rename(filepath.Join(s.dir, treesDir, id), part); err != nil {
			return false, err
		}
	}
	return !half, os.RemoveAll(part)
}
