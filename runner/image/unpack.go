package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Names of the OCI image specification, "Layer Filesystem Changeset".
const (
	whiteoutPrefix = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
)

// unpacker applies layers, lowest first, to a tree.
type unpacker struct {
	root    *os.Root
	limits  Limits
	entries int
	bytes   int64

	// Of the layer at work: paths that it wrote, and the folders that hold one.
	written, holds map[string]bool
}

// layer applies one layer: an uncompressed tar stream. An entry that is unsafe
// refuses the whole layer.
func (u *unpacker) layer(ctx context.Context, r io.Reader) error {
	u.written, u.holds = map[string]bool{}, map[string]bool{}
	tr := tar.NewReader(r)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if u.entries++; u.entries > u.limits.Entries {
			return fmt.Errorf("more than %d entries", u.limits.Entries)
		}
		if err := u.entry(tr, h); err != nil {
			return fmt.Errorf("entry %q: %w", cut(h.Name), err)
		}
	}
}

// cut keeps hostile names short in messages.
func cut(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

func (u *unpacker) entry(r io.Reader, h *tar.Header) error {
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return nil // images hold some; a sandbox has its own /dev
	default:
		return fmt.Errorf("type %q is not supported", h.Typeflag)
	}
	name, err := u.clean(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return errors.New("not a folder where the root is")
		}
		return nil
	}
	dir, base := path.Split(name)
	if dir, err = u.parent(path.Clean(dir)); err != nil {
		return err
	}
	if base == opaqueWhiteout {
		return u.hideBelow(dir)
	}
	if hidden, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		if hidden == "" || hidden == "." || hidden == ".." {
			return errors.New("not a whiteout")
		}
		return u.hide(path.Join(dir, hidden))
	}
	return u.put(r, h, path.Join(dir, base))
}

// clean judges a name: slashes, relative to the root, nothing that climbs.
func (u *unpacker) clean(name string) (string, error) {
	if len(name) > u.limits.Path {
		return "", fmt.Errorf("longer than %d bytes", u.limits.Path)
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("holds a NUL byte")
	}
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", errors.New("leaves the tree")
		}
	}
	name = path.Clean(strings.TrimLeft(name, "/"))
	if strings.Count(name, "/") >= u.limits.Depth {
		return "", fmt.Errorf("deeper than %d folders", u.limits.Depth)
	}
	return name, nil
}

// parent returns the folder of an entry with links resolved inside the tree and
// missing folders made. A link of the same layer is refused: only an attack puts
// an entry behind a link that it has just made.
func (u *unpacker) parent(dir string) (string, error) {
	at, rest, links := ".", strings.Split(dir, "/"), 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..": // of a link
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, part)
		fi, err := u.root.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := u.mkdir(next); err != nil {
				return "", plain(err)
			}
			u.mark(next)
		case err != nil:
			return "", plain(err)
		case fi.Mode()&fs.ModeSymlink != 0:
			if u.written[next] {
				return "", fmt.Errorf("behind the link %q of the same layer", cut(next))
			}
			if links++; links > 40 {
				return "", errors.New("behind too many links")
			}
			target, err := u.root.Readlink(next)
			if err != nil {
				return "", plain(err)
			}
			if path.IsAbs(target) {
				at = "."
			}
			rest = append(strings.Split(target, "/"), rest...)
			continue
		case !fi.IsDir():
			return "", fmt.Errorf("%q is not a folder", cut(next))
		}
		at = next
	}
	return at, nil
}

// mkdir makes a folder that everybody may enter, whatever the caller's umask.
func (u *unpacker) mkdir(name string) error {
	if err := u.root.Mkdir(name, 0o755); err != nil {
		return err
	}
	return u.root.Chmod(name, 0o755)
}

func (u *unpacker) mark(name string) {
	u.written[name] = true
	for dir := path.Dir(name); dir != "." && !u.holds[dir]; dir = path.Dir(dir) {
		u.holds[dir] = true
	}
}

// put writes one entry in place of whatever a lower layer had there.
func (u *unpacker) put(r io.Reader, h *tar.Header, name string) error {
	fi, err := u.root.Lstat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return plain(err)
	}
	if h.Typeflag == tar.TypeDir {
		if err == nil && fi.IsDir() {
			u.mark(name)
			return nil
		}
		if u.written[name] {
			return errors.New("twice in one layer")
		}
		if err == nil {
			if err := u.root.Remove(name); err != nil {
				return plain(err)
			}
		}
		u.mark(name)
		return plain(u.mkdir(name))
	}
	if u.written[name] || u.holds[name] {
		return errors.New("twice in one layer")
	}
	if h.Typeflag == tar.TypeLink {
		return u.hardLink(h, name)
	}
	if err == nil {
		if err := u.root.RemoveAll(name); err != nil {
			return plain(err)
		}
	}
	u.mark(name)
	if h.Typeflag == tar.TypeSymlink {
		if h.Linkname == "" || len(h.Linkname) > u.limits.Path || strings.ContainsRune(h.Linkname, 0) {
			return errors.New("not a link")
		}
		return plain(u.root.Symlink(h.Linkname, name))
	}
	return u.file(r, h, name)
}

// hardLink gives a regular file of the tree a second name.
func (u *unpacker) hardLink(h *tar.Header, name string) error {
	target, err := u.clean(h.Linkname)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", cut(h.Linkname), err)
	}
	dir, base := path.Split(target)
	if dir, err = u.parent(path.Clean(dir)); err != nil {
		return fmt.Errorf("hard link to %q: %w", cut(h.Linkname), err)
	}
	target = path.Join(dir, base)
	fi, err := u.root.Lstat(target)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", cut(h.Linkname), plain(err))
	}
	if fi.Mode()&fs.ModeSymlink != 0 { // a second name of a link is a link like it
		to, err := u.root.Readlink(target)
		if err != nil {
			return plain(err)
		}
		h = &tar.Header{Typeflag: tar.TypeSymlink, Linkname: to}
		return u.put(nil, h, name)
	}
	if !fi.Mode().IsRegular() || target == name {
		return fmt.Errorf("hard link to %q: not a regular file", cut(h.Linkname))
	}
	if err := u.root.RemoveAll(name); err != nil {
		return plain(err)
	}
	u.mark(name)
	return plain(u.root.Link(target, name))
}

// file writes a new file. Modes are those of a program or of data: the tree is
// shared by runs that have other ids than its owner.
func (u *unpacker) file(r io.Reader, h *tar.Header, name string) error {
	if u.bytes += h.Size; h.Size < 0 || u.bytes > u.limits.Bytes {
		return fmt.Errorf("more than %d bytes unpacked", u.limits.Bytes)
	}
	mode := fs.FileMode(0o644)
	if h.Mode&0o111 != 0 {
		mode = 0o755
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return plain(err)
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = u.root.Chtimes(name, h.ModTime, h.ModTime)
	}
	return plain(err)
}
