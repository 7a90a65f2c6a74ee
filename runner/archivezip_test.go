package runner

import (
	"archive/zip"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func zipOf(t testing.TB, fill func(*zip.Writer) error) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	if err := fill(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func zipEntries(t testing.TB, list ...zip.FileHeader) []byte {
	t.Helper()
	return zipOf(t, func(w *zip.Writer) error {
		for _, h := range list {
			data := h.Comment
			h.Comment = ""
			f, err := w.CreateHeader(&h)
			if err != nil {
				return err
			}
			if _, err := io.WriteString(f, data); err != nil {
				return err
			}
		}
		return nil
	})
}

// zEntry is an entry of zipEntries: the comment is its content.
func zEntry(name, data string, mode fs.FileMode) zip.FileHeader {
	h := zip.FileHeader{Name: name, Comment: data, Method: zip.Deflate, Modified: stamp}
	h.SetMode(mode)
	return h
}

func TestZipArchives_F114_F115(t *testing.T) {
	good := zipEntries(t, zEntry("d/", "", fs.ModeDir|0o755), zEntry("d/run.sh", "#!/bin/sh\n", 0o755), zEntry("empty", "", 0o600), zEntry("d/l", "../empty", fs.ModeSymlink|0o777))
	dir, err := copyInputs(t, Input{Source: "zip:" + saved(t, good)})
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(dir, "workspace/d/run.sh")); err != nil || fi.Mode() != 0o755 || fi.Size() != 10 {
		t.Errorf("run.sh: %v %v", fi, err)
	}
	if l, err := os.Readlink(filepath.Join(dir, "workspace/d/l")); err != nil || l != "../empty" {
		t.Errorf("link %q, %v", l, err)
	}
	encrypted := bytes.Clone(good)
	for _, sig := range [][]byte{{'P', 'K', 3, 4}, {'P', 'K', 1, 2}} {
		i := bytes.Index(encrypted, sig)
		encrypted[i+6+2*int(3-sig[2])/2] |= 1
	}
	stored := zEntry("x", "as it is", 0o644)
	stored.Method = zip.Store
	corrupt := zipEntries(t, stored)
	corrupt[bytes.Index(corrupt, []byte("as it is"))] ^= 0xff
	for name, b := range map[string][]byte{
		"climbs":        zipEntries(t, zEntry("../x", "1", 0o644)),
		"absolute":      zipEntries(t, zEntry("/x", "1", 0o644)),
		"backslashes":   zipEntries(t, zEntry(`..\..\x`, "1", 0o644)),
		"a link out":    zipEntries(t, zEntry("l", "../../x", fs.ModeSymlink|0o777)),
		"behind a link": zipEntries(t, zEntry("d/", "", fs.ModeDir|0o755), zEntry("l", "d", fs.ModeSymlink|0o777), zEntry("l/x", "1", 0o644)),
		"twice":         zipEntries(t, zEntry("x", "1", 0o644), zEntry("x", "2", 0o644)),
		"set-id":        zipEntries(t, zEntry("x", "1", fs.ModeSetuid|0o755)),
		"a device":      zipEntries(t, zEntry("x", "", fs.ModeDevice|fs.ModeCharDevice|0o644)),
		"encrypted":     encrypted,
		"corrupt":       corrupt,
		"cut off":       good[:len(good)-30],
		"no zip at all": tarOf(t, tFile("a", "1")),
		"an empty file": nil,
	} {
		if _, err := planInputs([]Input{{Source: "zip:" + saved(t, b)}}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := planInputs([]Input{{Source: "zip:-"}}); err == nil || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("zip from standard input: %v", err)
	}
}
