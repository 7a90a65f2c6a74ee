package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A file that is used where it is has the SHA-256 of all of it as its digest. That is
// read once, and kept beside what the file was then; a file that was changed has
// another ctime (inode(7)).
const (
	digestsDir = "digests" // DEV-INO: state and digest, on one line
	// A change within a tick of the clock leaves the ctime as it is: what is younger is not kept.
	digestSettle = 2 * time.Second
	digestBlock  = 1 << 20 // bytes read at a time
)

var errChanged = errors.New("it was changed while the run began; hint: leave an image alone while it is used")

// fileState tells a file that was changed, or is another, from what it was.
type fileState struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64 // ns
}

func stateOf(st *unix.Stat_t) fileState {
	return fileState{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()} //nolint:unconvert // its size differs between systems
}

func stateOfFile(f *os.File) (fileState, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	return stateOf(&st), err
}

// name is that of its entry: a file that is written anew in place takes no more room.
func (s fileState) name() string { return fmt.Sprintf("%x-%x", s.dev, s.ino) }

func (s fileState) line() string { return fmt.Sprintf("%d %d %d ", s.size, s.mtime, s.ctime) }

// digestOf returns the digest of a file, and what the file was when it was read.
func (s *Store) digestOf(ctx context.Context, f *os.File) (string, fileState, error) {
	was, err := stateOfFile(f)
	if err != nil {
		return "", was, err
	}
	if d := s.keptDigest(was); d != "" {
		return d, was, nil
	}
	h, b := sha256.New(), make([]byte, digestBlock)
	for err = nil; err == nil; {
		if err = ctx.Err(); err != nil {
			return "", was, err
		}
		var n int
		n, err = f.Read(b)
		h.Write(b[:n])
	}
	if !errors.Is(err, io.EOF) {
		return "", was, plain(err)
	}
	if now, err := stateOfFile(f); err != nil || now != was {
		return "", was, errors.Join(errChanged, err)
	}
	d := "sha256:" + hex.EncodeToString(h.Sum(nil))
	s.keepDigest(was, d)
	return d, was, nil
}

// keptDigest is "" when the file was not read as it is now.
func (s *Store) keptDigest(is fileState) string {
	b, err := os.ReadFile(filepath.Join(s.dir, digestsDir, is.name()))
	if s.dir == "" || err != nil {
		return ""
	}
	digest, found := strings.CutPrefix(string(b), is.line())
	if hexed, ok := strings.CutPrefix(digest, "sha256:"); !found || !ok || len(hexed) != 2*sha256.Size {
		return ""
	}
	return digest
}

// keepDigest spares the next run the reading; without it the run is as good.
func (s *Store) keepDigest(is fileState, digest string) {
	if s.dir == "" || time.Since(time.Unix(0, is.ctime)) < s.settle {
		return
	}
	dir := filepath.Join(s.dir, digestsDir)
	if os.MkdirAll(dir, 0o700) != nil {
		return
	}
	f, err := os.CreateTemp(dir, ".part-")
	if err != nil {
		return
	}
	_, err = f.WriteString(is.line() + digest)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, is.name()))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
}

// Unchanged is an error when the file whose digest this is has been changed since, or
// another is in its place. Of what has no digest nothing is known.
func (i *Image) Unchanged() error {
	if i == nil || i.state == (fileState{}) {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(i.Root, &st); err != nil || stateOf(&st) != i.state {
		return fmt.Errorf("image %s: %w", i.Ref, errors.Join(errChanged, err))
	}
	return nil
}
