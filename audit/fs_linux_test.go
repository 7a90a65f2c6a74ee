package audit

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// Long writes at any place, of any length, with memory in step with the file's blocks or
// not, leave the same bytes as short ones, and what stands around them.
func TestLongWritesArriveWhole(t *testing.T) {
	const size = 1 << 20
	random := rand.New(rand.NewPCG(1, 2))
	f, err := osFS{}.OpenFile(filepath.Join(t.TempDir(), "1.jsonl"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	no(t, err)
	defer f.Close()
	no(t, f.Allocate(size))
	want := make([]byte, size)
	for range 200 {
		off := random.IntN(size - 2*directLeast)
		g := group{shift: (off + random.IntN(2)) % blockSize} // in step, or off by one
		n := directLeast + random.IntN(directLeast)
		g.grow(n)
		b := g.buf[:n]
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		if aligned := blockOffset(b) == int64(off%blockSize); aligned != (g.shift == off%blockSize) {
			t.Fatalf("memory at %d of a block, for a place at %d: aligned %v", blockOffset(b), off%blockSize, aligned)
		}
		no(t, writeFull(f, b, int64(off)))
		copy(want[off:], b)
		off = random.IntN(size - 100) // through the page cache, beside it
		no(t, writeFull(f, b[:100], int64(off)))
		copy(want[off:], b[:100])
	}
	no(t, f.Datasync())
	got := make([]byte, size)
	_, err = f.ReadAt(got, 0)
	no(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the file does not hold what was written")
	}
}

// Whole blocks are taken past the page cache entirely, or, by a file system that has no
// such writes, not at all; the next write goes through it again.
func TestDirectWritesAreAllOrNothing(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	no(t, err)
	defer file.Close()
	g := group{}
	g.grow(2 * blockSize)
	n, err := writeDirect(file, g.buf[:2*blockSize], blockSize)
	if err != nil || n != 0 && n != 2*blockSize {
		t.Errorf("%d bytes, %v", n, err)
	}
	if _, err := file.WriteAt([]byte("odd"), 1); err != nil {
		t.Error(err)
	}
}

// TestIdentifyIsWhatStatSays: the same file by its name and by its descriptor; links,
// other files and what is not there are told from it.
func TestIdentifyIsWhatStatSays(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	h, err := osFS{}.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	open, err := idOf(h)
	if err != nil {
		t.Fatal(err)
	}
	if named, err := identify(name); err != nil || named != open {
		t.Errorf("%v by name, %v open, %v", named, open, err)
	}
	link, other := filepath.Join(dir, "link"), filepath.Join(dir, "other")
	if err := errors.Join(os.Symlink(name, link), os.WriteFile(other, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{link, other} {
		if id, err := identify(n); err != nil || id == open {
			t.Errorf("%s: %v, %v", filepath.Base(n), id, err)
		}
	}
	if _, err := identify(name + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
}
