package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// rootLayout is a layout whose image has the tools and a Python, wants to run as
// root, and brings set-id copies of the shell.
func rootLayout(t *testing.T) string {
	t.Helper()
	files := toolFiles(t, append(tools, "/usr/bin/python3")...)
	out, err := exec.Command("/usr/bin/python3", "-c", "import socket, struct, os, sys, time\nfor m in sys.modules.values():\n  if getattr(m, '__file__', None): print(m.__file__)").Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.Lines(string(out)) {
		p = strings.TrimSpace(p)
		files[strings.TrimPrefix(p, "/")] = p
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for name, from := range files {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		addFile(t, w, name, 0o755, string(b))
	}
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	addFile(t, w, "bin/rootsh", 0o6755, string(sh))
	addFile(t, w, "etc/shadow", 0o600, "root:S3CR3T-CANARY-of-the-image:::::::\n")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(buf.Bytes(), types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Config = "linux", runtime.GOARCH, v1.Config{User: "root", Env: []string{"PATH=/bin:/usr/bin"}}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestE2EImagesRootIsConfined: the user that an image names root is 0 inside,
// and no packet of it reaches the host either.
func TestE2EImagesRootIsConfined(t *testing.T) { // I1, F131
	l := newLab(t)
	ref := "oci:" + rootLayout(t)
	s := startListeners(t)
	l.write("escape.py", escape)
	o := l.warder("run", "--image", ref, "--timeout", "2m", "--input", "escape.py", "--", "python3", "/workspace/escape.py", strings.Join(s.addrs, ","),
		fmt.Sprint(s.udp["4"]), fmt.Sprint(s.udp["6"]), fmt.Sprint(s.tcp["4"]), fmt.Sprint(s.tcp["6"]))
	if o.code != 0 || !strings.Contains(o.stdout, "tried ") || strings.Contains(o.stdout, "bound to a host address") {
		t.Fatalf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
	}
	if got := s.counts(); len(got) != 0 {
		t.Errorf("arrived at the host: %v", got)
	}
	controlListeners(t, s)
	// Root it is, without a capability, and a set-id file gives none.
	o = l.warder("run", "--image", ref, "--", "sh", "-c", `id -u; grep() { while read -r a b; do case $a in Cap*) echo $a $b;; esac; done; }; grep </proc/self/status; rootsh -c 'id -u'
		mknod() { :; }; chroot / /bin/true 2>/dev/null && echo chroot works; mount -t tmpfs x /tmp 2>/dev/null && echo mount works; touch /root/mine && echo home is mine`)
	if o.code != 0 || strings.Count(o.stdout, "0000000000000000") != 5 || strings.Contains(o.stdout, "works") || !strings.HasPrefix(o.stdout, "0\n") || !strings.Contains(o.stdout, "home is mine") {
		t.Errorf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
	}
}

// The image's tree on the host belongs to the caller alone.
func TestE2EImageCacheIsTheCallersAlone(t *testing.T) {
	l := newLab(t)
	l.mustHold(l.warder("run", "--image", "oci:"+rootLayout(t), "--", "sh", "-c", "cat /etc/shadow"), 0, "S3CR3T-CANARY-of-the-image")
	fi, err := os.Stat(filepath.Join(l.dir, "cache", "images"))
	if err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi, err)
	}
	found := 0
	err = filepath.WalkDir(filepath.Join(l.dir, "cache"), func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err == nil && (fi.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 || fi.Mode()&os.ModeSymlink == 0 && fi.Mode().Perm()&0o022 != 0) {
			t.Errorf("%s: %v", p, fi.Mode())
		}
		found++
		return err
	})
	if err != nil || found < 20 {
		t.Errorf("%d files, %v", found, err)
	}
}
