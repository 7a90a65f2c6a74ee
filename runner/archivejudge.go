package runner

import (
	"archive/tar"
	"errors"
	"fmt"
	"path"
	"strings"
)

// Bounds of one archive that is an input.
const (
	maxArchiveEntries = 1_000_000
	maxArchiveBytes   = 64 << 30
	maxArchiveDepth   = 128 // folders
	maxArchivePath    = 4095
)

// archiveJudge decides about the entries of one archive. It knows what came
// before: whether an entry is safe depends on the links in front of it.
type archiveJudge struct {
	seen    map[string]byte // type of each path so far
	entries int
	bytes   int64
}

func newArchiveJudge() *archiveJudge { return &archiveJudge{seen: map[string]byte{".": tar.TypeDir}} }

// judge makes the names of h clean and relative. It says whether the entry is to
// be copied; headers that only hold metadata are not.
func (j *archiveJudge) judge(h *tar.Header) (keep bool, err error) {
	if j.entries++; j.entries > maxArchiveEntries {
		return false, fmt.Errorf("more than %d entries", maxArchiveEntries)
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return false, nil
	}
	if h.Name, err = cleanName(h.Name); err != nil {
		return false, err
	}
	if err := j.place(h); err != nil {
		return false, err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return h.Name != ".", nil
	case tar.TypeReg:
		if h.Mode&0o6000 != 0 {
			return false, errors.New("has a set-id bit")
		}
		if j.bytes += h.Size; h.Size < 0 || j.bytes > maxArchiveBytes {
			return false, fmt.Errorf("more than %d bytes unpacked", int64(maxArchiveBytes))
		}
		return true, nil
	case tar.TypeSymlink:
		return true, linkStaysInside(h.Name, h.Linkname)
	case tar.TypeLink:
		target, err := cleanName(h.Linkname)
		if err != nil {
			return false, fmt.Errorf("hard link to %q: %w", shorten(h.Linkname), err)
		}
		if t := j.seen[target]; target == h.Name || t != tar.TypeReg && t != tar.TypeLink {
			return false, fmt.Errorf("hard link to %q, which is no file of the archive before it", shorten(h.Linkname))
		}
		h.Linkname = target
		return true, nil
	}
	return false, errors.New("neither a file, a folder nor a link")
}

// cleanName refuses what is not plainly below the folder of the archive.
func cleanName(name string) (string, error) {
	switch {
	case name == "":
		return "", errors.New("no name")
	case len(name) > maxArchivePath:
		return "", fmt.Errorf("name longer than %d bytes", maxArchivePath)
	case path.IsAbs(name):
		return "", errors.New("absolute name")
	case strings.ContainsAny(name, "\\\x00"):
		return "", errors.New("backslash or NUL in the name")
	case len(name) > 1 && name[1] == ':':
		return "", errors.New("drive letter in the name")
	}
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", errors.New("leaves the folder")
		}
		if len(part) > 255 {
			return "", errors.New("a part of the name is longer than 255 bytes")
		}
	}
	name = path.Clean(name)
	if strings.Count(name, "/") >= maxArchiveDepth {
		return "", fmt.Errorf("deeper than %d folders", maxArchiveDepth)
	}
	return name, nil
}

// place refuses an entry behind a link or a file, and a second one of the same
// name but for folders.
func (j *archiveJudge) place(h *tar.Header) error {
	for dir := path.Dir(h.Name); dir != "."; dir = path.Dir(dir) {
		switch j.seen[dir] {
		case 0:
			j.seen[dir] = tar.TypeDir
		case tar.TypeDir:
		case tar.TypeSymlink:
			return fmt.Errorf("behind the link %q", shorten(dir))
		default:
			return fmt.Errorf("below %q, which is no folder", shorten(dir))
		}
	}
	before, again := j.seen[h.Name]
	if again && (before != tar.TypeDir || h.Typeflag != tar.TypeDir) {
		return errors.New("twice in the archive")
	}
	j.seen[h.Name] = h.Typeflag
	return nil
}

// linkStaysInside accepts relative targets that climb only at their beginning,
// and not above the folder of the archive. No entry is behind a link, so what
// the target says is where it leads, whatever other links there are.
func linkStaysInside(name, target string) error {
	if target == "" || len(target) > maxArchivePath || strings.ContainsAny(target, "\\\x00") {
		return errors.New("a link to nowhere")
	}
	if path.IsAbs(target) {
		return fmt.Errorf("link to %q, an absolute path", shorten(target))
	}
	left, down := strings.Count(name, "/"), false
	for _, part := range strings.Split(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if left--; down || left < 0 {
				return fmt.Errorf("link to %q, outside of the folder", shorten(target))
			}
		default:
			down = true
		}
	}
	return nil
}
