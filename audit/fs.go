package audit

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"reflect"
)

// FS is the file system as the writer uses it. Names are absolute or relative paths
// of the host. Errors are those of package os.
type FS interface {
	// MkdirAll is os.MkdirAll.
	MkdirAll(name string, perm fs.FileMode) error
	// OpenFile is os.OpenFile; it must not follow a symbolic link at the last element.
	OpenFile(name string, flag int, perm fs.FileMode) (Handle, error)
	// OpenDir opens a directory, to be locked or synced.
	OpenDir(name string) (Handle, error)
	// Rename is os.Rename.
	Rename(from, to string) error
	// Remove is os.Remove.
	Remove(name string) error
	// Lstat is os.Lstat.
	Lstat(name string) (fs.FileInfo, error)
	// Identify tells which file name leads to, itself if it is a link, and nothing else
	// of it. Whoever asks for a file's times has the kernel count them finely (multigrain
	// timestamps), and each fdatasync after a write may then write the inode as well.
	Identify(name string) (FileID, error)
	// Free is the number of bytes an ordinary user may still write below name.
	Free(name string) (uint64, error)
}

// Handle is one open file or directory.
type Handle interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Stat describes the open file, wherever its name points now.
	Stat() (fs.FileInfo, error)
	// Truncate sets the size in bytes.
	Truncate(size int64) error
	// Allocate makes [0, size) writable without further need of space, and sets the
	// size to at least size; new bytes are NUL.
	Allocate(size int64) error
	// Blank writes NUL to n bytes that hold nothing else, at off.
	Blank(off, n int64) error
	// Datasync returns once the content, and the size, are on the disk.
	Datasync() error
	// Lock takes the exclusive whole-file lock for as long as the file is open, or
	// returns errLocked when another open file holds it.
	Lock() error
}

// FileID is the same for one file alone, for as long as somebody has it open.
type FileID struct{ Dev, Ino uint64 }

var errLocked = errors.New("locked by another writer")

// HostFS is the operating system's file system, which a nil Options.FS stands for: what
// an FS that adds something of its own can be built around.
var HostFS FS = osFS{}

type osFS struct{}

func (osFS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (osFS) Rename(from, to string) error                 { return os.Rename(from, to) }
func (osFS) Remove(name string) error                     { return os.Remove(name) }
func (osFS) Lstat(name string) (fs.FileInfo, error)       { return os.Lstat(name) }
func (osFS) Identify(name string) (FileID, error)         { return identify(name) }
func (osFS) Free(name string) (uint64, error)             { return freeBytes(name) }

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (Handle, error) {
	f, err := os.OpenFile(name, flag|noFollow, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) OpenDir(name string) (Handle, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|noFollow, 0)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

type osFile struct{ *os.File }

// nuls is what Blank writes at once.
var nuls [leastAhead]byte

// Blank implements Handle.
func (f osFile) Blank(off, n int64) error {
	for end := off + n; off < end; off += int64(len(nuls)) {
		if _, err := f.File.WriteAt(nuls[:min(end-off, int64(len(nuls)))], off); err != nil {
			return err
		}
	}
	return nil
}

// blockSize divides the unit of every disk that takes writes past the page cache, in bytes.
const blockSize = 4096

// directLeast is the least that is worth a write past the page cache, in bytes.
const directLeast = 64 << 10

// WriteAt is os.File's, past the page cache for the whole blocks of a long b whose place
// in memory allows it: a record costs less of the processor without the copy.
func (f osFile) WriteAt(b []byte, off int64) (int, error) {
	if len(b) < directLeast || blockOffset(b) != off%blockSize {
		return f.File.WriteAt(b, off)
	}
	head := int((blockSize - off%blockSize) % blockSize)
	whole := (len(b) - head) / blockSize * blockSize
	n, err := f.File.WriteAt(b[:head], off)
	if err != nil {
		return n, err
	}
	direct, err := writeDirect(f.File, b[head:head+whole], off+int64(head))
	n += direct
	if err != nil {
		return n, err
	}
	rest, err := f.File.WriteAt(b[n:], off+int64(n))
	return n + rest, err
}

// blockOffset is where b starts in a block of memory.
func blockOffset(b []byte) int64 {
	return int64(reflect.ValueOf(b).Pointer() % blockSize)
}

func (f osFile) Allocate(size int64) error { return allocate(f.File, size) }
func (f osFile) Datasync() error           { return datasync(f.File) }
func (f osFile) Lock() error               { return lock(f.File) }
