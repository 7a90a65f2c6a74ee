package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// erofsImage makes an EROFS file of a folder with the tools (mkfs.erofs(1)).
func erofsImage(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "tree")
	for name, from := range toolFiles(t, tools...) {
		if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		copyFile(t, from, filepath.Join(folder, name))
	}
	for name, text := range map[string]string{
		"etc/image-release": "an EROFS image of the tests\n", "etc/passwd": "root:x:0:0::/root:/bin/sh\nimg:x:1000:1000::/:/bin/sh\n",
		"etc/resolv.conf": "nameserver 192.0.2.1\n", "root/.profile": "",
	} {
		p := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// A link where a mount point of ours goes decides nothing.
	if err := os.Symlink("etc", filepath.Join(folder, "workspace")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.erofs")
	if out, err := exec.Command("mkfs.erofs", "-E", "noinline_data", "--all-root", file, folder).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs: %v: %s", err, out)
	}
	return file
}

func TestE2EImageInErofs_F117(t *testing.T) {
	l := newLab(t)
	file := erofsImage(t)
	script := `cat /etc/image-release /etc/resolv.conf; pwd; ls /workspace; test ! -e /etc/mark && echo first
		for f in /etc/mark /workspace/x /out/x /tmp/x /var/tmp/x /root/x; do touch $f 2>/dev/null && echo can write $f; done; curl -sS https://` + allowedHost + `/v1/erofs`
	for range 2 { // the second run sees nothing of the first
		o := l.warder("run", "--image", "erofs:"+file, "--user", "root", "--", "/bin/sh", "-c", script)
		for _, want := range []string{"an EROFS image of the tests\nnameserver 10.0.2.3\n", "/workspace\nfirst\n", "can write /etc/mark\n", "can write /workspace/x\ncan write /out/x\ncan write /tmp/x\ncan write /var/tmp/x\ncan write /root/x\n", "answer to GET /v1/erofs"} {
			l.mustHold(o, 0, want)
		}
	}
	if os.Geteuid() == 0 {
		o := l.warder("run", "--image", "erofs:"+file, "--", "/bin/sh", "-c", "id -un; touch /etc/x 2>/dev/null || echo /etc is root\\'s; touch /workspace/x && echo done")
		l.mustHold(o, 0, "img\n/etc is root's\ndone\n")
	}
	l.mustBeComplete()
}

// What is not an EROFS image, or not a whole one, is refused, and the host is as before.
func TestE2EErofsThatIsNoneIsRefused(t *testing.T) {
	l := newLab(t)
	whole, err := os.ReadFile(erofsImage(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"text": []byte(strings.Repeat("no file system\n", 500)), "empty": nil, "cut in the superblock": whole[:1030],
		"superblock alone": whole[:4096], "garbage after the superblock": append(append([]byte{}, whole[:1152]...), []byte(strings.Repeat("\xff\x00\x7f", 50000))...),
	} {
		p := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(p, data, 0o644); err != nil {
			t.Fatal(err)
		}
		o := l.warder("run", "--image", "erofs:"+p, "--user", "root", "--", "/bin/sh", "-c", "echo it ran")
		if o.code < 125 || o.code > 127 || strings.Contains(o.stdout, "it ran") || !strings.Contains(o.stderr, "warder: ") {
			t.Errorf("%s: exit %d: %s%s", name, o.code, o.stdout, o.stderr)
		}
	}
	l.mustHold(l.warder("run", "--image", "erofs:"+t.TempDir(), "--", "true"), 125, "not a file")
	l.mustBeComplete()
}
