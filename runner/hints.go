package runner

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// hinted adds what to do, where the error does not say it itself. A full or
// read-only disk has its own (the caller knows where what is kept).
func hinted(err error, hint string) error {
	if strings.Contains(err.Error(), "hint:") || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS) {
		return err
	}
	return fmt.Errorf("%w; hint: %s", err, hint)
}

// imageHint says what the kind of reference wants.
func imageHint(ref string) string {
	kind, _, _ := strings.Cut(ref, ":")
	switch kind {
	case "oci":
		return "oci: wants the folder of an OCI image layout"
	case "oci-archive", "docker-archive":
		return kind + ": wants a tar archive that was written whole"
	case "dir":
		return "dir: wants the folder of a root file system"
	case "erofs":
		return "erofs: wants a file that mkfs.erofs made"
	}
	return "is the registry there, and name, tag or digest as it has them?"
}
