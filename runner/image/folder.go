package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// hostFolders are never an image, whatever is in them.
var hostFolders = []string{
	"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
	"/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/local", "/usr/share", "/var", "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/tmp",
}

// kernelFolders are never an image, nor is anything below them.
var kernelFolders = []string{"/dev", "/proc", "/sys"}

// exposes says what of the host the folder is or holds, or "". dir is canonical.
func (s *Store) exposes(dir string, fi os.FileInfo) string {
	for _, h := range hostFolders {
		if real, err := filepath.EvalSymlinks(h); h == dir || err == nil && real == dir {
			return h
		}
		if other, err := os.Stat(h); err == nil && os.SameFile(other, fi) { // by another mount
			return h
		}
	}
	if i := slices.IndexFunc(kernelFolders, func(k string) bool { return within(dir, k) }); i >= 0 {
		return kernelFolders[i]
	}
	for _, p := range s.protected {
		if real, err := filepath.EvalSymlinks(p); err == nil && within(real, dir) {
			return p
		}
	}
	return ""
}

func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
