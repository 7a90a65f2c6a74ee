package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"warder/audit"
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

// TestE2EWhatHasADigestIsRecordedByIt: an EROFS file by the SHA-256 of its bytes, which
// policy sees too; of a folder the record says that there is none.
func TestE2EWhatHasADigestIsRecordedByIt(t *testing.T) {
	l := newLab(t)
	file := erofsImage(t)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	l.write("policies/api.rego", `package warder.egress

# METADATA
# title: Only for one file
allow contains {"rule": "that-file"} if {
	input.request.host == "`+allowedHost+`"
	input.run.image_digest == "`+digest+`"
}
`)
	folder := rootFolder(t)
	fetch := []string{"--", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "https://" + allowedHost + "/v1/z"}
	for _, c := range []struct{ image, status, digest string }{
		{"erofs:" + file, "200", digest}, {"erofs:" + file, "200", digest}, {"dir:" + folder, "403", ""}, {"", "403", ""},
	} {
		before := len(l.records(nil))
		l.mustHold(l.warder(append([]string{"run", "--image", c.image}, fetch...)...), 0, c.status)
		starts := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunStart })
		name := c.image
		if name == "" {
			name = "host:curated"
		}
		last := starts[len(starts)-1]
		if len(l.records(nil)) == before || last.Run.ImageDigest != c.digest || last.Image != name || last.NoDigest != (c.digest == "") {
			t.Errorf("%s: the log says %q, %q, no digest %v", c.image, last.Image, last.Run.ImageDigest, last.NoDigest)
		}
	}
	l.mustBeComplete()
}

// TestE2EAnImageThatChangesMeanwhileIsRefused: after its digest was taken, and before
// the task starts.
func TestE2EAnImageThatChangesMeanwhileIsRefused(t *testing.T) {
	l := newLab(t)
	file := erofsImage(t)
	for try := range 10 {
		trace := filepath.Join(l.dir, "trace-changed-"+string(rune('a'+try)))
		cmd := l.command(t.Context(), "run", "--trace", trace, "--image", "erofs:"+file, "--user", "root", "--", "/bin/sh", "-c", "echo it ran")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		followTrace(t, trace, "spawned")
		if err := os.Chtimes(file, time.Time{}, time.Now()); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		switch code := cmd.ProcessState.ExitCode(); {
		case code == 125 && strings.Contains(out.String(), "it was changed while the run began") && !strings.Contains(out.String(), "it ran"):
			l.mustBeComplete()
			return
		case code != 0: // 0: the change came too late
			t.Fatalf("exit %d: %s", code, out.String())
		}
	}
	t.Error("a changed image was never noticed")
}
