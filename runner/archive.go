package runner

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// Kinds of inputs that are archives: the prefix of the source.
const (
	inputTar  = "tar"
	inputZip  = "zip"
	fromStdin = "-"
)

// splitKind parts "tar:SRC" and "zip:SRC".
func splitKind(source string) (kind, rest string) {
	for _, k := range []string{inputTar, inputZip} {
		if r, ok := strings.CutPrefix(source, k+":"); ok {
			return k, r
		}
	}
	return "", source
}

// archive is an input whose entries are judged one by one as they are read.
type archive struct {
	kind  string
	src   string // path of the host, or "-"
	stdin io.Reader
}

// planArchive reads the whole archive once, so that a bad one is refused before
// anything is started. What comes from standard input is judged as it is copied,
// into a sandbox that does not run before the end of it.
func planArchive(kind, src, base string) (inputEntry, error) {
	a := &archive{kind: kind, src: src}
	e := inputEntry{archive: a, name: base, mode: fs.ModeDir}
	if src == fromStdin {
		if kind == inputZip {
			return e, errors.New("a zip archive cannot be read from standard input; hint: save it to a file, or use tar")
		}
		return e, nil
	}
	fi, err := os.Stat(src)
	if err != nil {
		return e, errors.Unwrap(err)
	}
	if !fi.Mode().IsRegular() {
		return e, errors.New("not a file")
	}
	return e, a.each(context.Background(), func(_ *tar.Header, r io.Reader) error {
		_, err := io.Copy(io.Discard, r) // damage shows only to those who read it
		return err
	})
}

// each calls f for every entry, judged, in order. An entry that is unsafe, or an
// archive that is damaged or cut off, is an error: the input as a whole is refused.
func (a *archive) each(ctx context.Context, f func(h *tar.Header, r io.Reader) error) error {
	j := newArchiveJudge()
	one := func(h *tar.Header, r io.Reader) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		keep, err := j.judge(h)
		if err != nil {
			return fmt.Errorf("entry %q: %w; nothing of it was used", shorten(h.Name), err)
		}
		if !keep {
			return nil
		}
		if err := f(h, r); err != nil {
			return fmt.Errorf("entry %q: %w", shorten(h.Name), err)
		}
		return nil
	}
	if a.kind == inputZip {
		return eachZip(a.src, one)
	}
	src := a.stdin
	if a.src != fromStdin {
		file, err := regular(os.Open(a.src))
		if err != nil {
			return err
		}
		defer file.Close()
		src = file
	}
	if src == nil {
		return errors.New("there is no standard input")
	}
	return eachTar(src, one)
}

func shorten(name string) string {
	if len(name) > 200 {
		return name[:200] + "…"
	}
	return name
}

func eachTar(src io.Reader, f func(h *tar.Header, r io.Reader) error) error {
	r, err := uncompressed(src)
	if err != nil {
		return err
	}
	z := &zeroCounter{r: io.LimitReader(r, maxArchiveBytes)}
	tr := tar.NewReader(z)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("not a tar archive, or damaged: %w", err)
		}
		if err := f(h, tr); err != nil {
			return err
		}
	}
	if z.zeros < tarBlock {
		return errors.New("cut off: the mark of the end is missing")
	}
	if _, err := io.Copy(io.Discard, z); err != nil { // the checksum of a compressed one is at its end
		return fmt.Errorf("damaged: %w", err)
	}
	return nil
}

// tarBlock is the size of a block of a tar archive; blocks of zeros are its end
// (POSIX.1-2017, pax, "ustar Interchange Format"). Without that a stream that was
// cut off between two files would pass as a whole one.
const tarBlock = 512

// zeroCounter counts the zero bytes at the end of what was read.
type zeroCounter struct {
	r     io.Reader
	zeros int
}

func (z *zeroCounter) Read(p []byte) (int, error) {
	n, err := z.r.Read(p)
	if tail := n - len(bytes.TrimRight(p[:n], "\x00")); tail == n {
		z.zeros += n
	} else {
		z.zeros = tail
	}
	return n, err
}

func uncompressed(src io.Reader) (io.Reader, error) {
	br := bufio.NewReaderSize(src, 64<<10)
	head, err := br.Peek(3)
	if len(head) == 0 {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("empty")
		}
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(br)
	case bytes.HasPrefix(head, []byte("BZh")):
		return bzip2.NewReader(br), nil
	}
	return br, nil
}

// eachZip presents the entries of a zip archive as a tar archive would.
func eachZip(src string, f func(h *tar.Header, r io.Reader) error) error {
	z, err := zip.OpenReader(src)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // judged below, with its name
		return fmt.Errorf("not a zip archive, or damaged: %w", err)
	}
	defer z.Close()
	for _, e := range z.File {
		if err := zipEntry(e, f); err != nil {
			return err
		}
	}
	return nil
}

func zipEntry(e *zip.File, f func(h *tar.Header, r io.Reader) error) error {
	if e.Flags&1 != 0 {
		return fmt.Errorf("entry %q: encrypted", shorten(e.Name))
	}
	if e.UncompressedSize64 > maxArchiveBytes {
		return fmt.Errorf("entry %q: too large", shorten(e.Name))
	}
	h, err := tar.FileInfoHeader(e.FileInfo(), "")
	if err != nil {
		return fmt.Errorf("entry %q: %w", shorten(e.Name), err)
	}
	h.Name = e.Name
	r, err := e.Open()
	if err != nil {
		return fmt.Errorf("entry %q: %w", shorten(e.Name), err)
	}
	defer r.Close()
	if h.Typeflag == tar.TypeSymlink {
		target, err := io.ReadAll(io.LimitReader(r, maxArchivePath+1))
		if err != nil {
			return fmt.Errorf("entry %q: %w", shorten(e.Name), err)
		}
		h.Linkname, h.Size = string(target), 0
	}
	return f(h, r)
}
