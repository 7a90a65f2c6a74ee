package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// erofsFile has the magic number of one, and text.
func erofsFile(t *testing.T, name, text string) string {
	t.Helper()
	b := make([]byte, erofsOffset+4)
	copy(b[erofsOffset:], "\xe2\xe1\xf5\xe0")
	b = append(b, text...)
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// A file is read once, whoever asks; a changed one, or another in its place, is read again.
func TestTheDigestOfAFile(t *testing.T) {
	s := newStore(t)
	s.settle = 0
	name := filepath.Join(t.TempDir(), "image")
	want := erofsFile(t, name, "one")
	img := get(t, s, "erofs:"+name)
	if img.Digest != want || img.Ref != "erofs:"+name {
		t.Fatalf("%s %s, want %s", img.Ref, img.Digest, want)
	}
	kept, err := filepath.Glob(filepath.Join(s.dir, digestsDir, "*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("kept: %v %v", kept, err)
	}
	b, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	planted := strings.Repeat("0", 64)
	put := func(text string) {
		if err := os.WriteFile(kept[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(strings.Replace(string(b), want[7:], planted, 1))
	if d := get(t, s, "erofs:"+name).Digest; d != "sha256:"+planted {
		t.Errorf("it was read again: %s", d)
	}
	for _, damaged := range []string{"", "x", string(b[:len(b)-1]), string(b) + "0", "0 0 0 sha256:" + planted} {
		put(damaged)
		if d := get(t, s, "erofs:"+name).Digest; d != want {
			t.Errorf("a damaged entry %q was believed: %s", damaged, d)
		}
	}
	put(strings.Replace(string(b), want[7:], planted, 1))
	if want = erofsFile(t, name, "two"); get(t, s, "erofs:"+name).Digest != want {
		t.Error("a changed file has its old digest")
	}
	if n, err := s.Prune(t.Context()); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, digestsDir)); !os.IsNotExist(err) {
		t.Errorf("after the removal of what nobody uses: %v", err)
	}
}

// What was just written may be written again within a tick of the clock.
func TestTheDigestOfAYoungFileIsNotKept(t *testing.T) {
	s := newStore(t)
	s.settle = time.Hour
	name := filepath.Join(t.TempDir(), "image")
	erofsFile(t, name, "one")
	get(t, s, "erofs:"+name)
	if kept, _ := filepath.Glob(filepath.Join(s.dir, digestsDir, "*")); len(kept) != 0 {
		t.Errorf("kept: %v", kept)
	}
}

// A file that is not what it was when its digest was taken is found.
func TestAChangedFileIsFound(t *testing.T) {
	s := newStore(t)
	dir := t.TempDir()
	name, other := filepath.Join(dir, "image"), filepath.Join(dir, "other")
	for what, change := range map[string]func() error{
		"written to": func() error { erofsFile(t, name, "two"); return nil },
		"replaced":   func() error { erofsFile(t, other, "one"); return os.Rename(other, name) },
		"set back":   func() error { return os.Chtimes(name, time.Time{}, time.Unix(1, 0)) },
		"removed":    func() error { return os.Remove(name) },
	} {
		erofsFile(t, name, "one")
		img := get(t, s, "erofs:"+name)
		if err := img.Unchanged(); err != nil {
			t.Errorf("control: %v", err)
		}
		time.Sleep(20 * time.Millisecond) // a tick of the clock of the file system
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := img.Unchanged(); !errors.Is(err, errChanged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := (*Image)(nil).Unchanged(); err != nil {
		t.Errorf("no image: %v", err)
	}
}

// A large file must not keep a run from being ended.
func TestTheReadingOfAFileIsCalledOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	name := filepath.Join(t.TempDir(), "image")
	erofsFile(t, name, "one")
	if _, err := newStore(t).Get(ctx, "erofs:"+name); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
