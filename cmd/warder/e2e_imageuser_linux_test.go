package main

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// imageOfUser is a layout of the test image, with accounts, that asks for this user.
func imageOfUser(t *testing.T, user string) string {
	t.Helper()
	img, err := mutate.AppendLayers(testImage(t), layerOf(t, func(w *tar.Writer) {
		addFile(t, w, "etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\napp:x:1001:50::/app:/bin/sh\n")
		addFile(t, w, "etc/group", 0o644, "root:x:0:\nstaff:x:50:\naudio:x:29:app,root\nvideo:x:44:app\n")
		b, err := os.ReadFile(toolFiles(t, "chgrp")["bin/chgrp"])
		if err != nil {
			t.Fatal(err)
		}
		addFile(t, w, "bin/chgrp", 0o755, string(b))
	}))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.Config.User, cfg.Config.Entrypoint = user, nil
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
	return "oci:" + dir
}

// TestE2ETheImagesUser: its uid, its gid and its groups are those of the task, of what
// it is given and of what it makes. An ordinary user has one id to give.
func TestE2ETheImagesUser(t *testing.T) {
	l := newLab(t)
	l.write("in.txt", "in")
	script := `id; touch /workspace/x /out/x /tmp/x || exit 9
		stat -c %u:%g /workspace /workspace/in.txt /workspace/x /out /out/x /tmp/x "$PWD"
		chgrp 29 /tmp/x 2>/dev/null; stat -c 'tmp %g' /tmp/x; chgrp 29 /workspace/x 2>/dev/null; stat -c 'workspace %g' /workspace/x`
	for _, c := range []struct{ user, flag, id, owner, tmp, workspace string }{
		{"app", "", "uid=1001(app) gid=50(staff) groups=50(staff),29(audio),44(video)", "1001:50", "29", "50"},
		{"1001", "", "uid=1001(app) gid=50(staff) groups=50(staff),29(audio),44(video)", "1001:50", "29", "50"},
		{"app:video", "", "uid=1001(app) gid=44(video) groups=44(video)", "1001:44", "44", "44"},
		{"1234:777", "", "uid=1234(task) gid=777(task) groups=777(task)", "1234:777", "777", "777"},
		{"1234:0", "", "uid=1234(task) gid=0(root) groups=0(root)", "1234:0", "0", "0"},
		{"root:staff", "", "uid=0(root) gid=50(staff) groups=50(staff)", "0:50", "50", "50"},
		{"root", "", "uid=0(root) gid=0(root) groups=0(root),29(audio)", "0:0", "29", "0"},
		{"app:nobody", "", "uid=1000(task) gid=1000(task) groups=1000(task)", "1000:1000", "1000", "1000"},
		{"app", "1234:44", "uid=1234(task) gid=44(video) groups=44(video)", "1234:44", "44", "44"},
		{"app", "root", "uid=0(root) gid=0(root) groups=0(root)", "0:0", "0", "0"},
	} {
		if ordinary := os.Geteuid() != 0; ordinary && c.flag == "1234:44" {
			o := l.warder("run", "--image", imageOfUser(t, c.user), "--user", c.flag, "--", "id")
			l.mustHold(o, 125, "not mapped into the sandbox: an ordinary user has one id there")
			continue
		} else if ordinary && c.user != "root" {
			c.id, c.owner, c.tmp, c.workspace = "uid=0(root) gid=0(root) groups=0(root)", "0:0", "0", "0"
		}
		o := l.warder("run", "--image", imageOfUser(t, c.user), "--user", c.flag, "--input", "in.txt:/workspace/in.txt", "--", "/bin/sh", "-c", script)
		want := c.id + "\n" + strings.Repeat(c.owner+"\n", 7) + "tmp " + c.tmp + "\nworkspace " + c.workspace + "\n"
		if o.code != 0 || o.stdout != want {
			t.Errorf("user %q, --user %q: exit %d, %s\n%s\nwant\n%s", c.user, c.flag, o.code, o.stderr, o.stdout, want)
		}
	}
	l.mustBeComplete()
}

// TestE2EUserAndGroup: without an image too, and as the owner of what comes out.
func TestE2EUserAndGroup(t *testing.T) {
	l := newLab(t)
	for user, want := range map[string]string{"1234:50": "uid=1234(task) gid=50(task) groups=50(task)\n1234:50\n", "1234:0": "uid=1234(task) gid=0(root) groups=0(root)\n1234:0\n", "0:0": "uid=0(root) gid=0(root) groups=0(root)\n0:0\n"} {
		o := l.sh("id; touch /out/x && stat -c %u:%g /out/x", "--user", user, "--artifact", "/out/x")
		if os.Geteuid() != 0 && user != "0:0" {
			l.mustHold(o, 125, "not mapped into the sandbox: an ordinary user has one id there")
		} else if o.code != 0 || o.stdout != want {
			t.Errorf("%s: exit %d\n%s%s", user, o.code, o.stdout, o.stderr)
		}
	}
	l.mustHold(l.sh("id", "--user", "0:staff"), 125, "the group is no number; hint: ")
}
