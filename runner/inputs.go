package runner

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Input is one --input: a file, a folder or an archive of the host that is copied in.
type Input struct {
	Source string // host path; "tar:" or "zip:" and a path for what is in an archive; "-" is standard input
	Dest   string // path inside; relative ones are below /workspace; "" means the source's name
}

// ParseInput reads [tar:|zip:]SRC[:DST].
func ParseInput(s string) (Input, error) {
	kind, rest := splitKind(s)
	src, dst, _ := strings.Cut(rest, ":")
	if src == "" {
		return Input{}, fmt.Errorf("input %q: no source; hint: --input [tar:|zip:]SRC[:DST]", s)
	}
	if kind != "" {
		src = kind + ":" + src
	}
	return Input{Source: src, Dest: dst}, nil
}

// FromStdin tells whether the input is, or is in, standard input.
func (in Input) FromStdin() bool {
	_, src := splitKind(in.Source)
	return src == fromStdin
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

	archive *archive  // in place of all but name: the folder that its entries go to
	stdin   io.Reader // in place of host: a file of yet unknown size
}

// planInputs judges every object before anything is copied: an input with one
// unsafe entry is refused whole.
func planInputs(inputs []Input) ([]inputEntry, error) {
	var out []inputEntry
	named := namedFiles(inputs)
	for _, in := range inputs {
		entries, err := planInput(in, named)
		if err != nil {
			return nil, fmt.Errorf("input %s: %w", in.Source, err)
		}
		out = append(out, entries...)
	}
	return withoutTwins(out), nil
}

func planInput(in Input, named map[string]bool) ([]inputEntry, error) {
	base, err := inputDest(in)
	if err != nil {
		return nil, err
	}
	kind, src := splitKind(in.Source)
	if kind != "" {
		e, err := planArchive(kind, src, base)
		return []inputEntry{e}, err
	}
	if src == fromStdin {
		return []inputEntry{{name: base, mode: 0o644, mod: time.Now()}}, nil
	}
	fi, err := os.Stat(src) // the caller named it, so a link here is followed
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	switch {
	case fi.Mode().IsRegular():
		if base == "workspace" || base == "out" {
			base = path.Join(base, filepath.Base(src))
		}
		return []inputEntry{{host: src, name: base, mode: fi.Mode(), size: fi.Size(), mod: fi.ModTime()}}, nil
	case fi.IsDir():
		return planTree(src, base, named)
	}
	return nil, errors.New("neither a file nor a folder")
}

// namedFiles are the files that the caller named one by one.
func namedFiles(inputs []Input) map[string]bool {
	named := map[string]bool{}
	for _, in := range inputs {
		if p, err := filepath.EvalSymlinks(in.Source); err == nil {
			if abs, err := filepath.Abs(p); err == nil {
				named[abs] = true
			}
		}
	}
	return named
}

// withoutTwins drops a file that was named by itself and is in a folder too,
// when both have the same destination.
func withoutTwins(entries []inputEntry) []inputEntry {
	files := map[string]bool{}
	for _, e := range entries {
		if e.root != "" && e.mode.IsRegular() {
			files[e.name] = true
		}
	}
	return slices.DeleteFunc(entries, func(e inputEntry) bool { return e.root == "" && e.host != "" && files[e.name] })
}

// inputDest returns the destination below the workspace's parent.
func inputDest(in Input) (string, error) {
	dst := in.Dest
	kind, src := splitKind(in.Source)
	switch {
	case kind != "" && dst == "":
		dst = "." // the contents
	case kind == "" && src == fromStdin && (dst == "" || strings.HasSuffix(dst, "/")):
		dst += "stdin"
	}
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
			return "", fmt.Errorf("destination %q leaves the workspace", in.Dest)
		}
	}
	dst = path.Clean(dst)
	if !below(dst, "/workspace") && !below(dst, "/out") {
		return "", fmt.Errorf("destination %q; hint: inputs go below /workspace or /out", in.Dest)
	}
	return strings.TrimPrefix(dst, "/"), nil
}

func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func planTree(src, base string, named map[string]bool) ([]inputEntry, error) {
	root, err := filepath.EvalSymlinks(src)
	if err != nil {
		return nil, err
	}
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	var out []inputEntry
	var secrets []string
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		e := inputEntry{root: root, host: rel, name: path.Join(base, filepath.ToSlash(rel)), mode: fi.Mode(), mod: fi.ModTime()}
		switch {
		case fi.IsDir():
			e.host = ""
		case fi.Mode().IsRegular():
			e.size = fi.Size()
			if !named[p] && looksSecret(p) {
				secrets = append(secrets, rel)
			}
		case fi.Mode()&fs.ModeSymlink != 0:
			if e.link, err = os.Readlink(p); err != nil {
				return err
			}
			if filepath.IsAbs(e.link) || !filepath.IsLocal(filepath.Join(filepath.Dir(rel), e.link)) {
				return fmt.Errorf("link %s points outside the folder; nothing was copied", rel)
			}
		default:
			return fmt.Errorf("%s is %s; only files, folders and links inside are copied", rel, fi.Mode().Type())
		}
		out = append(out, e)
		return nil
	})
	if err == nil && len(secrets) > 0 {
		err = secretsError(src, secrets)
	}
	return out, err
}

func secretsError(src string, secrets []string) error {
	more := ""
	if n := len(secrets) - 5; n > 0 {
		secrets, more = secrets[:5], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%s%s: looks like a credential, and the code inside could read it; hint: leave it out of the folder, configure it as a credential, or name each file: --input %s",
		strings.Join(secrets, ", "), more, filepath.Join(src, secrets[0]))
}
