package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// Fingerprint is a short text that differs when a file of one of the policy
// folders (or one of the files) was changed, added or removed, going by its
// name, size and times. What cannot be read has a fingerprint too.
func Fingerprint(paths ...string) string {
	h := sha256.New()
	for _, dir := range paths {
		if dir == "" {
			continue
		}
		rels := []string{"."}
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			f, err := openFolder(dir)
			if err == nil {
				rels, err = f.list()
			}
			if err != nil {
				fmt.Fprintf(h, "%q\n", err)
			}
		}
		for _, rel := range rels {
			info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(rel)))
			if err != nil {
				fmt.Fprintf(h, "%q %q\n", rel, err)
				continue
			}
			fmt.Fprintf(h, "%q %q %d %d\n", dir, rel, info.Size(), info.ModTime().UnixNano())
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
