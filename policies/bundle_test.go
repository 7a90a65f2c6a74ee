package policies

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
)

// signer is a key pair in the form that opa takes.
type signer struct {
	private string
	key     *BundleKey
}

func newSigner(t testing.TB) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return signer{
		private: string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})),
		key:     &BundleKey{PEM: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), Algorithm: "ES256"},
	}
}

// build makes a bundle of one module and one data document; sign may be nil.
func build(t testing.TB, source string, sign *signer) []byte {
	t.Helper()
	b := bundle.Bundle{
		Manifest: bundle.Manifest{Revision: "7"},
		Data:     map[string]any{"models": map[string]any{"expensive": []any{"huge-1"}}},
		Modules:  []bundle.ModuleFile{{URL: "/p.rego", Path: "/p.rego", Raw: []byte(source), Parsed: ast.MustParseModule(source)}},
	}
	b.Manifest.Init()
	if sign != nil {
		if err := b.GenerateSignature(bundle.NewSigningConfig(sign.private, "ES256", ""), "any", false); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := bundle.NewWriter(&out).Write(b); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

const bundled = `package warder.egress

allow contains {"rule": "any"} if input.request.method == "GET"

deny contains {"rule": "model"} if input.request.headers.model[0] in data.models.expensive
`

func TestSignedBundleIsAPolicy(t *testing.T) {
	sign := newSigner(t)
	e, err := Load(Options{Dir: "b.tar.gz", Bundle: build(t, bundled, &sign), BundleKey: sign.key, EvalTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	want(t, decide(t, e), Allow, "")
	want(t, decide(t, e, func(in *Input) { in.Request.Headers = map[string][]string{"model": {"huge-1"}} }), Deny, ReasonDenied)
	if s := e.Sources(); len(s) != 2 || s[0].Path != "data.json" || s[1].Path != "p.rego" || e.Digest() == "" {
		t.Errorf("%+v", s)
	}
}

func TestBundlesThatAreNotSignedAreRefused(t *testing.T) {
	sign, other := newSigner(t), newSigner(t)
	good := build(t, bundled, &sign)
	altered := func(from, to string) []byte {
		z, err := gzip.NewReader(bytes.NewReader(good))
		if err != nil {
			t.Fatal(err)
		}
		var plain, out bytes.Buffer
		if _, err := plain.ReadFrom(z); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(plain.String(), from) {
			t.Fatal("nothing to alter")
		}
		w := gzip.NewWriter(&out)
		if _, err := w.Write(bytes.ReplaceAll(plain.Bytes(), []byte(from), []byte(to))); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	for range maxTotalBytes>>20 + 1 {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	private := &BundleKey{PEM: []byte(sign.private), Algorithm: "ES256"}
	for name, o := range map[string]Options{
		"not signed":         {Bundle: build(t, bundled, nil), BundleKey: sign.key},
		"by another key":     {Bundle: build(t, bundled, &other), BundleKey: sign.key},
		"altered rule":       {Bundle: altered(`"GET"`, `"PUT"`), BundleKey: sign.key},
		"altered data":       {Bundle: altered(`huge-1`, `huge-2`), BundleKey: sign.key},
		"another algorithm":  {Bundle: good, BundleKey: &BundleKey{PEM: sign.key.PEM, Algorithm: "RS256"}},
		"a shared secret":    {Bundle: good, BundleKey: &BundleKey{PEM: sign.key.PEM, Algorithm: "HS256"}},
		"a private key":      {Bundle: good, BundleKey: private},
		"another scope":      {Bundle: good, BundleKey: &BundleKey{PEM: sign.key.PEM, Algorithm: "ES256", Scope: "write"}},
		"no key":             {Bundle: good},
		"an empty key":       {Bundle: good, BundleKey: &BundleKey{}},
		"no bundle":          {BundleKey: sign.key},
		"no archive":         {Bundle: []byte("x"), BundleKey: sign.key},
		"a bomb":             {Bundle: bomb.Bytes(), BundleKey: sign.key},
		"cut off":            {Bundle: good[:len(good)/2], BundleKey: sign.key},
		"a reserved package": {Bundle: build(t, "package warder\n\nallow := true\n", &sign), BundleKey: sign.key},
	} {
		o.Dir = "b.tar.gz"
		if e, err := Load(o); err == nil || !IsLoadError(err) {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
}

func TestFetcherAsksOnlyForWhatChanged(t *testing.T) {
	answer, status, asked := []byte("one"), 0, []string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("If-None-Match"))
		etag := `"` + string(answer) + `"`
		w.Header().Set("ETag", etag)
		switch {
		case status != 0:
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
		case r.Header.Get("If-None-Match") == etag:
			w.WriteHeader(http.StatusNotModified)
		default:
			_, _ = w.Write(answer)
		}
	}))
	defer server.Close()
	f, err := NewFetcher(server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fetch := func() string {
		t.Helper()
		b, err := f.Fetch(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for range 2 { // what was not accepted comes again
		if got := fetch(); got != "one" {
			t.Errorf("%q", got)
		}
	}
	f.Accept()
	if got := fetch(); got != "" {
		t.Errorf("what did not change comes again: %q", got)
	}
	answer = []byte("two")
	if fetch() != "two" {
		t.Error("what changed does not come")
	}
	f.Accept()
	if want := []string{"", "", `"one"`, `"one"`}; strings.Join(asked, ",") != strings.Join(want, ",") {
		t.Errorf("asked with %q", asked)
	}
	for _, status = range []int{http.StatusFound, http.StatusNotFound, http.StatusInternalServerError, http.StatusNoContent} {
		if b, err := f.Fetch(context.Background()); err == nil {
			t.Errorf("%d: %q", status, b)
		}
	}
	if n := len(asked); n != 8 {
		t.Errorf("%d requests: a redirect was followed", n)
	}
	for _, address := range []string{"", "ftp://a/b", "https://", "https://u:p@a.example/", "://"} {
		if _, err := NewFetcher(address, nil); err == nil {
			t.Errorf("%q is taken", address)
		}
	}
}

func TestFingerprintFollowsTheFiles(t *testing.T) {
	dir := write(t, map[string]string{"p.rego": "x", "a/data.json": "{}"})
	first := Fingerprint(dir, "")
	if Fingerprint(dir) != first {
		t.Error("it changes by itself")
	}
	seen := map[string]bool{first: true}
	change := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if seen[Fingerprint(dir)] {
			t.Errorf("%s is not noticed", what)
		}
		seen[Fingerprint(dir)] = true
	}
	change("a longer file", os.WriteFile(filepath.Join(dir, "p.rego"), []byte("xy"), 0o600))
	change("a new file", os.WriteFile(filepath.Join(dir, "q.rego"), []byte("x"), 0o600))
	change("a later time", os.Chtimes(filepath.Join(dir, "q.rego"), time.Time{}, time.Unix(1, 0)))
	change("a removal", os.RemoveAll(filepath.Join(dir, "a")))
	change("another name", os.Rename(filepath.Join(dir, "q.rego"), filepath.Join(dir, "r.rego")))
	change("no folder", os.RemoveAll(dir))
}

func TestBuiltBundleIsTheFolder(t *testing.T) {
	sign := newSigner(t)
	dir := write(t, map[string]string{
		"a/p.rego":    "package warder.egress\n\nallow   contains {\"rule\": \"any\"} if input.request.host in data.hosts.good\n",
		"p_test.rego": "package x\n\ntest_a if true\n", "hosts/data.yaml": "good: [api.github.com]\n",
	})
	b, err := BuildBundle(dir, []byte(sign.private), "ES256")
	if err != nil {
		t.Fatal(err)
	}
	e, err := Load(Options{Dir: "b.tar.gz", Bundle: b, BundleKey: sign.key, EvalTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	want(t, decide(t, e), Allow, "")
	want(t, decide(t, e, host("evil.example")), Deny, ReasonNoRule)
	if s := e.Sources(); len(s) != 2 || s[0].Path != "a/p.rego" || !strings.Contains(string(s[0].Content), "allow   contains") {
		t.Errorf("%+v", s)
	}
	for name, f := range map[string]func() ([]byte, error){
		"a broken policy":  func() ([]byte, error) { return BuildBundle(t.TempDir(), []byte(sign.private), "ES256") },
		"a shared secret":  func() ([]byte, error) { return BuildBundle(dir, []byte("secret"), "HS256") },
		"a key of no kind": func() ([]byte, error) { return BuildBundle(dir, []byte("x"), "ES256") },
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s makes a bundle", name)
		}
	}
}
