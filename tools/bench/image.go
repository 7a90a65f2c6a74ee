package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// benchImage compares a run of a cached image with one of the host's own /usr.
func benchImage(o options) ([]startCell, error) {
	config := filepath.Join(o.dir, "image.yaml")
	if err := os.WriteFile(config, []byte("version: 1\naudit: {dir: ./image-audit}\n"), 0o600); err != nil {
		return nil, err
	}
	env := append(os.Environ(), "WARDER_STATE_DIR="+filepath.Join(o.dir, "state"), "WARDER_CACHE_DIR="+filepath.Join(o.dir, "cache"))
	image, err := imageRun(o, config, env)
	if err != nil {
		return nil, err
	}
	return interleave(o, []*variant{
		{name: "warder run", argv: []string{o.warder, "run", "--config", config, "--", trueCmd}, env: env},
		image,
	})
}

func imageRatios(cells []startCell) []ratio {
	if len(cells) != 2 || cells[0].WallMS == 0 || cells[0].CPUMS == 0 {
		return nil
	}
	return []ratio{
		{Name: "start to finish, wall: cached image / host's /usr", Value: cells[1].WallMS / cells[0].WallMS, Goal: "about 1"},
		{Name: "start to finish, CPU: cached image / host's /usr", Value: cells[1].CPUMS / cells[0].CPUMS, Goal: "about 1"},
	}
}

// imageRun is `warder run --image` by digest, of an image in a registry on
// loopback: the round that warms caches pulls it, those that count find it in the
// cache. Only /usr/bin/true and its libraries are in it.
func imageRun(o options, config string, env []string) (*variant, error) {
	layer, err := imageLayer()
	if err != nil {
		return nil, err
	}
	blobs := map[string][]byte{}
	put := func(b []byte) (digest string) {
		digest = fmt.Sprintf("sha256:%x", sha256.Sum256(b))
		blobs[digest] = b
		return digest
	}
	object := func(v any) []byte {
		b, _ := json.Marshal(v) // maps of strings and numbers
		return b
	}
	diff := put(layer)
	conf := object(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH, "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{diff}},
	})
	manifest := object(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": map[string]any{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": put(conf), "size": len(conf)},
		"layers": []any{map[string]any{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": diff, "size": len(layer)}},
	})
	digest := put(manifest)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, ok := blobs[path.Base(r.URL.Path)]
		if !ok && r.URL.Path != "/v2/" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		}
		_, _ = w.Write(b)
	}))
	ref := strings.TrimPrefix(srv.URL, "http://") + "/bench@" + digest // open until this process ends
	return &variant{name: "warder run --image", argv: []string{o.warder, "run", "--config", config, "--image", ref, "--", trueCmd}, env: env}, nil
}

// imageLayer is a tar archive of trueCmd and what the dynamic linker loads for it.
func imageLayer() ([]byte, error) {
	out, err := exec.Command("ldd", trueCmd).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd: %w", err)
	}
	files := []string{trueCmd}
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		files = append(files, m[1])
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(f, "/"), Mode: 0o755, Size: int64(len(b))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(b); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}
