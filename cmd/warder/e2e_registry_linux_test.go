package main

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A login of the tests' registry. The second is what htpasswd -B makes of the
// password, with the smallest cost.
const (
	registryCanary = "S3CR3T-CANARY-registry-password"
	registryUsers  = "puller:$2y$04$ytveatSpghbnp8TIXM7vB.uAvC83SsxFgYHWp9zU/TyPXxGi8Up3e\n"
)

// dockerRegistry is Debian's docker-registry (CNCF Distribution) on loopback, with
// its storage in the returned folder; locked, it wants a login.
func dockerRegistry(t *testing.T, locked bool) (host, storage string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host = ln.Addr().String()
	ln.Close()
	dir := t.TempDir()
	storage = filepath.Join(dir, "storage")
	conf := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", storage, host)
	if locked {
		users := filepath.Join(dir, "htpasswd")
		if err := os.WriteFile(users, []byte(registryUsers), 0o600); err != nil {
			t.Fatal(err)
		}
		conf += fmt.Sprintf("auth: {htpasswd: {realm: tests, path: %s}}\n", users)
	}
	file := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("docker-registry", "serve", file)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(time.Minute); ; {
		resp, err := http.Get("http://" + host + "/v2/")
		if err == nil {
			resp.Body.Close()
			return host, storage
		}
		if time.Now().After(deadline) {
			t.Fatalf("docker-registry: %v", err)
		}
		time.Sleep(10 * time.Millisecond) // another process opens its port
	}
}

// pushImage puts the test image there as team/app:1, and as an index team/app:many.
func pushImage(t *testing.T, host string, opts ...remote.Option) (image v1.Image, index v1.ImageIndex) {
	t.Helper()
	image = testImage(t)
	index = mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	parse := func(ref string) name.Reference {
		r, err := name.ParseReference(host + "/team/app:" + ref)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := remote.Write(parse("1"), image, opts...); err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(parse("many"), index, opts...); err != nil {
		t.Fatal(err)
	}
	return image, index
}

// TestE2ERegistryOfOthers: an image from a registry that somebody else wrote runs;
// what is changed in the registry's storage is refused, by digest and by tag.
func TestE2ERegistryOfOthers(t *testing.T) {
	l := newLab(t)
	host, storage := dockerRegistry(t, false)
	img, idx := pushImage(t, host)
	ref := host + "/team/app"
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	indexDigest, err := idx.Digest()
	if err != nil {
		t.Fatal(err)
	}
	cat := []string{"--", "sh", "-c", "cat /etc/image-release"}
	run := func(reference string) outcomeOf {
		if err := os.RemoveAll(filepath.Join(l.dir, "cache")); err != nil {
			t.Fatal(err)
		}
		return l.warder(append([]string{"run", "--image", reference}, cat...)...)
	}
	pinned, pinnedIndex := ref+"@"+digestOf(t, img), ref+"@"+indexDigest.String()
	for _, r := range []string{ref + ":1", ref + ":many", pinned, pinnedIndex} {
		l.mustHold(run(r), 0, "an image of the tests")
	}
	for what, tc := range map[string]struct {
		digest string
		refs   []string
	}{
		"layer":         {m.Layers[0].Digest.Hex, []string{ref + ":1", pinned}},
		"configuration": {m.Config.Digest.Hex, []string{pinned}},
		"manifest":      {strings.TrimPrefix(digestOf(t, img), "sha256:"), []string{pinned, ref + ":many"}},
		"index":         {indexDigest.Hex, []string{pinnedIndex}},
	} {
		blob := filepath.Join(storage, "docker/registry/v2/blobs/sha256", tc.digest[:2], tc.digest, "data")
		whole, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		changed := append([]byte{}, whole...)
		if what == "layer" {
			changed[len(changed)/2] ^= 1
		} else { // still the JSON that the registry can read
			changed = append(changed[:len(changed)-1], " }"...)
		}
		if err := os.WriteFile(blob, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, r := range tc.refs {
			if o := run(r); o.code != 125 || strings.Contains(o.stdout, "an image of the tests") {
				t.Errorf("changed %s, %s: exit %d: %s%s", what, r, o.code, o.stdout, o.stderr)
			}
		}
		if err := os.WriteFile(blob, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		l.mustHold(run(tc.refs[0]), 0, "an image of the tests")
	}
	l.mustHold(run(ref+":absent"), 125, "manifest unknown")
	l.mustHold(run(strings.TrimSuffix(pinned, pinned[len(pinned)-4:])+"0000"), 125, "manifest unknown")
	l.mustBeComplete()
}

// TestE2ERegistryLogin: the caller's own login opens a locked registry, and is
// nowhere that the task or the log's reader can look.
func TestE2ERegistryLogin_I2(t *testing.T) {
	l := newLab(t)
	host, _ := dockerRegistry(t, true)
	pushImage(t, host, remote.WithAuth(&authn.Basic{Username: "puller", Password: registryCanary}))
	look := `cat /etc/image-release; env; for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline; do cat $f; done; ls -laR /workspace /root /out; cat /root/.docker/config.json 2>&1; exit 0`
	args := []string{"run", "--image", host + "/team/app:1", "--", "sh", "-c", look}
	l.mustHold(l.warder(args...), 125, "hint: docker login "+host)
	if err := os.Mkdir(filepath.Join(l.dir, ".docker"), 0o700); err != nil {
		t.Fatal(err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte("puller:" + registryCanary))
	l.write(".docker/config.json", fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, auth))
	o := l.warder(args...)
	l.mustHold(o, 0, "an image of the tests")
	log, err := exec.Command("cat", globFiles(t, filepath.Join(l.dir, "audit/streams/*/*.jsonl"))...).Output()
	if err != nil || len(log) == 0 {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"output": o.stdout + o.stderr, "log": string(log)} {
		if strings.Contains(text, registryCanary) || strings.Contains(text, auth) {
			t.Errorf("the login is in the %s", where)
		}
	}
	l.mustBeComplete()
}

func globFiles(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: %v, %v", pattern, names, err)
	}
	return names
}
