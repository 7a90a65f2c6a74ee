package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	hubs "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	return NewStore(Options{Dir: filepath.Join(t.TempDir(), "cache")})
}

func testLayer(t *testing.T, entries ...entry) v1.Layer {
	t.Helper()
	raw := layerBytes(t, entries...)
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func testImage(t *testing.T, arch string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", arch
	cfg.Config.User, cfg.Config.WorkingDir, cfg.Config.Env = "img:staff", "srv", []string{"A=1", "broken", "=x"}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		t.Fatal(err)
	}
	return img
}

// hub is a registry on loopback that counts requests and can change answers.
type hub struct {
	*httptest.Server
	requests atomic.Int64
	mu       sync.Mutex
	change   func(path string, body []byte) []byte
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{}
	inner := hubs.New(hubs.Logger(log.New(io.Discard, "", 0)))
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.requests.Add(1)
		h.mu.Lock()
		change := h.change
		h.mu.Unlock()
		if change == nil || r.Method != http.MethodGet {
			inner.ServeHTTP(w, r)
			return
		}
		rec := httptest.NewRecorder()
		inner.ServeHTTP(rec, r)
		body := change(r.URL.Path, rec.Body.Bytes())
		for k, v := range rec.Header() {
			if k != "Content-Length" {
				w.Header()[k] = v
			}
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(body)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hub) ref(rest string) string { return strings.TrimPrefix(h.URL, "http://") + "/" + rest }

func (h *hub) tamper(f func(path string, body []byte) []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.change = f
}

func (h *hub) push(t *testing.T, ref string, img v1.Image) string {
	t.Helper()
	r, err := name.ParseReference(h.ref(ref))
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img); err != nil {
		t.Fatal(err)
	}
	return digest(t, img)
}

func digest(t *testing.T, x interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := x.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func get(t *testing.T, s *Store, ref string) *Image {
	t.Helper()
	img, err := s.Get(context.Background(), ref)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img
}

func mustFail(t *testing.T, s *Store, ref, why string) {
	t.Helper()
	img, err := s.Get(context.Background(), ref)
	if err == nil {
		img.Close()
		t.Errorf("%s was accepted, want %q", ref, why)
		return
	}
	if !strings.Contains(err.Error(), why) {
		t.Errorf("%s: %v, want %q", ref, err, why)
	}
	trees, _ := os.ReadDir(filepath.Join(s.dir, treesDir))
	if len(trees) != 0 {
		t.Errorf("%s: refused, but the cache has %v", ref, trees)
	}
}

func TestAnImageIsFetchedOnce(t *testing.T) {
	h, s := newHub(t), newStore(t)
	d := h.push(t, "team/app:1", testImage(t, runtime.GOARCH, testLayer(t, file("a", "1")), testLayer(t, file("b", "2"))))
	img := get(t, s, h.ref("team/app:1"))
	if img.Digest != d || img.Ref != h.ref("team/app:1") {
		t.Errorf("%s %s, want %s", img.Ref, img.Digest, d)
	}
	if got := listing(t, img.Root); strings.Join(got, " ") != "a=1 b=2" {
		t.Errorf("tree %q", got)
	}
	want := Config{User: "img:staff", Workdir: "/srv", Env: []string{"A=1"}}
	if img.Config.User != want.User || img.Config.Workdir != want.Workdir || strings.Join(img.Config.Env, " ") != "A=1" {
		t.Errorf("config %+v, want %+v", img.Config, want)
	}
	h.requests.Store(0)
	get(t, s, h.ref("team/app@"+d))
	if n := h.requests.Load(); n != 0 {
		t.Errorf("%d requests for what is in the cache", n)
	}
	get(t, s, h.ref("team/app:1"))
	if n := h.requests.Load(); n == 0 || n > 3 {
		t.Errorf("%d requests to ask what a tag is", n)
	}
}

func TestIndexChoosesTheImageForThisMachine(t *testing.T) {
	h, s := newHub(t), newStore(t)
	ours, other := testImage(t, runtime.GOARCH, testLayer(t, file("ours", ""))), testImage(t, "s390x", testLayer(t, file("other", "")))
	add := func(img v1.Image, arch string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}}
	}
	push := func(tag string, list ...mutate.IndexAddendum) v1.ImageIndex {
		idx := mutate.AppendManifests(empty.Index, list...)
		r, err := name.ParseReference(h.ref(tag))
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.WriteIndex(r, idx); err != nil {
			t.Fatal(err)
		}
		return idx
	}
	idx := push("multi:1", add(other, "s390x"), add(ours, runtime.GOARCH))
	img := get(t, s, h.ref("multi@"+digest(t, idx)))
	if img.Digest != digest(t, ours) || listing(t, img.Root)[0] != "ours=" {
		t.Errorf("%s, want %s", img.Digest, digest(t, ours))
	}
	push("foreign:1", add(other, "s390x"))
	mustFail(t, newStore(t), h.ref("foreign:1"), "no image for linux/"+runtime.GOARCH)
	h.push(t, "wrong:1", other)
	mustFail(t, newStore(t), h.ref("wrong:1"), "linux/s390x")
}

func TestEveryCompressionOfALayerIsRead(t *testing.T) {
	raw := layerBytes(t, file("a", "1"))
	var gz, zs bytes.Buffer
	g := gzip.NewWriter(&gz)
	_, _ = g.Write(raw)
	g.Close()
	z, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = z.Write(raw)
	z.Close()
	for what, b := range map[string][]byte{"none": raw, "gzip": gz.Bytes(), "zstd": zs.Bytes()} {
		r, err := decompress(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, raw) {
			t.Errorf("%s: %d bytes, %v", what, len(got), err)
		}
		r.Close()
	}
}

func TestConcurrentPullsMakeOneTree(t *testing.T) {
	h := newHub(t)
	d := h.push(t, "app:1", testImage(t, runtime.GOARCH, testLayer(t, file("a", strings.Repeat("x", 1<<20)))))
	dir := filepath.Join(t.TempDir(), "cache")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s := NewStore(Options{Dir: dir}) // as in another process: only the files are shared
			img, err := s.Get(context.Background(), h.ref("app@"+d))
			if err != nil {
				t.Error(err)
				return
			}
			defer img.Close()
			if fi, err := os.Stat(filepath.Join(img.Root, "a")); err != nil || fi.Size() != 1<<20 {
				t.Errorf("half a tree: %v", err)
			}
		})
	}
	wg.Wait()
	for _, sub := range []string{treesDir, blobsDir} {
		list, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if strings.Contains(e.Name(), "part") {
				t.Errorf("left over: %s", e.Name())
			}
		}
	}
}

func TestHalfATreeOfAKilledProcessIsMadeAnew(t *testing.T) {
	h, s := newHub(t), newStore(t)
	img := testImage(t, runtime.GOARCH, testLayer(t, file("a", "1")))
	d := h.push(t, "app:1", img)
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(s.dir, treesDir, m.Config.Digest.Hex+".part")
	if err := os.MkdirAll(filepath.Join(half, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := listing(t, get(t, s, h.ref("app@"+d)).Root); strings.Join(got, " ") != "a=1" {
		t.Errorf("tree %q", got)
	}
}

func TestLayoutNamesItsImages(t *testing.T) {
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	one, two := testImage(t, runtime.GOARCH, testLayer(t, file("one", ""))), testImage(t, runtime.GOARCH, testLayer(t, file("two", "")))
	if err := p.AppendImage(one, layout.WithAnnotations(map[string]string{refName: "first"})); err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	if img := get(t, s, "oci:"+dir); img.Digest != digest(t, one) {
		t.Errorf("%s, want %s", img.Digest, digest(t, one))
	}
	if err := p.AppendImage(two, layout.WithAnnotations(map[string]string{refName: "second"})); err != nil {
		t.Fatal(err)
	}
	if img := get(t, s, "oci:"+dir+":second"); img.Digest != digest(t, two) {
		t.Errorf("%s, want %s", img.Digest, digest(t, two))
	}
	mustFail(t, newStore(t), "oci:"+dir, "more than one image")
	mustFail(t, newStore(t), "oci:"+dir+":third", "no image")
	mustFail(t, newStore(t), "oci:"+t.TempDir(), "")
	// A blob that is not what its name says.
	m, err := one.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, "blobs", "sha256", m.Layers[0].Digest.Hex)
	if err := os.Chmod(blob, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blob, []byte("something else"), 0o644); err != nil {
		t.Fatal(err)
	}
	mustFail(t, newStore(t), "oci:"+dir+":first", "")
}

func TestTooManyLayers(t *testing.T) {
	h := newHub(t)
	h.push(t, "app:1", testImage(t, runtime.GOARCH, testLayer(t, file("a", "1")), testLayer(t, file("b", "1"))))
	s := newStore(t)
	s.limits.Layers = 1
	mustFail(t, s, h.ref("app:1"), "2 layers")
	s = newStore(t)
	s.limits.Blob = 10
	mustFail(t, s, h.ref("app:1"), "at most 10")
	s = newStore(t)
	s.limits.Document = 10
	mustFail(t, s, h.ref("app:1"), "larger than 10")
}

func TestPruneRemovesWhatNobodyUses(t *testing.T) {
	h, s := newHub(t), newStore(t)
	if n, err := s.Prune(t.Context()); n != 0 || err != nil {
		t.Errorf("without a cache: %d, %v", n, err)
	}
	used := h.push(t, "used:1", testImage(t, runtime.GOARCH, testLayer(t, file("a", "1"))))
	idle := h.push(t, "idle:1", testImage(t, runtime.GOARCH, testLayer(t, file("b", "1"))))
	img := get(t, s, h.ref("used@"+used))
	get(t, s, h.ref("idle@"+idle)).Close()
	if err := os.MkdirAll(filepath.Join(s.dir, treesDir, strings.Repeat("0", 64)+partSuffix, "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	if n, err := NewStore(Options{Dir: s.dir}).Prune(t.Context()); n != 1 || err != nil {
		t.Errorf("removed %d, %v; want 1", n, err)
	}
	if got := listing(t, img.Root); strings.Join(got, " ") != "a=1" {
		t.Errorf("the one in use: %q", got)
	}
	if trees, err := os.ReadDir(filepath.Join(s.dir, treesDir)); err != nil || len(trees) != 1 {
		t.Errorf("%v, %v", trees, err)
	}
	get(t, s, h.ref("idle@"+idle)) // it can be had again
	img.Close()
	if n, err := s.Prune(t.Context()); n != 1 || err != nil {
		t.Errorf("then removed %d, %v; want 1: the other is in use now", n, err)
	}
	// A fetch under way keeps everything where it is.
	lock, err := s.lockStore(t.Context(), unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Prune(ctx); err == nil {
		t.Error("images were removed beside a fetch")
	}
}
