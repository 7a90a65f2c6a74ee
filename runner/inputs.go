package runner

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"warder/audit"
)

// Input is one --input: a file or a folder of the host that is copied in.
type Input struct {
	Source string // host path
	Dest   string // path inside; relative ones are below /workspace; "" means the source's name
}

// ParseInput reads SRC[:DST].
func ParseInput(s string) (Input, error) {
	src, dst, _ := strings.Cut(s, ":")
	if src == "" {
		return Input{}, fmt.Errorf("input %q: no source; hint: --input SRC[:DST]", s)
	}
	return Input{Source: src, Dest: dst}, nil
}

// inputEntry is one file system object to copy, already judged.
type inputEntry struct {
	root string      // folder that the file must not leave; "" for a file named by the caller
	host string      // path on the host, below root if there is one; "" for folders
	name string      // path below the workspace's parent: "workspace/…" or "out/…"
	mode fs.FileMode // type and permission bits
	link string      // target, for symbolic links
	size int64
	mod  time.Time
}

// planInputs judges every object before anything is copied: an input with one
// unsafe entry is refused whole.
func planInputs(inputs []Input) ([]inputEntry, error) {
	var out []inputEntry
	for _, in := range inputs {
		base, err := inputDest(in)
		if err != nil {
			return nil, err
		}
		fi, err := os.Stat(in.Source) // the caller named it, so a link here is followed
		if err != nil {
			return nil, fmt.Errorf("input %s: %w", in.Source, errors.Unwrap(err))
		}
		switch {
		case fi.Mode().IsRegular():
			if base == "workspace" || base == "out" {
				base = path.Join(base, filepath.Base(in.Source))
			}
			out = append(out, inputEntry{host: in.Source, name: base, mode: fi.Mode(), size: fi.Size(), mod: fi.ModTime()})
		case fi.IsDir():
			sub, err := planTree(in.Source, base)
			if err != nil {
				return nil, err
			}
			out = append(out, sub...)
		default:
			return nil, fmt.Errorf("input %s: neither a file nor a folder", in.Source)
		}
	}
	return out, nil
}

// inputDest returns the destination below the workspace's parent.
func inputDest(in Input) (string, error) {
	dst := in.Dest
	if dst == "" || strings.HasSuffix(dst, "/") {
		name := filepath.Base(filepath.Clean(in.Source))
		if in.Source == "." || strings.HasSuffix(in.Source, "/.") || name == ".." || name == "/" {
			name = "." // the contents of the folder
		}
		dst += name
	}
	if !path.IsAbs(dst) {
		dst = path.Join("/workspace", dst)
	}
	for _, part := range strings.Split(in.Dest, "/") {
		if part == ".." {
			return "", fmt.Errorf("input %s: destination %q leaves the workspace", in.Source, in.Dest)
		}
	}
	dst = path.Clean(dst)
	if !below(dst, "/workspace") && !below(dst, "/out") {
		return "", fmt.Errorf("input %s: destination %q; hint: inputs go below /workspace or /out", in.Source, in.Dest)
	}
	return strings.TrimPrefix(dst, "/"), nil
}

func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func planTree(src, base string) ([]inputEntry, error) {
	root, err := filepath.EvalSymlinks(src)
	if err != nil {
		return nil, fmt.Errorf("input %s: %w", src, err)
	}
	var out []inputEntry
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("input %s: %w", src, err)
		}
		fi, err := d.Info()
		if err != nil {
			return fmt.Errorf("input %s: %w", src, err)
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return fmt.Errorf("input %s: %w", src, err)
		}
		e := inputEntry{root: root, host: rel, name: path.Join(base, filepath.ToSlash(rel)), mode: fi.Mode(), mod: fi.ModTime()}
		switch {
		case fi.IsDir():
			e.host = ""
		case fi.Mode().IsRegular():
			e.size = fi.Size()
		case fi.Mode()&fs.ModeSymlink != 0:
			if e.link, err = os.Readlink(p); err != nil {
				return fmt.Errorf("input %s: %w", src, err)
			}
			if filepath.IsAbs(e.link) || !filepath.IsLocal(filepath.Join(filepath.Dir(rel), e.link)) {
				return fmt.Errorf("input %s: link %s points outside the folder; nothing was copied", src, rel)
			}
		default:
			return fmt.Errorf("input %s: %s is %s; only files, folders and links inside are copied", src, rel, fi.Mode().Type())
		}
		out = append(out, e)
		return nil
	})
	return out, err
}

// packInputs writes the judged entries as a tar stream and returns what was
// sent, with SHA-256 of each file. A file that changes its size under way is an error.
func packInputs(ctx context.Context, w io.Writer, entries []inputEntry) ([]audit.File, error) {
	tw := tar.NewWriter(w)
	var sent []audit.File
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return sent, err
		}
		f, err := packOne(tw, e)
		if err != nil {
			return sent, fmt.Errorf("input %s: %w", e.name, err)
		}
		if f != nil {
			sent = append(sent, *f)
		}
	}
	if err := tw.Close(); err != nil {
		return sent, fmt.Errorf("inputs: %w", err)
	}
	return sent, nil
}

func packOne(tw *tar.Writer, e inputEntry) (*audit.File, error) {
	h := &tar.Header{Name: e.name, Mode: int64(e.mode.Perm()), ModTime: e.mod, Format: tar.FormatPAX}
	switch {
	case e.mode.IsDir():
		h.Typeflag = tar.TypeDir
		return nil, tw.WriteHeader(h)
	case e.mode&fs.ModeSymlink != 0:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		return nil, tw.WriteHeader(h)
	}
	f, err := e.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, e.size
	if err := tw.WriteHeader(h); err != nil {
		return nil, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(tw, sum), io.LimitReader(f, e.size))
	if err != nil {
		return nil, err
	}
	if n != e.size {
		return nil, fmt.Errorf("changed while it was read (%d of %d bytes)", n, e.size)
	}
	return &audit.File{Path: "/" + e.name, Size: n, Mode: fmt.Sprintf("%04o", e.mode.Perm()), SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// open opens the file that was judged: what was put in its place meanwhile, a
// link out of the folder or a pipe, is an error.
func (e *inputEntry) open() (*os.File, error) {
	if e.root == "" {
		return regular(os.OpenFile(e.host, os.O_RDONLY|syscall.O_NONBLOCK, 0))
	}
	root, err := os.OpenRoot(e.root)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return regular(root.OpenFile(e.host, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0))
}

func regular(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		_ = f.Close()
		return nil, errors.New("is no regular file any more")
	}
	return f, nil
}

// unpackInputs extracts the stream below dir, inside an os.Root, as uid. It runs
// in the helper; the stream was made by packInputs of the same binary.
func unpackInputs(r io.Reader, dir string, uid int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	type stamp struct {
		name string
		h    *tar.Header
	}
	var dirs []stamp // modes and times of folders last, when nothing is added to them any more
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		if !filepath.IsLocal(name) {
			return fmt.Errorf("entry %q is not local", h.Name)
		}
		if err := mkdirsAs(root, path.Dir(name), uid); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			if err := mkdirsAs(root, name, uid); err != nil {
				return err
			}
			dirs = append(dirs, stamp{name, h})
			continue
		}
		if err := unpackOne(root, tr, h, name, uid); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := root.Chmod(dirs[i].name, fs.FileMode(dirs[i].h.Mode)&fs.ModePerm); err != nil {
			return err
		}
		if err := root.Chtimes(dirs[i].name, dirs[i].h.ModTime, dirs[i].h.ModTime); err != nil {
			return err
		}
	}
	return nil
}

func unpackOne(root *os.Root, r io.Reader, h *tar.Header, name string, uid int) error {
	switch h.Typeflag {
	case tar.TypeSymlink:
		if err := root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return root.Lchown(name, uid, uid)
	case tar.TypeReg:
	default:
		return fmt.Errorf("unexpected type %q", h.Typeflag)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		return err
	}
	if err := f.Chown(uid, uid); err != nil {
		return err
	}
	if err := f.Chmod(fs.FileMode(h.Mode) & fs.ModePerm); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return root.Chtimes(name, h.ModTime, h.ModTime)
}

// mkdirsAs makes the missing folders on the way to name, owned by uid.
func mkdirsAs(root *os.Root, name string, uid int) error {
	if name == "." {
		return nil
	}
	if fi, err := root.Stat(name); err == nil {
		if !fi.IsDir() {
			return fmt.Errorf("%s: not a folder", name)
		}
		return nil
	}
	if err := mkdirsAs(root, path.Dir(name), uid); err != nil {
		return err
	}
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return root.Lchown(name, uid, uid)
}
