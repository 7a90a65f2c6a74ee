package runner

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"unicode/utf8"

	"warder/audit"
)

// Bounds of what is collected from one run.
const (
	maxArtifacts     = 10000
	maxArtifactDepth = 64
	maxArtifactBytes = 4 << 30 // of all together, and never more than the disk limit: a file may be sparse
)

// collector copies artefacts out of a dead sandbox: regular files only, never
// through a link, each with its SHA-256. A refused file is listed with the
// reason, and the rest goes on.
type collector struct {
	roots map[string]*os.Root // "/workspace", "/out"
	dest  *os.Root
	files []audit.File
	taken map[string]bool
	bytes int64
	most  int64 // of bytes
}

// prepareArtifacts makes the folder that artefacts go to, before the task runs:
// afterwards it would be too late to choose another.
func prepareArtifacts(patterns []string, destDir string) error {
	if len(patterns) == 0 {
		return nil
	}
	err := os.MkdirAll(destDir, 0o755)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(destDir, ".warder-*.part"); err == nil {
			_ = f.Close()
			err = os.Remove(f.Name())
		}
	}
	if err != nil {
		return fmt.Errorf("artefacts: %w; hint: choose a writable --artifacts-dir", err)
	}
	return nil
}

// collectArtifacts copies what the patterns name into destDir. A pattern is a
// file, a folder (recursive) or a glob below /workspace or /out; a relative one
// is below /workspace, and "**" stands for any number of folders. The file
// /out/a/b lands at destDir/a/b. disk bounds all of it, in bytes.
func collectArtifacts(workspace, out *os.File, patterns []string, destDir string, disk int64) ([]audit.File, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	if err := prepareArtifacts(patterns, destDir); err != nil {
		return nil, err
	}
	dest, err := os.OpenRoot(destDir)
	if err != nil {
		return nil, fmt.Errorf("artefacts: %w", err)
	}
	defer dest.Close()
	c := &collector{roots: map[string]*os.Root{}, dest: dest, taken: map[string]bool{}, most: min(disk, maxArtifactBytes)}
	for name, f := range map[string]*os.File{"/workspace": workspace, "/out": out} {
		if fi, err := f.Stat(); err == nil {
			_ = f.Chmod(fi.Mode().Perm() | 0o700) // see admit; opening it tells
		}
		r, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		if err != nil {
			return nil, fmt.Errorf("artefacts: %s: %w", name, err)
		}
		defer r.Close()
		c.roots[name] = r
	}
	for _, p := range patterns {
		c.collect(p)
	}
	sort.SliceStable(c.files, func(i, j int) bool { return c.files[i].Path < c.files[j].Path })
	return c.files, nil
}

// shownName spells out the bytes of a name that are not UTF-8, as \xNN: replaced
// by U+FFFD two files could look like one.
func shownName(p string) string {
	if utf8.ValidString(p) {
		return p
	}
	var b strings.Builder
	for len(p) > 0 {
		r, n := utf8.DecodeRuneInString(p)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, p[0])
		} else {
			b.WriteString(p[:n])
		}
		p = p[n:]
	}
	return b.String()
}

func (c *collector) refuse(p, why string) {
	c.files = append(c.files, audit.File{Path: shownName(p), Refused: why})
}

func (c *collector) collect(pattern string) {
	p := pattern
	if !path.IsAbs(p) {
		p = path.Join("/workspace", p)
	}
	for _, part := range strings.Split(pattern, "/") {
		if part == ".." {
			c.refuse(pattern, "leaves the workspace")
			return
		}
	}
	p = path.Clean(p)
	for base, root := range c.roots {
		if !below(p, base) {
			continue
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p, base), "/")
		c.match(root, base, rel)
		return
	}
	c.refuse(pattern, "not below /workspace or /out")
}

// match expands the pattern by walking: links are never followed.
func (c *collector) match(root *os.Root, base, rel string) {
	if rel == "" {
		c.take(root, base, ".", 0)
		return
	}
	found := 0
	c.expand(root, base, ".", strings.Split(rel, "/"), &found)
	if found == 0 {
		c.refuse(path.Join(base, rel), "not found")
	}
}

func (c *collector) expand(root *os.Root, base, dir string, parts []string, found *int) {
	if parts[0] == "**" {
		c.expandDeep(root, base, dir, parts, found, 0)
		return
	}
	names := []string{parts[0]}
	if strings.ContainsAny(parts[0], "*?[") {
		var err error
		if names, err = globDir(root, dir, parts[0]); err != nil {
			*found++
			c.refuse(path.Join(base, dir, parts[0]), reasonOf(err))
			return
		}
	}
	for _, name := range names {
		p := path.Join(dir, name)
		fi, err := root.Lstat(p)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				*found++
				c.refuse(path.Join(base, p), reasonOf(err))
			}
			continue
		}
		if len(parts) == 1 {
			*found++
			c.take(root, base, p, 0)
			continue
		}
		if fi.Mode()&fs.ModeSymlink != 0 {
			*found++
			c.refuse(path.Join(base, p), "symbolic link")
			continue
		}
		if fi.IsDir() {
			admit(root, p, fi)
			c.expand(root, base, p, parts[1:], found)
		}
	}
}

// expandDeep matches what follows "**" in dir and in every folder below it.
func (c *collector) expandDeep(root *os.Root, base, dir string, parts []string, found *int, depth int) {
	rest := parts[1:]
	for len(rest) > 0 && rest[0] == "**" {
		rest = rest[1:]
	}
	if len(rest) == 0 {
		*found++
		c.take(root, base, dir, 0)
		return
	}
	if depth > maxArtifactDepth {
		*found++
		c.refuse(path.Join(base, dir), fmt.Sprintf("deeper than %d folders", maxArtifactDepth))
		return
	}
	c.expand(root, base, dir, rest, found)
	names, err := readNames(root, dir)
	if err != nil {
		*found++
		c.refuse(path.Join(base, dir), reasonOf(err))
		return
	}
	for _, name := range names {
		p := path.Join(dir, name)
		if fi, err := root.Lstat(p); err == nil && fi.IsDir() {
			admit(root, p, fi)
			c.expandDeep(root, base, p, parts, found, depth+1)
		}
	}
}

// globDir lists what matches. A name that is itself the pattern is taken when
// nothing else matches, so that a file called "a[1]" can be had.
func globDir(root *os.Root, dir, pattern string) ([]string, error) {
	all, err := readNames(root, dir)
	if err != nil {
		return nil, err
	}
	var out []string
	if _, err := path.Match(pattern, ""); err != nil && slices.Contains(all, pattern) {
		return []string{pattern}, nil
	}
	for _, n := range all {
		ok, err := path.Match(pattern, n)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, n)
		}
	}
	if len(out) == 0 && slices.Contains(all, pattern) {
		out = []string{pattern}
	}
	return out, nil
}

func readNames(root *os.Root, dir string) ([]string, error) {
	d, err := root.OpenFile(dir, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxArtifacts + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	sort.Strings(names)
	return names, nil
}

// admit opens what its author closed to himself (chmod 0). The sandbox is dead;
// an ordinary user's files are the caller's own, and their bits alone would keep
// him from them. Whatever is read next tells when that did not help.
func admit(root *os.Root, p string, fi fs.FileInfo) {
	need := fs.FileMode(0o400)
	if fi.IsDir() {
		need = 0o700
	}
	if perm := fi.Mode().Perm(); perm&need != need {
		_ = root.Chmod(p, perm|need)
	}
}

func (c *collector) take(root *os.Root, base, p string, depth int) {
	full := path.Join(base, p)
	if len(c.files) >= maxArtifacts {
		if len(c.files) == maxArtifacts {
			c.refuse(full, fmt.Sprintf("more than %d files", maxArtifacts))
		}
		return
	}
	fi, err := root.Lstat(p)
	if err != nil {
		c.refuse(full, reasonOf(err))
		return
	}
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		c.refuse(full, "symbolic link")
	case fi.IsDir():
		if depth >= maxArtifactDepth {
			c.refuse(full, fmt.Sprintf("deeper than %d folders", maxArtifactDepth))
			return
		}
		admit(root, p, fi)
		names, err := readNames(root, p)
		if err != nil {
			c.refuse(full, reasonOf(err))
			return
		}
		for _, n := range names {
			c.take(root, base, path.Join(p, n), depth+1)
		}
	case fi.Mode().IsRegular():
		admit(root, p, fi)
		c.copyFile(root, p, full, fi.Mode())
	default:
		c.refuse(full, "not a regular file")
	}
}

func (c *collector) copyFile(root *os.Root, p, full string, mode fs.FileMode) {
	if c.taken[full] {
		return // named by two patterns
	}
	if c.taken["dest:"+p] {
		c.refuse(full, "another artefact has this name")
		return
	}
	f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		c.refuse(full, reasonOf(err))
		return
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		c.refuse(full, "not a regular file")
		return
	}
	if c.bytes+fi.Size() > c.most {
		c.refuse(full, "over the size limit of all artefacts")
		return
	}
	sum, n, err := c.write(p, f, fi.Size(), mode)
	if err != nil {
		c.refuse(full, "cannot be stored: "+reasonOf(err))
		return
	}
	c.taken[full], c.taken["dest:"+p] = true, true
	c.bytes += n
	c.files = append(c.files, audit.File{Path: shownName(full), Size: n, Mode: fmt.Sprintf("%04o", mode.Perm()), SHA256: sum})
}

// write stores one artefact by a temporary name and a rename, so that an
// existing link at the destination is replaced, never followed.
func (c *collector) write(p string, src io.Reader, size int64, mode fs.FileMode) (string, int64, error) {
	if dir := path.Dir(p); dir != "." {
		if err := c.dest.MkdirAll(dir, 0o755); err != nil {
			return "", 0, err
		}
	}
	tmp := path.Join(path.Dir(p), ".warder-"+filepath.Base(p)+".part")
	_ = c.dest.Remove(tmp)
	w, err := c.dest.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", 0, err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(src, size))
	if err == nil {
		err = w.Chmod(mode.Perm() & 0o755) // no set-id bits, not writable by others
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = c.dest.Rename(tmp, p)
	}
	if err != nil {
		_ = c.dest.Remove(tmp)
		return "", 0, err
	}
	return hex.EncodeToString(sum.Sum(nil)), n, nil
}

// reasonOf is the cause of a file system error without the path of the host.
func reasonOf(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
