package image

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Of an EROFS superblock (linux/fs/erofs/erofs_fs.h): where it is in the file, in
// bytes, and its first four bytes, little-endian.
const (
	erofsOffset = 1024
	erofsMagic  = 0xe0f5e1e2
)

// erofs uses an EROFS image where it is. Nothing but its magic number is looked at
// here, and the digest of its bytes taken: gVisor reads the rest, inside.
func (s *Store) erofs(ctx context.Context, name string) (*Image, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return nil, plain(err)
	}
	f, err := os.OpenFile(abs, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hold us
	if err != nil {
		return nil, plain(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, plain(err)
	}
	var magic [4]byte
	if !fi.Mode().IsRegular() {
		return nil, errors.New("not a file")
	}
	if _, err := f.ReadAt(magic[:], erofsOffset); err != nil && !errors.Is(err, io.EOF) {
		return nil, plain(err)
	}
	if binary.LittleEndian.Uint32(magic[:]) != erofsMagic {
		return nil, errors.New("not an EROFS file system; hint: mkfs.erofs -E noinline_data FILE FOLDER")
	}
	digest, state, err := s.digestOf(ctx, f)
	if err != nil {
		return nil, err
	}
	return &Image{Ref: kindErofs + ":" + abs, Digest: digest, Root: abs, Erofs: true, state: state}, nil
}
