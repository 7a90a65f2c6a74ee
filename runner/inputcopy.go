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
	"syscall"

	"warder/audit"
)

// packInputs writes the judged entries as a tar stream and returns what was
// sent, with SHA-256 of each file. A file that changes its size under way is an error.
func packInputs(ctx context.Context, w io.Writer, entries []inputEntry) ([]audit.File, error) {
	tw := tar.NewWriter(w)
	var sent []audit.File
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return sent, err
		}
		files, err := packEntry(ctx, tw, e)
		if err != nil {
			return sent, fmt.Errorf("input %s: %w", e.name, err)
		}
		sent = append(sent, files...)
	}
	if err := tw.Close(); err != nil {
		return sent, fmt.Errorf("inputs: %w", err)
	}
	return sent, nil
}

func packEntry(ctx context.Context, tw *tar.Writer, e inputEntry) ([]audit.File, error) {
	switch {
	case e.archive != nil:
		return packArchive(ctx, tw, e)
	case e.stdin != nil:
		return packStdin(tw, e)
	}
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
	return packFile(tw, h, f)
}

// packFile writes one file of a known size.
func packFile(tw *tar.Writer, h *tar.Header, r io.Reader) ([]audit.File, error) {
	if err := tw.WriteHeader(h); err != nil {
		return nil, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(tw, sum), io.LimitReader(r, h.Size))
	if err != nil {
		return nil, err
	}
	if n != h.Size {
		return nil, fmt.Errorf("changed while it was read (%d of %d bytes)", n, h.Size)
	}
	return []audit.File{{Path: "/" + h.Name, Size: n, Mode: fmt.Sprintf("%04o", h.Mode), SHA256: hex.EncodeToString(sum.Sum(nil))}}, nil
}

func packArchive(ctx context.Context, tw *tar.Writer, e inputEntry) ([]audit.File, error) {
	var sent []audit.File
	e.archive.stdin = e.stdin
	err := e.archive.each(ctx, func(h *tar.Header, r io.Reader) error {
		out := &tar.Header{
			Typeflag: h.Typeflag, Name: e.name + "/" + h.Name, Mode: h.Mode & 0o777, ModTime: h.ModTime, Format: tar.FormatPAX,
		}
		switch h.Typeflag {
		case tar.TypeReg:
			out.Size = h.Size
			files, err := packFile(tw, out, r)
			sent = append(sent, files...)
			return err
		case tar.TypeSymlink:
			out.Linkname = h.Linkname
		case tar.TypeLink:
			out.Linkname = e.name + "/" + h.Linkname
		}
		return tw.WriteHeader(out)
	})
	return sent, err
}

// packStdin stores standard input first: a tar header needs the size.
func packStdin(tw *tar.Writer, e inputEntry) ([]audit.File, error) {
	f, err := os.CreateTemp("", "warder-stdin-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // it lives as long as the descriptor
		return nil, err
	}
	n, err := io.Copy(f, io.LimitReader(e.stdin, maxArchiveBytes+1))
	if err != nil {
		return nil, err
	}
	if n > maxArchiveBytes {
		return nil, fmt.Errorf("more than %d bytes", int64(maxArchiveBytes))
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return packFile(tw, &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o644, Size: n, ModTime: e.mod, Format: tar.FormatPAX}, f)
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

// unpackInputs extracts the stream below dir, inside an os.Root, as the task's. It runs
// in the helper; the stream was made by packInputs of the same binary.
func unpackInputs(r io.Reader, dir string, o owner) error {
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
		if err := mkdirsAs(root, path.Dir(name), o); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			if err := mkdirsAs(root, name, o); err != nil {
				return err
			}
			dirs = append(dirs, stamp{name, h})
			continue
		}
		if err := unpackOne(root, tr, h, name, o); err != nil {
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

func unpackOne(root *os.Root, r io.Reader, h *tar.Header, name string, o owner) error {
	switch h.Typeflag {
	case tar.TypeSymlink:
		if err := root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return root.Lchown(name, int(o.uid), int(o.gid))
	case tar.TypeLink:
		return root.Link(path.Clean(h.Linkname), name)
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
	if err := f.Chown(int(o.uid), int(o.gid)); err != nil {
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

// mkdirsAs makes the missing folders on the way to name, owned by o.
func mkdirsAs(root *os.Root, name string, o owner) error {
	if name == "." {
		return nil
	}
	if fi, err := root.Stat(name); err == nil {
		if !fi.IsDir() {
			return fmt.Errorf("%s: not a folder", name)
		}
		return nil
	}
	if err := mkdirsAs(root, path.Dir(name), o); err != nil {
		return err
	}
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return root.Lchown(name, int(o.uid), int(o.gid))
}
