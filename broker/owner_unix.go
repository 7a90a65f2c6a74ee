//go:build unix

package broker

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkOwned wants the caller as the only one who can change what fi describes.
func checkOwned(fi fs.FileInfo, path string) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: its owner is not known", path)
	}
	if uid := os.Geteuid(); st.Uid != uint32(uid) {
		return fmt.Errorf("%s: belongs to uid %d and not to the caller, uid %d", path, st.Uid, uid)
	}
	if perm := fi.Mode().Perm(); perm&0o022 != 0 {
		return fmt.Errorf("%s: others may write to it (mode %04o); hint: chmod go-w %s", path, perm, path)
	}
	return nil
}

// openNoBlock opens without waiting for the other end of a FIFO.
func openNoBlock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
}
