// Package opa runs the opa program, built from its own module at the version that
// Warder links, over all Rego that is shipped, and hands Warder what it builds.
package opa

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"warder/policies"
)

const root = "../.."

var program string // opa

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "opa")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "opa")
	build := exec.Command("go", "build", "-o", program, "github.com/open-policy-agent/opa")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "opa: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// opa runs the program and reports whether it was content.
func opa(t *testing.T, args ...string) (string, bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func mustOPA(t *testing.T, args ...string) string {
	t.Helper()
	out, ok := opa(t, args...)
	if !ok {
		t.Fatalf("opa %s:\n%s", strings.Join(args, " "), out)
	}
	return out
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// shipped are the folders of Rego, each as its user has it: the composition, every
// folder of the library in a folder of its own, the one of the documentation, whose
// tests need the composition, and those of the README and of the demonstration.
func shipped(t *testing.T) map[string]string {
	t.Helper()
	folders := map[string]string{"composition": filepath.Join("policies", "rego")}
	library, err := os.ReadDir(filepath.Join(root, "policies", "library"))
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range library {
		if service.IsDir() && service.Name() != "credentials" {
			dir := t.TempDir()
			if err := os.CopyFS(filepath.Join(dir, service.Name()), os.DirFS(filepath.Join(root, "policies", "library", service.Name()))); err != nil {
				t.Fatal(err)
			}
			folders[service.Name()] = dir
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "policy.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := t.TempDir()
	for _, block := range regexp.MustCompile("(?s)```(?:rego|yaml)\n# policies/(\\S+)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		write(t, documented, block[1], block[2])
	}
	folders["documentation"] = documented
	for name, from := range map[string][2]string{
		"readme": {"README.md", "(?s)```rego\n(package .*?)```"}, "demo": {"cmd/warder/demo_linux.go", "(?s)const demoRego = `(.*?)`"},
	} {
		text, err := os.ReadFile(filepath.Join(root, from[0]))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(from[1]).FindStringSubmatch(string(text))
		if found == nil {
			t.Fatalf("no Rego in %s", from[0])
		}
		folders[name] = t.TempDir()
		write(t, folders[name], "egress.rego", found[1])
	}
	if len(folders) < 10 {
		t.Fatalf("only %d folders", len(folders))
	}
	return folders
}

func TestShippedRegoPassesFmtCheckAndTest(t *testing.T) {
	for name, dir := range shipped(t) {
		t.Run(name, func(t *testing.T) {
			mustOPA(t, "fmt", "--fail", "--list", dir)
			mustOPA(t, "check", "--strict", "-s", "policies/schemas/input.json", dir)
			switch name {
			case "readme", "demo": // have no tests
			case "documentation":
				mustOPA(t, "test", dir, "policies/rego/decision.rego")
			default:
				mustOPA(t, "test", "--coverage", "--threshold", "90", dir)
			}
		})
	}
}

// The program says so when something is wrong.
func TestTheProgramFindsWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "p.rego", "package warder.egress\nallow contains {\"rule\":\"x\"} if input.request.hots == \"a\"\n")
	for _, args := range [][]string{
		{"fmt", "--fail", "--list", dir},
		{"check", "--strict", "-s", "policies/schemas/input.json", dir},
		{"test", "--coverage", "--threshold", "90", dir},
	} {
		if out, ok := opa(t, args...); ok {
			t.Errorf("opa %v is content:\n%s", args, out)
		}
	}
}

const policy = `package warder.egress

# METADATA
# title: One host
allow contains {"rule": "one"} if input.request.host in data.hosts.known
`

// source is a policy with data, and the keys of its bundle.
func source(t *testing.T) (dir, private string, public []byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "policies")
	write(t, dir, "egress.rego", policy)
	write(t, dir, "hosts/data.json", `{"known": ["a.test"]}`)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err1 := x509.MarshalECPrivateKey(key)
	pub, err2 := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	private = write(t, filepath.Dir(dir), "bundle.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	return dir, private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub})
}

func load(bundle, public []byte) (*policies.Engine, error) {
	return policies.Load(policies.Options{Dir: "bundle.tar.gz", Bundle: bundle, BundleKey: &policies.BundleKey{PEM: public, Algorithm: "ES256"}})
}

func verdict(e *policies.Engine, host string) policies.Verdict {
	return e.Decide(context.Background(), &policies.Input{Stage: policies.StageRequest, Request: policies.Request{Host: host}}).Verdict
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// bundles are the two ways in which the program signs: while it builds, and `opa
// sign` over what was built.
func bundles(t *testing.T, dir, private string) map[string][]byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "bundle.tar.gz")
	mustOPA(t, "build", "-b", dir, "--signing-key", private, "--signing-alg", "ES256", "-o", out)
	built := read(t, out)

	mustOPA(t, "build", "-b", dir, "-o", out)
	unpacked := t.TempDir()
	files := map[string][]byte{}
	eachFile(t, read(t, out), func(h *tar.Header, b []byte) { files[h.Name] = b; write(t, unpacked, h.Name, string(b)) })
	sign := exec.CommandContext(t.Context(), program, "sign", "--signing-key", private, "--signing-alg", "ES256", "--bundle", ".")
	sign.Dir = unpacked
	if out, err := sign.CombinedOutput(); err != nil {
		t.Fatalf("opa sign: %v\n%s", err, out)
	}
	files["/.signatures.json"] = read(t, filepath.Join(unpacked, ".signatures.json"))
	return map[string][]byte{"build": built, "sign": pack(t, files)}
}

func eachFile(t *testing.T, bundle []byte, visit func(*tar.Header, []byte)) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		visit(h, b)
	}
}

func pack(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for name, b := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(b)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestBundlesOfTheProgramLoadAndAlteredOnesDoNot(t *testing.T) {
	dir, private, public := source(t)
	for way, bundle := range bundles(t, dir, private) {
		t.Run(way, func(t *testing.T) {
			e, err := load(bundle, public)
			if err != nil {
				t.Fatal(err)
			}
			if verdict(e, "a.test") != policies.Allow || verdict(e, "b.test") != policies.Deny {
				t.Error("the bundle is not the policy")
			}
			files := map[string][]byte{}
			eachFile(t, bundle, func(h *tar.Header, b []byte) { files[h.Name] = b })
			if e, err := load(pack(t, files), public); err != nil || verdict(e, "a.test") != policies.Allow {
				t.Fatalf("packed again, unchanged: %v", err)
			}
			altered := 0
			for name := range files {
				changed := map[string][]byte{}
				for n, b := range files {
					changed[n] = b
				}
				changed[name] = bytes.Replace(bytes.Replace(files[name], []byte("a.test"), []byte("b.test"), 1), []byte(`"one"`), []byte(`"two"`), 1)
				if !bytes.Equal(changed[name], files[name]) {
					altered++
					if _, err := load(pack(t, changed), public); err == nil {
						t.Errorf("loads with %s altered", name)
					}
				}
				delete(changed, name)
				if _, err := load(pack(t, changed), public); err == nil {
					t.Errorf("loads without %s", name)
				}
			}
			if altered < 2 { // the rule, the data
				t.Errorf("%d files were altered", altered)
			}
		})
	}
	unsigned := filepath.Join(t.TempDir(), "unsigned.tar.gz")
	mustOPA(t, "build", "-b", dir, "-o", unsigned)
	if _, err := load(read(t, unsigned), public); err == nil {
		t.Error("loads unsigned")
	}
	_, _, other := source(t)
	if _, err := load(bundles(t, dir, private)["build"], other); err == nil {
		t.Error("loads by another key")
	}
}

// The same bundle over HTTP: once, not again, and again when it changed.
func TestBundlesOfTheProgramAreFetched(t *testing.T) {
	dir, private, public := source(t)
	var served atomic.Pointer[[]byte]
	var sent atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := *served.Load()
		tag := fmt.Sprintf("%q", fmt.Sprint(len(b)))
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		sent.Add(1)
		w.Header().Set("ETag", tag)
		w.Write(b)
	}))
	defer server.Close()
	f, err := policies.NewFetcher(server.URL+"/bundle.tar.gz", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fetch := func() *policies.Engine {
		t.Helper()
		b, err := f.Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			return nil
		}
		e, err := load(b, public)
		if err != nil {
			t.Fatal(err)
		}
		f.Accept()
		return e
	}
	first := bundles(t, dir, private)["build"]
	served.Store(&first)
	if e := fetch(); e == nil || verdict(e, "b.test") != policies.Deny {
		t.Fatal("the first bundle")
	}
	if e := fetch(); e != nil || sent.Load() != 1 {
		t.Fatalf("the same bundle came %d times", sent.Load())
	}
	write(t, dir, "hosts/data.json", `{"known": ["a.test", "b.test", "c.test"]}`)
	second := bundles(t, dir, private)["build"]
	served.Store(&second)
	if e := fetch(); e == nil || verdict(e, "b.test") != policies.Allow {
		t.Fatal("the second bundle")
	}
}
