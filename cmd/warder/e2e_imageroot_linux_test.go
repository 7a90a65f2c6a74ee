package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// rootFiles are the tools and a Python with what escape imports: path inside to
// path here.
func rootFiles(t testing.TB) map[string]string {
	t.Helper()
	files := toolFiles(t, append(tools, "/usr/bin/python3", "mkdir", "mount", "umount", "chroot", "unshare", "mknod")...)
	out, err := exec.Command("/usr/bin/python3", "-c", "import socket, struct, os, sys, time\nfor m in sys.modules.values():\n  if getattr(m, '__file__', None): print(m.__file__)").Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.Lines(string(out)) {
		p = strings.TrimSpace(p)
		files[strings.TrimPrefix(p, "/")] = p
	}
	return files
}

// rootFolder has the same as a folder, with a set-id shell.
func rootFolder(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tree")
	for name, from := range rootFiles(t) {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		copyFile(t, from, filepath.Join(dir, name))
	}
	copyFile(t, "/bin/sh", filepath.Join(dir, "bin/rootsh"))
	for p, mode := range map[string]os.FileMode{"bin/rootsh": 0o755 | os.ModeSetuid | os.ModeSetgid, ".": 0o755} {
		if err := os.Chmod(filepath.Join(dir, p), mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// rootLayout is a layout whose image has them, wants to run as root, and brings
// set-id copies of the shell.
func rootLayout(t testing.TB) string {
	t.Helper()
	files := rootFiles(t)
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

// attempts is what root of a machine could do, and root of a sandbox cannot. gVisor
// takes priorities and /proc/sysrq-trigger without doing anything, so they are not here.
const attempts = `
import os, socket, time
worked = []
def attempt(what, f):
    try: f(); worked.append(what)
    except (OSError, AttributeError) as e: pass
def sh(c): return lambda: (_ for _ in ()).throw(OSError(c)) if os.system(c + " >/dev/null 2>&1") else None
attempt("mount", sh("mount -t tmpfs x /mnt")); attempt("bind", sh("mount --bind / /workspace")); attempt("proc", sh("mount -t proc x /tmp"))
attempt("umount", sh("umount /workspace")); attempt("remount", sh("mount -o remount,rw /")); attempt("chroot", lambda: os.chroot("/tmp"))
attempt("mount namespace", sh("unshare -m true")); attempt("network namespace", sh("unshare -n true")); attempt("pid namespace", sh("unshare -p true"))
attempt("device", lambda: os.mknod("/tmp/mem", 0o20666, os.makedev(1, 1))); attempt("block device", lambda: os.mknod("/tmp/vda", 0o60666, os.makedev(254, 0)))
attempt("setuid", lambda: os.setuid(1)); attempt("setgid", lambda: os.setgid(1)); attempt("groups", lambda: os.setgroups([0, 1]))
attempt("chown", lambda: os.chown("/tmp", 1, 1)); attempt("host name", lambda: socket.sethostname("x")); attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)); attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3))
attempt("netlink address", sh("ip addr add 10.9.9.9/8 dev eth0"))
for f in ("/dev/mem", "/dev/kmem", "/dev/kmsg", "/dev/vda", "/dev/kvm", "/proc/kcore", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/sys/kernel/uevent_helper"):
    attempt("write " + f, lambda: os.close(os.open(f, os.O_WRONLY)))
print("worked:", worked)
print([l.split()[1] for l in open("/proc/self/status") if l.startswith("Cap")])
`

// rootKind is a kind of root file system, with a task that is root in it.
type rootKind struct {
	name  string
	flags []string
}

// rootKinds are all of them.
func (l *lab) rootKinds() []rootKind {
	l.t.Helper()
	folder := rootFolder(l.t)
	image := filepath.Join(l.t.TempDir(), "image.erofs")
	if out, err := exec.Command("mkfs.erofs", "-E", "noinline_data", "--all-root", image, folder).CombinedOutput(); err != nil {
		l.t.Fatalf("mkfs.erofs: %v: %s", err, out)
	}
	return []rootKind{
		{"curated", []string{"--user", "root"}},
		{"oci", []string{"--image", "oci:" + rootLayout(l.t)}}, // whose user is root
		{"dir", []string{"--image", "dir:" + folder, "--user", "root"}},
		{"erofs", []string{"--image", "erofs:" + image, "--user", "root"}},
	}
}

// TestE2EImagesRootIsConfined_F131: root of the sandbox, of every kind of root file
// system, sends no packet past the pipeline, has no capability, and gets none.
func TestE2EImagesRootIsConfined_F131(t *testing.T) { // I1
	l := newLab(t)
	s := startListeners(t)
	l.write("escape.py", escape)
	l.write("attempts.py", attempts)
	kinds := l.rootKinds()
	t.Run("as", func(t *testing.T) {
		for _, k := range kinds {
			kind, flags := k.name, k.flags
			t.Run(kind, func(t *testing.T) {
				t.Parallel() // most of it waits for answers that never come
				run := func(argv ...string) outcomeOf {
					return l.warder(slices.Concat([]string{"run", "--timeout", "2m", "--input", "escape.py", "--input", "attempts.py"}, flags, []string{"--"}, argv)...)
				}
				o := run("python3", "/workspace/escape.py", strings.Join(s.addrs, ","), fmt.Sprint(s.udp["4"]), fmt.Sprint(s.udp["6"]), fmt.Sprint(s.tcp["4"]), fmt.Sprint(s.tcp["6"]))
				if o.code != 0 || !strings.Contains(o.stdout, "tried ") || strings.Contains(o.stdout, "bound to a host address") {
					t.Fatalf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
				}
				if got := s.counts(); len(got) != 0 {
					t.Errorf("arrived at the host: %v", got)
				}
				zero := strings.TrimSuffix(strings.Repeat("'0000000000000000', ", 5), ", ")
				if o = run("python3", "/workspace/attempts.py"); o.code != 0 || o.stdout != "worked: []\n["+zero+"]\n" {
					t.Errorf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
				}
				l.mustHold(run("sh", "-c", "id -u; touch /root/mine && echo home is mine"), 0, "0\nhome is mine\n")
				if os.Geteuid() == 0 && kind != "curated" { // a set-id file of the image gives nothing
					l.mustHold(l.warder(slices.Concat([]string{"run"}, flags[:2], []string{"--user", "1000", "--", "rootsh", "-c", "id -u"})...), 0, "1000\n")
				}
			})
		}
	})
	controlListeners(t, s)
	l.mustBeComplete()
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
