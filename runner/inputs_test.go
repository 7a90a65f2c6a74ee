package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// copyInputs packs and unpacks and returns the folder that holds workspace/ and out/.
func copyInputs(t *testing.T, inputs ...Input) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"workspace", "out"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	plan, err := planInputs(inputs)
	if err != nil {
		return dir, err
	}
	var buf bytes.Buffer
	files, err := packInputs(context.Background(), &buf, plan)
	if err != nil {
		return dir, err
	}
	for _, f := range files {
		if len(f.SHA256) != 64 {
			t.Errorf("%s: no hash", f.Path)
		}
	}
	return dir, unpackInputs(&buf, dir, owner{uint32(os.Getuid()), uint32(os.Getgid())})
}

func write(t *testing.T, p, data string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p, mode); err != nil {
		t.Fatal(err)
	}
}

func TestInputsArriveIntact_F115(t *testing.T) {
	src := t.TempDir()
	long := strings.Repeat("n", 180)
	write(t, filepath.Join(src, "run.sh"), "#!/bin/sh\n", 0o755)
	write(t, filepath.Join(src, "empty"), "", 0o644)
	write(t, filepath.Join(src, "deep/er/"+long), strings.Repeat("x", 300<<10), 0o600)
	if err := os.Symlink("../run.sh", filepath.Join(src, "deep", "link")); err != nil {
		t.Fatal(err)
	}
	old := time.Unix(1700000000, 0)
	if err := os.Chtimes(filepath.Join(src, "empty"), old, old); err != nil {
		t.Fatal(err)
	}
	dir, err := copyInputs(t, Input{Source: src, Dest: "src"})
	if err != nil {
		t.Fatal(err)
	}
	got := filepath.Join(dir, "workspace", "src")
	if fi, err := os.Stat(filepath.Join(got, "run.sh")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("run.sh: %v %v", fi, err)
	}
	if fi, err := os.Stat(filepath.Join(got, "empty")); err != nil || fi.Size() != 0 || !fi.ModTime().Equal(old) {
		t.Errorf("empty: %v %v", fi, err)
	}
	b, err := os.ReadFile(filepath.Join(got, "deep/er", long))
	if sum := sha256.Sum256(b); err != nil || hex.EncodeToString(sum[:]) != hashOf(strings.Repeat("x", 300<<10)) {
		t.Errorf("long name: %d bytes, %v", len(b), err)
	}
	if l, err := os.Readlink(filepath.Join(got, "deep/link")); err != nil || l != "../run.sh" {
		t.Errorf("link: %q %v", l, err)
	}
}

func hashOf(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }

func TestInputDestinations(t *testing.T) {
	for _, c := range []struct {
		in   Input
		want string // "" means refused
	}{
		{Input{"/x/file.txt", ""}, "workspace/file.txt"},
		{Input{"/x/dir", ""}, "workspace/dir"},
		{Input{"/x/dir", "a/b"}, "workspace/a/b"},
		{Input{"/x/file.txt", "a/"}, "workspace/a/file.txt"},
		{Input{"/x/dir", "/workspace/q"}, "workspace/q"},
		{Input{"/x/dir", "/out/q"}, "out/q"},
		{Input{".", ""}, "workspace"},
		{Input{"/x/.", ""}, "workspace"},
		{Input{"/x/dir", "/etc"}, ""},
		{Input{"/x/dir", "/"}, ""},
		{Input{"/x/dir", "../up"}, ""},
		{Input{"/x/dir", "a/../../up"}, ""},
		{Input{"/x/dir", "/workspace/../etc"}, ""},
		{Input{"/x/dir", "/workspacex"}, ""},
	} {
		got, err := inputDest(c.in)
		if (err != nil) != (c.want == "") || got != c.want {
			t.Errorf("%+v: %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}

func TestUnsafeInputIsRefusedWhole_F112_F114(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"absolute link": func(d string) error { return os.Symlink("/etc/passwd", filepath.Join(d, "x")) },
		"leaving link":  func(d string) error { return os.Symlink("../../x", filepath.Join(d, "x")) },
		"fifo":          func(d string) error { return syscall.Mkfifo(filepath.Join(d, "x"), 0o600) },
		"socket": func(d string) error {
			l, err := net.Listen("unix", filepath.Join(d, "x"))
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := t.TempDir()
			write(t, filepath.Join(src, "a-good-file"), "good", 0o644)
			if err := spoil(src); err != nil {
				t.Fatal(err)
			}
			dir, err := copyInputs(t, Input{Source: src, Dest: "src"})
			if err == nil {
				t.Fatal("accepted")
			}
			if es, _ := os.ReadDir(filepath.Join(dir, "workspace")); len(es) != 0 {
				t.Errorf("%v was copied all the same", es)
			}
			// Positive control: without the bad entry it is copied.
			if err := os.Remove(filepath.Join(src, "x")); err != nil {
				t.Fatal(err)
			}
			if _, err := copyInputs(t, Input{Source: src, Dest: "src"}); err != nil {
				t.Errorf("control: %v", err)
			}
		})
	}
}

func TestMissingAndUnreadableInputs(t *testing.T) {
	_, err := copyInputs(t, Input{Source: filepath.Join(t.TempDir(), "absent")})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("absent: %v", err)
	}
	if _, err := copyInputs(t, Input{Source: "/dev/null"}); err == nil {
		t.Error("a device was accepted")
	}
	if _, err := ParseInput(":x"); err == nil {
		t.Error("an input without a source was accepted")
	}
}

func TestAFileGoesIntoTheWorkspace(t *testing.T) {
	src := filepath.Join(t.TempDir(), "a.txt")
	write(t, src, "a", 0o644)
	for dst, want := range map[string]string{
		"": "workspace/a.txt", ".": "workspace/a.txt", "/workspace": "workspace/a.txt", "/workspace/": "workspace/a.txt", "/out": "out/a.txt",
		"b": "workspace/b", "b/": "workspace/b/a.txt",
	} {
		dir, err := copyInputs(t, Input{src, dst})
		if err != nil {
			t.Errorf("%q: %v", dst, err)
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, want)); string(b) != "a" {
			t.Errorf("%q: %q, %v", dst, b, err)
		}
	}
}

// Between the judgement and the copy somebody else may put a link, a pipe or
// another folder in a file's place.
func TestAnInputThatIsSwappedIsNotRead_I2(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "S3CR3T-CANARY-inputs", 0o600)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, swap := range map[string]func(dir string){
		"nothing": func(string) {},
		"a link": func(dir string) {
			must(os.Remove(filepath.Join(dir, "sub/f")))
			must(os.Symlink(secret, filepath.Join(dir, "sub/f")))
		},
		"a pipe": func(dir string) {
			must(os.Remove(filepath.Join(dir, "sub/f")))
			must(syscall.Mkfifo(filepath.Join(dir, "sub/f"), 0o600))
		},
		"a folder above": func(dir string) {
			must(os.Rename(filepath.Join(dir, "sub"), filepath.Join(dir, "old")))
			other := t.TempDir()
			write(t, filepath.Join(other, "f"), "S3CR3T-CANARY-inputs", 0o600)
			must(os.Symlink(other, filepath.Join(dir, "sub")))
		},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "sub/f"), "harmless text of f..", 0o600)
		plan, err := planInputs([]Input{{dir, "in"}})
		if err != nil {
			t.Fatal(err)
		}
		swap(dir)
		var buf bytes.Buffer
		_, err = packInputs(context.Background(), &buf, plan)
		if (err == nil) != (name == "nothing") || strings.Contains(buf.String(), "CANARY") {
			t.Errorf("%s: error %v, canary sent: %v", name, err, strings.Contains(buf.String(), "CANARY"))
		}
	}
}
