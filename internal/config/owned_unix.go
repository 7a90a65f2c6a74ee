//go:build unix

package config

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// CheckOwned judges whether a file may hold a secret, or name a program that
// yields one: it is a regular file, it and its folder belong to the caller, and
// neither is writable by group or others. Symbolic links are followed, and the
// folder of the link is judged too; it may be one that many write to when it is
// sticky and the link is the caller's, as where Kubernetes mounts tokens. Folders
// further up are not judged.
func CheckOwned(path string) error {
	_, err := checkOwned(path, os.Geteuid())
	return err
}

// ReadOwned reads at most limit bytes of a file that CheckOwned accepts. The
// open file is judged again, so what was checked is what is read.
func ReadOwned(path string, limit int64) ([]byte, error) {
	uid := os.Geteuid()
	real, err := checkOwned(path, uid)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := judge(real, info, uid); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("config: %w", err)
	case int64(len(data)) > limit:
		return nil, fmt.Errorf("config: %s: larger than %d bytes", path, limit)
	}
	return data, nil
}

func checkOwned(path string, uid int) (real string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	if real, err = filepath.EvalSymlinks(abs); err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	if dir := filepath.Dir(abs); dir != filepath.Dir(real) {
		if err := judgeLinkDir(abs, dir, uid); err != nil {
			return "", err
		}
	}
	for i, p := range []string{real, filepath.Dir(real)} {
		info, err := os.Stat(p)
		if err != nil {
			return "", fmt.Errorf("config: %w", err)
		}
		if i == 0 && !info.Mode().IsRegular() {
			return "", fmt.Errorf("config: %s: not a regular file", p)
		}
		if err := judge(p, info, uid); err != nil {
			return "", err
		}
	}
	return real, nil
}

func judge(path string, info fs.FileInfo, uid int) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("config: %s: its owner cannot be told", path)
	}
	if int(st.Uid) != uid {
		return fmt.Errorf("config: %s: belongs to uid %d, not to you (uid %d); hint: chown it, or keep it in a folder of your own", path, st.Uid, uid)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("config: %s: writable by others (mode %04o); hint: chmod go-w %s", path, info.Mode().Perm(), path)
	}
	return nil
}

// judgeLinkDir judges the folder of a link. In a sticky one of root's only the
// owner of the link can replace it.
func judgeLinkDir(link, dir string, uid int) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	bad := judge(dir, info, uid)
	if bad == nil || info.Mode()&os.ModeSticky == 0 || !ownedBy(info, 0) && !ownedBy(info, uid) {
		return bad
	}
	if own, err := os.Lstat(link); err != nil || !ownedBy(own, uid) {
		return bad
	}
	return nil
}

func ownedBy(info fs.FileInfo, uid int) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == uid
}
