package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseReference(t *testing.T) {
	d := "sha256:" + strings.Repeat("a", 64)
	for in, want := range map[string]string{
		"alpine":                     "index.docker.io/library/alpine:latest",
		"alpine:3":                   "index.docker.io/library/alpine:3",
		"registry.example:5000/a/b":  "registry.example:5000/a/b:latest",
		"registry.example/a@" + d:    "registry.example/a@" + d,
		"oci:/x/layout":              "oci:/x/layout",
		"oci:layout:tag":             "oci:layout:tag",
		"oci-archive:a.tar":          "oci-archive:a.tar",
		"docker-archive:/a.tar:n:1":  "docker-archive:/a.tar:n:1",
		"dir:/x/y":                   "dir:/x/y",
		"dir:with:colon":             "dir:with:colon",
		"erofs:/x/y:z":               "erofs:/x/y:z",
		"docker-archive:dir/a.tar:n": "docker-archive:dir/a.tar:n",
	} {
		r, err := ParseReference(in)
		if err != nil || r.String() != want {
			t.Errorf("%s: %s, %v; want %s", in, r, err, want)
		}
	}
	for _, in := range []string{"", "/x/layout", "./x", "../x", "oci:", "dir:", "dir", "erofs:", "UPPER", "a b", "a@sha256:00", "http://registry.example/a", "a:b:c"} {
		if r, err := ParseReference(in); err == nil {
			t.Errorf("%q was read as %s", in, r)
		} else if !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%q: no hint: %v", in, err)
		}
	}
}

// F113: nothing of the host by the back door, in both directions, by any spelling.
func TestFoldersThatShowTheHostAreRefused_F113(t *testing.T) {
	top := t.TempDir()
	ours := filepath.Join(top, "home", "state")
	tree := filepath.Join(top, "tree")
	for _, d := range []string{ours, tree} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	links := map[string]string{"root": "/", "up": "home", "proc": "/proc/self/root"}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(top, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := NewStore(Options{Dir: filepath.Join(top, "cache"), Protected: []string{ours}})
	for _, dir := range []string{"/", "//", "/usr/..", "/etc", "/proc", "/proc/self", "/proc/self/root", "/dev", "/sys/kernel", "/var/run", "/tmp", ours, filepath.Dir(ours), top, filepath.Join(top, "root"), filepath.Join(top, "up"), filepath.Join(top, "proc")} {
		if img, err := s.folder(dir); err == nil {
			t.Errorf("%s was accepted as %s", dir, img.Root)
		}
	}
	if _, err := s.folder(filepath.Join(top, "nothing")); err == nil {
		t.Error("a folder that does not exist was accepted")
	}
	if img, err := s.folder(tree); err != nil || img.Root != tree { // positive control
		t.Error(err)
	}
}
