package image

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Whoever sits between us and the registry, or is the registry, must not decide
// what runs under a digest.
func TestTamperedImagesAreRefused(t *testing.T) {
	h := newHub(t)
	img := testImage(t, runtime.GOARCH, testLayer(t, file("a", "1")))
	d := h.push(t, "app:1", img)
	idx := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})
	r, err := name.ParseReference(h.ref("index:1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(r, idx); err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	flip := func(part string) func(string, []byte) []byte {
		return func(path string, body []byte) []byte {
			if strings.Contains(path, part) && len(body) > 20 {
				body = bytes.Clone(body)
				body[len(body)/2] ^= 1
			}
			return body
		}
	}
	longer := func(part string) func(string, []byte) []byte {
		return func(path string, body []byte) []byte {
			if strings.Contains(path, part) {
				body = append(bytes.Clone(body), make([]byte, 1024)...)
			}
			return body
		}
	}
	spaced := func(path string, body []byte) []byte {
		if strings.Contains(path, "/manifests/") {
			body = append(bytes.Clone(body), ' ')
		}
		return body
	}
	for what, tc := range map[string]struct {
		ref    string
		change func(string, []byte) []byte
	}{
		"manifest": {"app@" + d, spaced},
		"index":    {"index@" + digest(t, idx), spaced},
		"manifest in an index": {"index:1", func(p string, b []byte) []byte {
			if strings.Contains(p, d) {
				return spaced(p, b)
			}
			return b
		}},
		"configuration":         {"app@" + d, flip("blobs/" + m.Config.Digest.String())},
		"layer":                 {"app@" + d, flip("blobs/" + m.Layers[0].Digest.String())},
		"layer with more to it": {"app@" + d, longer("blobs/" + m.Layers[0].Digest.String())},
		"layer by tag":          {"app:1", flip("blobs/" + m.Layers[0].Digest.String())},
	} {
		h.tamper(tc.change)
		s := newStore(t)
		t.Run(what, func(t *testing.T) { mustFail(t, s, h.ref(tc.ref), "") })
		h.tamper(nil)
		get(t, s, h.ref(tc.ref)) // positive control, and nothing bad was kept
	}
}

func TestADamagedCacheIsNotBelieved(t *testing.T) {
	h, s := newHub(t), newStore(t)
	img := testImage(t, runtime.GOARCH, testLayer(t, file("a", "1")))
	d := h.push(t, "app:1", img)
	get(t, s, h.ref("app@"+d)).Close()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, treesDir, m.Config.Digest.Hex)); err != nil {
		t.Fatal(err)
	}
	blob := s.blobPath(m.Layers[0].Digest)
	b, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(blob, b, 0o600); err != nil {
		t.Fatal(err)
	}
	mustFail(t, s, h.ref("app@"+d), "layer 1")
}

// The promise of a configuration about its layers is checked too: otherwise the
// same cached tree could stand for different content.
func TestContentMustBeWhatTheConfigurationSays(t *testing.T) {
	h := newHub(t)
	img := testImage(t, runtime.GOARCH, testLayer(t, file("a", "1")))
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	other := cfg.DeepCopy()
	other.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64)
	bad, err := mutate.ConfigFile(img, other)
	if err != nil {
		t.Fatal(err)
	}
	h.push(t, "bad:1", bad)
	mustFail(t, newStore(t), h.ref("bad:1"), "as promised")
	none := cfg.DeepCopy()
	none.RootFS.DiffIDs = nil
	if bad, err = mutate.ConfigFile(img, none); err != nil {
		t.Fatal(err)
	}
	h.push(t, "none:1", bad)
	mustFail(t, newStore(t), h.ref("none:1"), "configuration has 0 layers")
}

func TestManifestsThatAreNone(t *testing.T) {
	for what, doc := range map[string]string{
		"no JSON":                "{",
		"neither":                `{"schemaVersion":2}`,
		"both":                   `{"schemaVersion":2,"config":{"digest":"sha256:00","size":1},"manifests":[]}`,
		"a climbing digest":      `{"schemaVersion":2,"config":{"digest":"sha256:../../../../etc/passwd","size":1},"layers":[]}`,
		"a short digest":         `{"schemaVersion":2,"config":{"digest":"sha256:00","size":1},"layers":[]}`,
		"another algorithm":      `{"schemaVersion":2,"config":{"digest":"sha512:` + strings.Repeat("0", 128) + `","size":1},"layers":[]}`,
		"a negative size":        `{"schemaVersion":2,"config":{"digest":"sha256:` + strings.Repeat("0", 64) + `","size":-1},"layers":[]}`,
		"a monstrous document":   `{"schemaVersion":2,"config":{"digest":"sha256:` + strings.Repeat("0", 64) + `","size":99999999999},"layers":[]}`,
		"an index of nothing":    `{"schemaVersion":2,"manifests":[]}`,
		"schema 1, the old form": `{"schemaVersion":1,"fsLayers":[]}`,
	} {
		h := newHub(t)
		h.tamper(func(path string, body []byte) []byte {
			if strings.Contains(path, "/manifests/") {
				return []byte(doc)
			}
			return body
		})
		h.push(t, "app:1", testImage(t, runtime.GOARCH, testLayer(t, file("a", "1"))))
		t.Run(what, func(t *testing.T) { mustFail(t, newStore(t), h.ref("app:1"), "") })
	}
}

func TestClearTextToAnotherMachineIsRefused(t *testing.T) {
	tr := newTransport(nil)
	for host, refused := range map[string]bool{"registry.local": true, "10.0.0.1": true, "192.168.1.1:5000": true, "[2001:db8::1]:5000": true, "localhost.example": true} {
		req := httptest.NewRequest(http.MethodGet, "http://"+host+"/v2/", nil)
		resp, err := tr.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		if got := err != nil && strings.Contains(err.Error(), errClearText.Error()); got != refused {
			t.Errorf("%s: %v", host, err)
		}
	}
	srv := httptest.NewServer(http.NotFoundHandler()) // positive control
	defer srv.Close()
	resp, err := tr.RoundTrip(httptest.NewRequest(http.MethodGet, srv.URL, nil))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

func TestADigestIsAFileNameAndNothingElse(t *testing.T) {
	good := strings.Repeat("0a", 32)
	for _, h := range []v1.Hash{{Algorithm: "sha256", Hex: "../x"}, {Algorithm: "sha256"}, {Algorithm: "sha256", Hex: good[2:]}, {Algorithm: "sha512", Hex: good}, {Algorithm: "sha256", Hex: good + "/x"}} {
		if valid(h) == nil {
			t.Errorf("%+v is taken for a digest", h)
		}
	}
	if err := valid(v1.Hash{Algorithm: "sha256", Hex: good}); err != nil {
		t.Error(err)
	}
}
