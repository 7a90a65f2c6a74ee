package audit

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const noFollow = syscall.O_NOFOLLOW

// canWrite says whether streams can be written on this system.
const canWrite = true

// allocate is fallocate(2) mode 0; where the file system cannot, it only sets the size.
func allocate(f *os.File, size int64) error {
	err := retry(func() error { return syscall.Fallocate(int(f.Fd()), 0, 0, size) })
	if !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.ENOSYS) {
		return wrap("fallocate", f, err)
	}
	st, err := f.Stat()
	if err != nil || st.Size() >= size {
		return err
	}
	return f.Truncate(size)
}

// datasync is fdatasync(2); a directory has only its entries to sync.
func datasync(f *os.File) error {
	return wrap("fdatasync", f, retry(func() error { return syscall.Fdatasync(int(f.Fd())) }))
}

// writeDirect writes whole blocks with O_DIRECT (open(2)) as far as the file system lets
// it: fewer bytes without an error mean that the page cache has to take the others.
func writeDirect(f *os.File, b []byte, off int64) (int, error) {
	flags, err := fileFlags(f, syscall.F_GETFL, 0)
	if err != nil {
		return 0, err
	}
	if _, err = fileFlags(f, syscall.F_SETFL, flags|syscall.O_DIRECT); err != nil {
		return 0, nil // the file system has no such writes
	}
	n, err := f.WriteAt(b, off)
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) {
		err = nil
	}
	_, restored := fileFlags(f, syscall.F_SETFL, flags)
	return n, errors.Join(err, restored)
}

// fileFlags is fcntl(2) with F_GETFL or F_SETFL.
func fileFlags(f *os.File, command, flags int) (int, error) {
	got, _, errno := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), uintptr(command), uintptr(flags))
	if errno != 0 {
		return 0, wrap("fcntl", f, errno)
	}
	return int(got), nil
}

// identify is statx(2) with nothing asked for but the inode's number.
func identify(name string) (FileID, error) {
	var st unix.Statx_t
	err := retry(func() error {
		return unix.Statx(unix.AT_FDCWD, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO, &st)
	})
	if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EPERM) { // a filter that is older than the call
		st, err := os.Lstat(name)
		if err != nil {
			return FileID{}, err
		}
		return inode(st)
	}
	if err != nil {
		return FileID{}, &os.PathError{Op: "statx", Path: name, Err: err}
	}
	return FileID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino}, nil
}

// idOf is identify of an open file.
func idOf(f Handle) (FileID, error) {
	st, err := f.Stat()
	if err != nil {
		return FileID{}, err
	}
	return inode(st)
}

func inode(st os.FileInfo) (FileID, error) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return FileID{}, errors.New("a file that has no inode")
	}
	return FileID{sys.Dev, sys.Ino}, nil
}

// lock is flock(2), exclusive, without waiting.
func lock(f *os.File) error {
	err := retry(func() error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errLocked
	}
	return wrap("flock", f, err)
}

func freeBytes(name string) (uint64, error) {
	var st syscall.Statfs_t
	if err := retry(func() error { return syscall.Statfs(name, &st) }); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: name, Err: err}
	}
	return st.Bavail * uint64(st.Bsize), nil
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func wrap(op string, f *os.File, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: f.Name(), Err: err}
}
