package interop

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func poolOf(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return pool
}

// registry is an npm registry with one package, which needs another.
func registry(t *testing.T) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	for name, deps := range map[string]map[string]string{"left": {"@scope/right": "^2.0.0"}, "@scope/right": {}} {
		version := map[string]string{"left": "1.0.0", "@scope/right": "2.1.0"}[name]
		manifest := map[string]any{"name": name, "version": version, "dependencies": deps, "main": "index.js"}
		text, err := json.Marshal(manifest)
		if err != nil {
			t.Fatal(err)
		}
		var tgz bytes.Buffer
		z := gzip.NewWriter(&tgz)
		w := tar.NewWriter(z)
		for file, body := range map[string]string{"package/package.json": string(text), "package/index.js": "module.exports = '" + name + "'"} {
			w.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(body))})
			io.WriteString(w, body)
		}
		w.Close()
		z.Close()
		sum := sha512.Sum512(tgz.Bytes())
		file := "/" + name + "/-/" + filepath.Base(name) + "-" + version + ".tgz"
		manifest["dist"] = map[string]string{"tarball": "https://registry.test" + file, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
		doc := map[string]any{"name": name, "dist-tags": map[string]string{"latest": version}, "versions": map[string]any{version: manifest}}
		mux.HandleFunc("GET "+file, func(rw http.ResponseWriter, _ *http.Request) { rw.Write(tgz.Bytes()) })
		serve := func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			json.NewEncoder(rw).Encode(doc)
		}
		mux.HandleFunc("GET /"+name, serve)
	}
	// A scoped name is asked for with its slash encoded.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.RawPath = ""
		mux.ServeHTTP(w, r)
	})
}

func TestNpmInstall_F034(t *testing.T) {
	a := newAuthority(t)
	l := newLab(t, labOptions{
		authority: a, upstreams: map[string]string{"registry.test": a.serve(t, registry(t), "registry.test")},
		policy: `allow contains {"rule": "npm", "encoded_slash": true} if {
	input.request.host == "registry.test"
	input.request.method == "GET"
}
`,
	})
	dir := t.TempDir()
	output(t, []string{"HOME=" + dir}, dir, "npm", "install", "left", "--registry=https://registry.test/", "--cafile="+l.caFile, "--https-proxy=http://"+l.explicit(),
		"--cache="+filepath.Join(dir, "cache"), "--userconfig="+filepath.Join(dir, "user"), "--globalconfig="+filepath.Join(dir, "global"), "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=http")
	for name, want := range map[string]string{"left": "'left'", "@scope/right": "'@scope/right'"} {
		if got, err := os.ReadFile(filepath.Join(dir, "node_modules", filepath.FromSlash(name), "index.js")); !strings.Contains(string(got), want) {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	seen := map[string]bool{}
	for _, r := range l.completed() {
		seen[r.Request.Path] = true
		if r.Verdict != "allow" {
			t.Errorf("record %+v %+v", r, r.Request)
		}
	}
	for _, path := range []string{"/left", "/left/-/left-1.0.0.tgz", "/@scope%2fright"} {
		if !seen[path] {
			t.Errorf("no record of %s: %v", path, seen)
		}
	}
}

// moduleProxy serves one module.
func moduleProxy(t *testing.T) http.Handler {
	t.Helper()
	const mod = "module example.test/M/hello\n\ngo 1.20\n"
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	for name, body := range map[string]string{"go.mod": mod, "hello.go": "package hello\n\nconst Word = \"hello\"\n"} {
		w, err := z.Create("example.test/M/hello@v1.2.3/" + name)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, body)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"list": "v1.2.3\n", "v1.2.3.info": `{"Version": "v1.2.3", "Time": "2026-01-01T00:00:00Z"}`, "v1.2.3.mod": mod, "v1.2.3.zip": archive.String(),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, ok := strings.CutPrefix(r.URL.Path, "/example.test/!m/hello/@v/") // upper case is escaped
		body, known := files[name]
		if !ok || !known {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, body)
	})
}

func TestGoModuleProxy(t *testing.T) {
	a := newAuthority(t)
	l := newLab(t, labOptions{authority: a, upstreams: map[string]string{"modules.test": a.serve(t, moduleProxy(t), "modules.test")}})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module m\n\ngo 1.20\n\nrequire example.test/M/hello v1.2.3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(dir, "cache")
	out := output(t, []string{
		"HOME=" + dir, "GOMODCACHE=" + cache, "GOCACHE=" + filepath.Join(dir, "build"), "GOPROXY=https://modules.test", "GOSUMDB=off", "GOTOOLCHAIN=local",
		"GOFLAGS=-mod=mod -modcacherw", "HTTPS_PROXY=http://" + l.explicit(), "SSL_CERT_FILE=" + l.caFile,
	}, dir, "go", "mod", "download", "-json", "example.test/M/hello@v1.2.3")
	if got, err := os.ReadFile(filepath.Join(cache, "example.test", "!m", "hello@v1.2.3", "hello.go")); err != nil || !strings.Contains(string(got), "hello") {
		t.Errorf("%v\n%s", err, out)
	}
	seen := map[string]bool{}
	for _, r := range l.completed() {
		seen[r.Request.Path] = true // as sent: go escapes the escape
	}
	for _, file := range []string{"v1.2.3.info", "v1.2.3.mod", "v1.2.3.zip"} {
		if !seen["/example.test/%21m/hello/@v/"+file] {
			t.Errorf("no record of %s: %v", file, seen)
		}
	}
}
