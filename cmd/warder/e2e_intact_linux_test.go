package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// hashesBelow are the SHA-256 of the regular files below dir, by their names there.
func hashesBelow(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		out[rel] = hex.EncodeToString(sum.Sum(nil))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// oddTree is a folder with what archives and copies lose: long and strange names,
// modes, empty and sparse files, a relative link. It returns the links.
func oddTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	noise := make([]byte, 300<<10+7)
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < len(noise); i++ {
		noise[i] = byte(r.Uint32())
	}
	long := strings.Repeat("n", 180)
	for name, f := range map[string]struct {
		data []byte
		mode os.FileMode
	}{
		"run.sh": {[]byte("#!/bin/sh\n"), 0o755}, "empty": {nil, 0o644}, "large": {noise, 0o600}, "locked": {[]byte("read only"), 0o444},
		filepath.Join(long, long, long, long, "deep"): {[]byte("deep"), 0o640}, "öäü ☃": {[]byte("unicode"), 0o644}, "new\nline": {[]byte("newline"), 0o644},
		"-dash": {[]byte("dash"), 0o644}, "with:colon": {[]byte("colon"), 0o644}, "tail ": {[]byte("space"), 0o644},
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, f.data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, f.mode); err != nil {
			t.Fatal(err)
		}
	}
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer sparse.Close()
	for _, off := range []int64{0, 33 << 20, 64<<20 - 4} {
		if _, err := sparse.WriteAt([]byte("mark"), off); err != nil {
			t.Fatal(err)
		}
	}
	links := map[string]string{"link": "run.sh", long + "/up": "../large"}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return links
}

// What goes in is what the task sees, and what it leaves is what comes out, byte
// for byte and bit for bit; the receipt says the same.
func TestE2EWhatGoesInComesOut_F115_F116(t *testing.T) {
	l := newLab(t)
	src := filepath.Join(l.dir, "odd")
	links := oddTree(t, src)
	want := hashesBelow(t, src)
	script := `cd odd && find . -type f -exec sha256sum -z {} + | tr '\n\0' '\1\n' && find . -type l -printf '%P -> %l\n' && cp -a . /out/odd`
	r, o := l.json(script, "--memory", "1Gi", "--input", "odd", "--artifact", "/out", "--artifacts-dir", "got")
	if o.code != 0 {
		t.Fatalf("exit %d: %s", o.code, r.Stderr)
	}
	inside := map[string]string{}
	for line := range strings.Lines(r.Stdout) {
		line = strings.TrimSuffix(line, "\n")
		if sum, name, ok := strings.Cut(line, "  ./"); ok && len(sum) == 64 {
			inside[strings.ReplaceAll(name, "\x01", "\n")] = sum
		}
	}
	for name, to := range links {
		if !strings.Contains(r.Stdout, name+" -> "+to+"\n") {
			t.Errorf("the link %q is not there", name)
		}
	}
	outside := hashesBelow(t, filepath.Join(l.dir, "got/odd"))
	receipt, modes := map[string]string{}, map[string]string{}
	refused := 0
	for _, a := range r.Artifacts {
		if a.Refused != "" {
			refused++
			continue
		}
		receipt[strings.TrimPrefix(a.Path, "/out/odd/")] = a.SHA256
		modes[strings.TrimPrefix(a.Path, "/out/odd/")] = a.Mode
	}
	if len(want) < 10 || refused != len(links) {
		t.Errorf("%d files, %d refused", len(want), refused)
	}
	for name, sum := range want {
		if inside[name] != sum || outside[name] != sum || receipt[name] != sum {
			t.Errorf("%.40q: %.8s; inside %.8s, outside %.8s, receipt %.8s", name, sum, inside[name], outside[name], receipt[name])
		}
		a, err1 := os.Stat(filepath.Join(src, name))
		b, err2 := os.Stat(filepath.Join(l.dir, "got/odd", name))
		if err1 != nil || err2 != nil || a.Mode().Perm()&0o755 != b.Mode().Perm() {
			t.Errorf("%.40q: mode %v, came as %v", name, a.Mode(), b.Mode())
		} else if modes[name] != fmt.Sprintf("%04o", a.Mode().Perm()) {
			t.Errorf("%.40q: mode %v, receipt %q", name, a.Mode(), modes[name])
		}
	}
	l.mustBeComplete()
}

// A link that one run leaves decides nothing for the next: not what is copied in,
// not where results go, not whose a file is.
func TestE2ELinksThatARunLeaves_F112(t *testing.T) {
	l := newLab(t)
	victim := filepath.Join(l.dir, "victim")
	if err := os.Mkdir(victim, 0o700); err != nil {
		t.Fatal(err)
	}
	l.write("victim/key", canary)
	before, err := os.Stat(filepath.Join(victim, "key"))
	if err != nil {
		t.Fatal(err)
	}
	plant := fmt.Sprintf("ln -s %s /out/folder; ln -s %s/key /out/file; ln -s ../victim /out/up; echo fine >/out/fine", victim, victim)
	o := l.sh(plant, "--artifact", "/out", "--artifacts-dir", "work")
	l.mustHold(o, 0, "symbolic link")
	// A caller that copies links by other means.
	for name, to := range map[string]string{"folder": victim, "file": victim + "/key", "up": "../victim"} {
		if err := os.Symlink(to, filepath.Join(l.dir, "work", name)); err != nil {
			t.Fatal(err)
		}
	}
	l.mustHold(l.sh("cat /workspace/work/*", "--input", "work"), 125, "points outside")
	o = l.sh("mkdir -p /out/folder /out/up; echo spoiled | tee /out/folder/key /out/up/key /out/file", "--artifact", "/out", "--artifacts-dir", "work")
	got, err := os.ReadFile(filepath.Join(victim, "key"))
	after, err2 := os.Stat(filepath.Join(victim, "key"))
	if err != nil || err2 != nil || string(got) != canary || after.Mode() != before.Mode() || after.Sys().(*syscall.Stat_t).Uid != before.Sys().(*syscall.Stat_t).Uid {
		t.Errorf("the file behind the link: %q, %v, %v", got, after, err)
	}
	if entries, err := os.ReadDir(victim); err != nil || len(entries) != 1 {
		t.Errorf("the folder behind the link: %v, %v", entries, err)
	}
	if b, err := os.ReadFile(filepath.Join(l.dir, "work/file")); err != nil || string(b) != "spoiled\n" {
		t.Errorf("control: a link at a file's place is replaced: %q, %v; exit %d", b, err, o.code)
	}
	if strings.Contains(o.stdout+o.stderr, canary) {
		t.Error("the file was read")
	}
}

// One sandbox is one level of trust: no process in it can become another user, so
// there is nobody whose /proc files it might read (gVisor's checks are its own).
func TestE2EOneUserInASandbox_F119(t *testing.T) {
	l := newLab(t)
	script := `
import os
for what, f in {"setuid": lambda: os.setuid(1234), "setgid": lambda: os.setgid(1234), "setgroups": lambda: os.setgroups([1, 2]), "setresuid": lambda: os.setresuid(1234, 1234, 1234), "chown": lambda: os.chown("/workspace/x", 1234, 1234)}.items():
    try: f(); print(what, "worked")
    except OSError as e: print(what, "refused")
print(sorted({os.stat("/proc/" + p).st_uid for p in os.listdir("/proc") if p.isdigit()}))
`
	l.write("users.py", script)
	for _, user := range labUsers() {
		o := l.warder("run", "--user", user, "--input", "users.py", "--", "sh", "-c", "touch /workspace/x; sleep 5 & python3 users.py")
		if o.code != 0 || strings.Contains(o.stdout, "worked") || strings.Count(o.stdout, "refused") != 5 || !strings.HasSuffix(strings.TrimSpace(o.stdout), "]") || strings.Contains(o.stdout[strings.LastIndex(o.stdout, "["):], ",") {
			t.Errorf("user %s: exit %d\n%s%s", user, o.code, o.stdout, o.stderr)
		}
	}
}

// Whatever the root file system is, nothing of the host shows in it: environment,
// command line, mounts, descriptors, names.
func TestE2EImagesShowNothingOfTheHost_F118_F130(t *testing.T) {
	l := newLab(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "tree")
	for name, from := range toolFiles(t, tools...) {
		if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		copyFile(t, from, filepath.Join(folder, name))
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	look := `env; for f in /proc/cmdline /proc/mounts /proc/self/mountinfo /proc/self/cgroup /proc/sys/kernel/hostname /etc/resolv.conf /etc/hosts /proc/version; do echo "$f:"; cat $f 2>/dev/null; done; for p in /proc/[0-9]*; do cat $p/environ $p/cmdline; ls -l $p/cwd $p/root $p/exe; done 2>/dev/null; echo descriptors:; ls /proc/self/fd`
	for _, ref := range []string{"", "oci:" + rootLayout(t), "dir:" + folder, "erofs:" + erofsImage(t)} {
		for _, user := range labUsers() {
			args := []string{"run", "--user", user}
			if ref != "" {
				args = append(args, "--image", ref)
			}
			o := l.warder(append(args, "--", "/bin/sh", "-c", look)...)
			if o.code != 0 || !strings.Contains(o.stdout, "WARDER_RUN_ID=") || !strings.Contains(o.stdout, "nameserver 10.0.2.3") {
				t.Fatalf("%s: exit %d: %s%s", ref, o.code, o.stdout, o.stderr)
			}
			out := o.stdout
			if commonName(host) {
				host = "no such host name" // too common to look for
			}
			for _, secret := range []string{"HOST-ENVIRONMENT-CANARY", canary, host, l.dir, folder, "/var/cache", "/tmp/Test", "/run/root", "warder-helper"} {
				if strings.Contains(out, secret) {
					t.Errorf("%s, %s: %q shows: %s", ref, user, secret, excerpt(out, secret))
				}
			}
			_, fds, _ := strings.Cut(out, "descriptors:\n")
			if got := strings.Fields(fds); !slices.Equal(got, []string{"0", "1", "2", "3"}) { // 3 is ls's own
				t.Errorf("%s, %s: descriptors %v", ref, user, got)
			}
		}
	}
}

func excerpt(text, part string) string {
	i := strings.Index(text, part)
	return text[max(0, i-60):min(len(text), i+60)]
}

// The host's root cannot be the sandbox's: nothing named / or leading there is taken.
func TestE2EAHostsRootIsNoRoot_F116(t *testing.T) {
	l := newLab(t)
	for _, ref := range []string{"dir:/", "dir://", "dir:/usr/..", "dir:/proc/1/root"} {
		o := l.warder("run", "--image", ref, "--", "true")
		l.mustHold(o, 125, "hint:")
	}
	// A large read inside is whole: 3 MiB out of the root file system itself.
	out, err := exec.Command("sha256sum", "/usr/bin/git").Output()
	if err != nil {
		t.Fatal(err)
	}
	o := l.sh("sha256sum /usr/bin/git; cat /usr/bin/git | sha256sum")
	sum, _, _ := bytes.Cut(out, []byte(" "))
	if strings.Count(o.stdout, string(sum)) != 2 {
		t.Errorf("host %s, inside %s", sum, o.stdout)
	}
}

// commonName says of a host's name that it may stand anywhere, also where nothing of the
// host does.
func commonName(host string) bool {
	return len(host) < 4 || slices.Contains([]string{"sandbox", "localhost", "none", "root", "linux"}, host)
}
