package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// clientServer answers what the package managers and git ask: a git repository
// and a crate index under /git/, an npm registry under /npm/, a module proxy under
// /go/, crates under /crates/, an echo of gRPC messages; all else as the lab does.
func clientServer(t *testing.T) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/git/", gitServer(t))
	mux.Handle("/npm/", npmRegistry(t))
	mux.Handle("/go/", moduleProxy(t))
	mux.HandleFunc("/crates/tiny/0.1.0", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(tinyCrate(t)) })
	mux.HandleFunc("POST /test.Echo/Say", echoGRPC)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "answer to %s %s\n", r.Method, r.URL.Path)
	})
	return mux
}

// gitServer serves repo.git, which can be pushed to, and index.git, a cargo index.
func gitServer(t *testing.T) http.Handler {
	dir := t.TempDir()
	commit := func(name string, files map[string]string) {
		work := filepath.Join(dir, "work-"+name)
		runGit(t, "init", "-q", "-b", "main", work)
		for f, text := range files {
			p := filepath.Join(work, f)
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		runGit(t, "-C", work, "add", "-A")
		runGit(t, "-C", work, "commit", "-q", "-m", "first")
		runGit(t, "clone", "-q", "--bare", work, filepath.Join(dir, name))
	}
	commit("repo.git", map[string]string{"README": "the repository of the tests\n"})
	sum := sha256.Sum256(tinyCrate(t))
	commit("index.git", map[string]string{
		"config.json": `{"dl": "https://` + allowedHost + `/crates/{crate}/{version}"}`,
		"ti/ny/tiny":  `{"name":"tiny","vers":"0.1.0","deps":[],"cksum":"` + hex.EncodeToString(sum[:]) + `","features":{},"yanked":false}` + "\n",
	})
	h := &cgi.Handler{
		Path: filepath.Join(runGit(t, "--exec-path"), "git-http-backend"), Root: "/git", Dir: dir, Logger: log.New(io.Discard, "", 0),
		Env: []string{
			"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=2",
			"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*", "GIT_CONFIG_KEY_1=http.receivepack", "GIT_CONFIG_VALUE_1=true",
		},
	}
	return h
}

func runGit(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@t.test", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@t.test")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// tgz is a compressed tar archive; the same files give the same bytes.
func tgz(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	for _, name := range sortedNames(files) {
		addFile(t, w, name, 0o644, files[name])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func tinyCrate(t *testing.T) []byte {
	return tgz(t, map[string]string{
		"tiny-0.1.0/Cargo.toml": "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\n", "tiny-0.1.0/src/lib.rs": "pub fn tiny() {}\n",
	})
}

func npmRegistry(t *testing.T) http.Handler {
	pack := tgz(t, map[string]string{
		"package/package.json": `{"name": "tiny", "version": "1.0.0", "main": "index.js"}`, "package/index.js": "module.exports = 'the package of the tests';\n",
	})
	sum := sha512.Sum512(pack)
	mux := http.NewServeMux()
	mux.HandleFunc("/npm/tiny", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"name": "tiny", "dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": map[string]any{
				"name": "tiny", "version": "1.0.0", "main": "index.js",
				"dist": map[string]string{"tarball": "https://" + allowedHost + "/npm/tiny/-/tiny-1.0.0.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])},
			}},
		})
	})
	mux.HandleFunc("/npm/tiny/-/tiny-1.0.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(pack) })
	return mux
}

// moduleProxy has example.test/tiny at v1.0.0 (the GOPROXY protocol).
func moduleProxy(t *testing.T) http.Handler {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for name, text := range map[string]string{"go.mod": "module example.test/tiny\n", "tiny.go": "package tiny\n\n// Text is what the tests look for.\nconst Text = \"the module of the tests\"\n"} {
		w, err := z.Create("example.test/tiny@v1.0.0/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	serve := func(name string, data []byte) {
		mux.HandleFunc("/go/example.test/tiny/@v/"+name, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	}
	serve("list", []byte("v1.0.0\n"))
	serve("v1.0.0.info", []byte(`{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}`))
	serve("v1.0.0.mod", []byte("module example.test/tiny\n"))
	serve("v1.0.0.zip", buf.Bytes())
	return mux
}

// echoGRPC sends the message of a unary call back (gRPC over HTTP/2).
func echoGRPC(w http.ResponseWriter, r *http.Request) {
	frame, err := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	w.WriteHeader(http.StatusOK)
	status := "0"
	if err != nil || r.ProtoMajor != 2 || len(frame) < 5 {
		status = "13" // INTERNAL
	} else {
		_, _ = w.Write(frame)
	}
	w.Header().Set("Grpc-Status", status)
}
