package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// entry is one entry of a test's layer.
type entry struct {
	kind byte
	name string
	data string // content, or target of a link
	mode int64
}

func dir(name string) entry             { return entry{tar.TypeDir, name, "", 0o755} }
func file(name, data string) entry      { return entry{tar.TypeReg, name, data, 0o644} }
func link(name, target string) entry    { return entry{tar.TypeSymlink, name, target, 0o777} }
func hard(name, target string) entry    { return entry{tar.TypeLink, name, target, 0o644} }
func whiteout(dir, name string) entry   { return file(dir+"/.wh."+name, "") }
func special(kind byte, n string) entry { return entry{kind, n, "", 0o666} }

func layerBytes(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Typeflag: e.kind, Name: e.name, Mode: e.mode}
		switch e.kind {
		case tar.TypeReg:
			h.Size = int64(len(e.data))
		case tar.TypeSymlink, tar.TypeLink:
			h.Linkname = e.data
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.kind == tar.TypeReg {
			if _, err := w.Write([]byte(e.data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// apply unpacks layers below a fresh folder and returns it with the error.
func apply(t testing.TB, limits Limits, layers ...[]entry) (string, error) {
	t.Helper()
	top := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(top, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	u := &unpacker{root: root, limits: limits}
	for _, l := range layers {
		if err := u.layer(context.Background(), bytes.NewReader(layerBytes(t, l...))); err != nil {
			return top, err
		}
	}
	return top, nil
}

// listing is what a tree holds, one line each: "name", "name=content" or "name>target".
func listing(t testing.TB, top string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == top {
			return err
		}
		rel, _ := filepath.Rel(top, p)
		switch {
		case d.IsDir():
			out = append(out, rel+"/")
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			out = append(out, rel+">"+target)
		default:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			out = append(out, rel+"="+string(b))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLayersAreAppliedInOrder(t *testing.T) {
	for _, tc := range []struct {
		name   string
		layers [][]entry
		want   []string
	}{
		{"a later layer wins", [][]entry{{file("a", "1")}, {file("a", "2")}}, []string{"a=2"}},
		{"a whiteout hides", [][]entry{{dir("d"), file("d/a", "1"), file("d/b", "2")}, {whiteout("d", "a")}}, []string{"d/", "d/b=2"}},
		{"a whiteout hides a folder", [][]entry{{dir("d"), file("d/e/f/a", "1")}, {whiteout("d", "e")}}, []string{"d/"}},
		{"a whiteout hides a link, not its target", [][]entry{{file("a", "1"), link("l", "a")}, {file(".wh.l", "")}}, []string{"a=1"}},
		{"a whiteout of nothing", [][]entry{{file(".wh.x", "")}}, nil},
		{"an opaque whiteout hides lower layers only, wherever it stands", [][]entry{
			{file("d/a", "1"), file("d/s/b", "2")}, {dir("d"), file("d/c", "3"), file("d/s/n", "4"), file("d/.wh..wh..opq", "")},
		}, []string{"d/", "d/c=3", "d/s/", "d/s/n=4"}},
		{"a whiteout and its replacement in one layer", [][]entry{{file("d/a", "1")}, {whiteout("d", "a"), file("d/a", "2")}}, []string{"d/", "d/a=2"}},
		{"the same, the other way round", [][]entry{{file("d/a", "1")}, {file("d/a", "2"), whiteout("d", "a")}}, []string{"d/", "d/a=2"}},
		{"a file in place of a folder", [][]entry{{file("d/a", "1")}, {file("d", "2")}}, []string{"d=2"}},
		{"a folder in place of a file", [][]entry{{file("d", "1")}, {dir("d"), file("d/a", "2")}}, []string{"d/", "d/a=2"}},
		{"a folder in place of a link", [][]entry{{dir("x"), file("x/keep", "1"), link("d", "x")}, {dir("d"), file("d/a", "2")}}, []string{"d/", "d/a=2", "x/", "x/keep=1"}},
		{"below a link of a lower layer", [][]entry{{dir("usr/lib"), link("lib", "usr/lib")}, {file("lib/a", "1")}}, []string{"lib>usr/lib", "usr/", "usr/lib/", "usr/lib/a=1"}},
		{"below an absolute link of a lower layer: the tree's root", [][]entry{{dir("usr/lib"), link("lib", "/usr/lib")}, {file("lib/a", "1")}}, []string{"lib>/usr/lib", "usr/", "usr/lib/", "usr/lib/a=1"}},
		{"below a link that climbs: the tree's root", [][]entry{{dir("d"), link("d/up", "../../../..")}, {file("d/up/a", "1")}}, []string{"a=1", "d/", "d/up>../../../.."}},
		{"a hard link", [][]entry{{file("a", "1"), hard("d/b", "a")}}, []string{"a=1", "d/", "d/b=1"}},
		{"a hard link, absolute as some tools write it", [][]entry{{file("d/a", "1"), hard("b", "/d/a")}}, []string{"b=1", "d/", "d/a=1"}},
		{"a changed hard link leaves the other name alone", [][]entry{{file("a", "1"), hard("b", "a")}, {file("b", "2")}}, []string{"a=1", "b=2"}},
		{"a hard link to a link is that link", [][]entry{{link("l", "/etc/passwd"), hard("m", "l")}}, []string{"l>/etc/passwd", "m>/etc/passwd"}},
		{"odd spellings", [][]entry{{dir("./"), dir("./d/"), file("./d//a", "1"), file("/e", "2"), dir("./d/")}}, []string{"d/", "d/a=1", "e=2"}},
		{"no devices, no pipes", [][]entry{{special(tar.TypeChar, "c"), special(tar.TypeBlock, "b"), special(tar.TypeFifo, "p"), file("a", "1")}}, []string{"a=1"}},
	} {
		top, err := apply(t, DefaultLimits(), tc.layers...)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if got := listing(t, top); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// F114: what an image is made of must never reach outside of its tree.
func TestUnsafeLayersAreRefused_F114(t *testing.T) {
	for _, tc := range []struct {
		name   string
		layers [][]entry
		why    string
	}{
		{"a name that climbs", [][]entry{{file("../x", "1")}}, "leaves"},
		{"a name that climbs late", [][]entry{{file("a/b/../../../x", "1")}}, "leaves"},
		{"a folder that climbs", [][]entry{{dir("..")}}, "leaves"},
		{"a whiteout that climbs", [][]entry{{file("d/.wh...", "")}}, "not a whiteout"},
		{"a whiteout of the folder itself", [][]entry{{file("d/.wh..", "")}}, "not a whiteout"},
		{"a whiteout below a climbing name", [][]entry{{file("../.wh.x", "")}}, "leaves"},
		{"a hard link that climbs", [][]entry{{hard("a", "../x")}}, "leaves"},
		{"a hard link to a folder", [][]entry{{dir("d"), hard("a", "d")}}, "not a regular file"},
		{"a hard link to nothing", [][]entry{{hard("a", "nothing")}}, "no such file"},
		{"a hard link to itself", [][]entry{{file("b", ""), hard("a", "a")}}, "no such file"},
		{"written through a link of the same layer", [][]entry{{link("l", "/etc"), file("l/passwd", "1")}}, "same layer"},
		{"written through two", [][]entry{{dir("d"), link("d/l", ".."), file("d/l/x", "1")}}, "same layer"},
		{"twice, the second over a link", [][]entry{{link("a", "/etc/passwd"), file("a", "1")}}, "twice"},
		{"twice, a link over the first", [][]entry{{file("a", "1"), link("a", "/etc/passwd")}}, "twice"},
		{"twice, over a hard link", [][]entry{{file("b", ""), hard("a", "b"), file("a", "1")}}, "twice"},
		{"a file where a folder with content is", [][]entry{{file("d/a", "1"), file("d", "2")}}, "twice"},
		{"a folder where a file is", [][]entry{{file("d", "1"), dir("d")}}, "twice"},
		{"below a file", [][]entry{{file("d", "1"), file("d/a", "2")}}, "not a folder"},
		{"a loop of links", [][]entry{{link("a", "b"), link("b", "a")}, {file("a/x", "1")}}, "too many links"},
		{"the root as a file", [][]entry{{file(".", "1")}}, "root"},
		{"an unknown type", [][]entry{{special('7', "x")}}, "not supported"},
		{"a link to nothing", [][]entry{{link("a", "")}}, "not a link"},
		{"deeper than allowed", [][]entry{{file(strings.Repeat("d/", 300)+"a", "1")}}, "deeper"},
		{"a longer name than allowed", [][]entry{{file(strings.Repeat("n", 5000), "1")}}, "longer"},
	} {
		top, err := apply(t, DefaultLimits(), tc.layers...)
		if err == nil || !strings.Contains(err.Error(), tc.why) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.why)
		}
		around, rerr := os.ReadDir(filepath.Dir(top))
		if rerr != nil || len(around) != 1 {
			t.Errorf("%s: something was written outside of the tree: %v", tc.name, around)
		}
	}
}

func TestModesAreThoseOfAProgramOrOfData(t *testing.T) {
	top, err := apply(t, DefaultLimits(), []entry{
		{tar.TypeReg, "setuid", "x", 0o4755},
		{tar.TypeReg, "secret", "x", 0o600},
		{tar.TypeReg, "open", "x", 0o666},
		{tar.TypeReg, "program", "x", 0o700},
		{tar.TypeDir, "closed", "", 0},
		{tar.TypeDir, "everybody", "", 0o1777},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{
		"setuid": 0o755, "secret": 0o644, "open": 0o644, "program": 0o755,
		"closed": fs.ModeDir | 0o755, "everybody": fs.ModeDir | 0o755,
	} {
		if fi, err := os.Lstat(filepath.Join(top, name)); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, fi.Mode(), err, want)
		}
	}
}

func TestLimitsOfAnImage(t *testing.T) {
	many := []entry{file("a", "12345678"), file("b", "12345678")}
	limits := Limits{Entries: 2, Bytes: 16, Path: 10, Depth: 2}
	if _, err := apply(t, limits, many); err != nil {
		t.Fatalf("at the limits: %v", err) // positive control
	}
	for name, l := range map[string]Limits{
		"entries": {Entries: 1, Bytes: 16, Path: 10, Depth: 2},
		"bytes":   {Entries: 2, Bytes: 15, Path: 10, Depth: 2},
	} {
		if _, err := apply(t, l, many); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := apply(t, limits, many, []entry{file("c", "")}); err == nil {
		t.Error("entries are not counted over all layers")
	}
}

func TestACancelledPullStops(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	u := &unpacker{root: root, limits: DefaultLimits()}
	if err := u.layer(ctx, bytes.NewReader(layerBytes(t, file("a", "1")))); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// FuzzUnpack looks for a layer that writes outside of its tree, or leaves in it
// what a tree must not hold.
func FuzzUnpack(f *testing.F) {
	f.Add(layerBytes(f, dir("d"), file("d/a", "1"), link("l", "../.."), hard("h", "d/a"), whiteout("d", "a")))
	f.Add(layerBytes(f, link("l", "/"), file("l/x", "1")))
	f.Add(layerBytes(f, file("../x", "1")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		outer := t.TempDir()
		top := filepath.Join(outer, "tree")
		if err := os.Mkdir(top, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(top)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		u := &unpacker{root: root, limits: Limits{Entries: 100, Bytes: 1 << 20, Path: 200, Depth: 20}}
		for range 2 { // a second layer meets what the first left
			_ = u.layer(context.Background(), bytes.NewReader(raw)) // most are refused
		}
		if err := onlyTree(outer); err != nil {
			t.Error(err)
		}
	})
}

func onlyTree(outer string) error {
	list, err := os.ReadDir(outer)
	if err != nil || len(list) != 1 {
		return fmt.Errorf("beside the tree: %v, %w", list, err)
	}
	return filepath.WalkDir(filepath.Join(outer, "tree"), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		m := fi.Mode()
		if m&fs.ModeSymlink == 0 && (!m.IsRegular() && !m.IsDir() || m&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 || m&0o022 != 0) {
			return fmt.Errorf("%s: %v", p, m)
		}
		return nil
	})
}

func TestTheCallersUmaskDoesNotReachAnImage(t *testing.T) {
	old := syscall.Umask(0o077)
	top, err := apply(t, DefaultLimits(), []entry{file("implied/sub/f", "text"), dir("said")})
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"implied": 0o755, "implied/sub": 0o755, "said": 0o755, "implied/sub/f": 0o644} {
		if fi, err := os.Stat(filepath.Join(top, name)); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
	}
}
