package main

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"warder/audit"
)

// tools are the host's programs that the images of the tests are made of.
var tools = []string{"sh", "cat", "id", "ls", "env", "pwd", "touch", "curl", "stat"}

// toolFiles returns the tools with the libraries they need: path inside to path here.
func toolFiles(t testing.TB, programs ...string) map[string]string {
	t.Helper()
	files := map[string]string{}
	lib := regexp.MustCompile(`(/\S+) \(0x`)
	for _, name := range programs {
		p, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		files["bin/"+filepath.Base(name)] = p
		out, err := exec.Command("ldd", p).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", p, err)
		}
		for _, m := range lib.FindAllStringSubmatch(string(out), -1) {
			files[strings.TrimPrefix(m[1], "/")] = m[1]
		}
	}
	return files
}

// layerOf makes a layer: headers with their content.
func layerOf(t *testing.T, fill func(w *tar.Writer)) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	fill(w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func addFile(t testing.TB, w *tar.Writer, name string, mode int64, data string) {
	t.Helper()
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, data); err != nil {
		t.Fatal(err)
	}
}

// testImage has the tools, no mount point, and a second layer that changes the first.
func testImage(t *testing.T) v1.Image {
	t.Helper()
	base := layerOf(t, func(w *tar.Writer) {
		for name, from := range toolFiles(t, tools...) {
			b, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			addFile(t, w, name, 0o755, string(b))
		}
		addFile(t, w, "etc/passwd", 0o600, "root:x:0:0::/root:/bin/sh\nimg:x:1000:1000::/home/img:/bin/sh\n")
		addFile(t, w, "etc/image-release", 0o600, "an image of the tests\n")
		addFile(t, w, "etc/gone", 0o644, "a lower layer has it\n")
		addFile(t, w, "etc/resolv.conf", 0o644, "nameserver 192.0.2.1\n")
		addFile(t, w, "bin/setuid", 0o4755, "#!/bin/sh\n")
	})
	top := layerOf(t, func(w *tar.Writer) { addFile(t, w, "etc/.wh.gone", 0, "") })
	img, err := mutate.AppendLayers(empty.Image, base, top)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", runtime.GOARCH
	cfg.Config = v1.Config{
		Env: []string{"FROM_IMAGE=yes", "SSL_CERT_FILE=/nowhere", "PATH=/usr/bin:/bin"}, WorkingDir: "/srv/app",
		Entrypoint: []string{"/bin/env", "ENTRY=1"}, Cmd: []string{"sh", "-c", "echo default command of the image"},
	}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		t.Fatal(err)
	}
	return img
}

// imageRegistry is a registry on loopback that holds the image as app:1.
func imageRegistry(t *testing.T, img v1.Image) (srv *httptest.Server, ref string) {
	t.Helper()
	srv = httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	ref = strings.TrimPrefix(srv.URL, "http://") + "/team/app:1"
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
	return srv, ref
}

func digestOf(t *testing.T, img v1.Image) string {
	t.Helper()
	h, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func TestE2EImageFromARegistry(t *testing.T) {
	l := newLab(t)
	img := testImage(t)
	srv, ref := imageRegistry(t, img)
	script := `cat /etc/image-release; test ! -e /etc/gone && echo hidden; echo $FROM_IMAGE $ENTRY $SSL_CERT_FILE; pwd; cat /etc/resolv.conf
		for d in /workspace /out /tmp /var/tmp /root; do touch $d/x 2>/dev/null && echo can write $d; done
		ls -d /proc/self /dev/null /sys/kernel >/dev/null && echo kernel folders
		test -u /bin/setuid || echo no set-id
		curl -sS https://` + allowedHost + `/v1/x`
	o := l.warder("run", "--image", ref, "--", "sh", "-c", script)
	want := []string{"an image of the tests", "hidden", "yes 1 /etc/ssl/certs/ca-certificates.crt", "/srv/app", "nameserver 10.0.2.3", "can write /workspace", "can write /out", "can write /tmp", "can write /var/tmp", "kernel folders", "no set-id", "answer to GET /v1/x"}
	for _, w := range want {
		if !strings.Contains(o.stdout, w) {
			t.Errorf("no %q in the output", w)
		}
	}
	if strings.Contains(o.stdout, "192.0.2.1") {
		t.Error("the image's resolver was used")
	}
	if o.code != 0 || t.Failed() {
		t.Fatalf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
	}
	starts := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunStart })
	if len(starts) != 1 || starts[0].Run.ImageDigest != digestOf(t, img) || starts[0].RunStart.Image != ref {
		t.Errorf("run.start does not name %s of %s", digestOf(t, img), ref)
	}
	l.mustHold(l.warder("run", "--image", ref), 0, "default command of the image")
	l.mustHold(l.warder("run", "--image", ref, "--entrypoint", "", "--", "/bin/sh", "-c", "echo entry:$ENTRY."), 0, "entry:.")
	srv.Close()
	pinned := strings.TrimSuffix(ref, ":1") + "@" + digestOf(t, img)
	l.mustHold(l.warder("run", "--image", pinned, "--", "cat", "/etc/image-release"), 0, "an image of the tests")
	l.mustHold(l.warder("run", "--image", ref, "--", "cat", "/etc/image-release"), 125, "connect") // a tag is asked for
}

// One run changes what it can of the image; the next must not see it.
func TestE2EImageIsTheSameForEveryRun(t *testing.T) {
	l := newLab(t)
	dir := filepath.Join(l.dir, "layout")
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(testImage(t)); err != nil {
		t.Fatal(err)
	}
	script := `ls /etc /bin /root /workspace; for f in /etc/mark /bin/mark /root/mark /mark /workspace/mark; do echo run >$f; done 2>/dev/null; echo x >>/etc/image-release; cat /etc/image-release; id -u`
	var outs []string
	for _, user := range []string{"", "root"} {
		for range 2 {
			o := l.warder("run", "--image", "oci:"+dir, "--user", user, "--entrypoint", "", "--", "/bin/sh", "-c", script)
			if o.code != 0 || strings.Contains(o.stdout, "mark") {
				t.Errorf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
			}
			outs = append(outs, o.stdout)
		}
	}
	if outs[0] != outs[1] || outs[2] != outs[3] {
		t.Errorf("a run sees another: %q", outs)
	}
}

func TestE2EImageFromFilesAndFolders(t *testing.T) {
	l := newLab(t)
	img := testImage(t)
	work := t.TempDir() // not the caller's home
	folder := filepath.Join(work, "tree")
	for name, from := range toolFiles(t, tools...) {
		if err := os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		copyFile(t, from, filepath.Join(folder, name))
	}
	if os.Geteuid() == 0 { // root's own folders of a test are closed to others; a root file system is not
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	docker := filepath.Join(work, "docker.tar")
	tag, err := name.NewTag("team/app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(docker, tag, img); err != nil {
		t.Fatal(err)
	}
	oci := filepath.Join(work, "layout")
	p, err := layout.Write(oci, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(work, "oci.tar")
	if out, err := exec.Command("tar", "-C", oci, "-cf", archive, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, ref := range []string{"dir:" + folder, "docker-archive:" + docker, "oci:" + oci, "oci-archive:" + archive} {
		o := l.warder("run", "--image", ref, "--entrypoint", "", "--workdir", "/workspace", "--", "/bin/sh", "-c", "touch /workspace/x /out/x /tmp/x && curl -sS https://"+allowedHost+"/v1/y")
		l.mustHold(o, 0, "answer to GET /v1/y")
	}
}

func TestE2EImageThatWouldShowTheHostIsRefused_F113(t *testing.T) {
	l := newLab(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/", "/etc/..", link, "/var/run", "/proc", "/proc/self/root", "/sys/kernel", "/etc", l.dir, filepath.Dir(l.dir)} {
		l.mustHold(l.warder("run", "--image", "dir:"+dir, "--", "/bin/true"), 125, "hint:")
	}
}

// Policy decides by what runs: the digest is known before the first request.
func TestE2EPolicySeesTheDigestOfTheImage(t *testing.T) {
	l := newLab(t)
	img := testImage(t)
	_, ref := imageRegistry(t, img)
	l.write("policies/api.rego", `package warder.egress

# METADATA
# title: Only for one image
allow contains {"rule": "that-image"} if {
	input.request.host == "`+allowedHost+`"
	input.run.image_digest == "`+digestOf(t, img)+`"
}
`)
	fetch := []string{"-sS", "-o", "/dev/null", "-w", "%{http_code}", "https://" + allowedHost + "/v1/z"}
	l.mustHold(l.warder(append([]string{"run", "--image", ref, "--", "curl"}, fetch...)...), 0, "200")
	l.mustHold(l.warder(append([]string{"run", "--", "curl"}, fetch...)...), 0, "403")
}

// A registry that never answers must not keep a run from being ended.
func TestE2EASignalEndsAPull(t *testing.T) {
	l := newLab(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	asked := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if first {
				close(asked)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := l.command(ctx, "run", "--image", ln.Addr().String()+"/app:1", "--", "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); ctx.Err() != nil || code != 130 {
		t.Errorf("exit %d, %v", code, ctx.Err())
	}
	l.mustBeComplete()
}
