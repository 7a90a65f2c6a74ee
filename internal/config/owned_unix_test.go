//go:build unix

package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// place makes DIR/inner/name with the given modes, whatever the umask is.
func placeFile(t *testing.T, dirMode, fileMode os.FileMode) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "inner")
	path := filepath.Join(dir, "secret")
	for _, err := range []error{
		os.Mkdir(dir, 0o700), os.WriteFile(path, []byte("v"), 0o600), os.Chmod(path, fileMode), os.Chmod(dir, dirMode),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func TestCheckOwnedJudgesFileAndFolder(t *testing.T) {
	for _, tc := range []struct {
		name      string
		dir, file os.FileMode
		want      string
	}{
		{"private", 0o700, 0o600, ""},
		{"readable by others", 0o755, 0o644, ""},
		{"file writable by the group", 0o700, 0o620, "writable by others"},
		{"file writable by others", 0o700, 0o602, "writable by others"},
		{"folder writable by the group", 0o770, 0o600, "writable by others"},
		{"folder writable by others", 0o707, 0o600, "writable by others"},
		{"sticky folder", 0o1777 | os.ModeSticky, 0o600, "writable by others"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := placeFile(t, tc.dir, tc.file)
			for op, err := range map[string]error{"CheckOwned": CheckOwned(path), "ReadOwned": second(ReadOwned(path, 10))} {
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("%s: %v, want %q", op, err, tc.want)
				}
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestCheckOwnedRefusesAnothersFile(t *testing.T) {
	path := placeFile(t, 0o700, 0o600)
	if _, err := checkOwned(path, os.Geteuid()); err != nil { // positive control
		t.Fatal(err)
	}
	if _, err := checkOwned(path, os.Geteuid()+1); err == nil || !strings.Contains(err.Error(), "belongs to uid") {
		t.Errorf("another's file: %v", err)
	}
}

func TestCheckOwnedJudgesBothEndsOfALink(t *testing.T) {
	good := placeFile(t, 0o700, 0o600)
	bad := placeFile(t, 0o777, 0o600)
	link := func(target string, mode os.FileMode) string {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "links")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, "l")); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, "l")
	}
	if data, err := ReadOwned(link(good, 0o700), 10); err != nil || string(data) != "v" {
		t.Errorf("a good link: %q, %v", data, err)
	}
	if err := CheckOwned(link(bad, 0o700)); err == nil {
		t.Error("a link into a folder that others can write was accepted")
	}
	if err := CheckOwned(link(good, 0o777)); err == nil {
		t.Error("a link that others can replace was accepted")
	}
	// Kubernetes mounts tokens behind a link in a folder that all may write to.
	sticky := link(good, 0o777|os.ModeSticky)
	if err := CheckOwned(sticky); err != nil {
		t.Errorf("the caller's own link in a sticky folder: %v", err)
	}
	if err := judgeLinkDir(sticky, filepath.Dir(sticky), os.Geteuid()+1); err == nil {
		t.Error("another's link in a sticky folder was accepted")
	}
}

func TestReadOwnedRefusesOtherThings(t *testing.T) {
	dir := filepath.Dir(placeFile(t, 0o700, 0o600))
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir, filepath.Join(dir, "missing")} {
		if _, err := ReadOwned(path, 10); err == nil {
			t.Errorf("%s was read", path)
		}
	}
	big := filepath.Join(dir, "secret")
	if _, err := ReadOwned(big, 0); err == nil || !strings.Contains(err.Error(), "larger than 0 bytes") {
		t.Errorf("limit: %v", err)
	}
}
