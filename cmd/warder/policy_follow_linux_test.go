package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"warder/internal/config"
	"warder/policies"
)

// A start without the policy server takes the last good bundle, when it is
// young enough and still what was signed.
func TestStartTakesTheLastGoodBundle(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("WARDER_STATE_DIR", filepath.Join(dir, "state"))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err1 := x509.MarshalECPrivateKey(key)
	public, err2 := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	keyFile := filepath.Join(dir, "bundle.pub")
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600); err != nil {
		t.Fatal(err)
	}
	source := policyFolder(t, map[string]string{"p.rego": goodPolicy})
	bundle, err := policies.BuildBundle(source, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}), "ES256")
	if err != nil {
		t.Fatal(err)
	}
	server := &policyServer{}
	web := httptest.NewServer(server)
	defer web.Close()
	start := func() (*app, string, error) {
		a := &app{cfg: &config.Config{Policy: config.Policy{Mode: config.ModeEnforce, Bundle: &config.PolicyBundle{
			URL: web.URL, KeyFile: keyFile, Algorithm: "ES256", Poll: config.Duration(time.Minute), MaxAge: config.Duration(time.Hour),
		}}}}
		var talk bytes.Buffer
		err := a.loadPolicy(context.Background(), &talk)
		return a, talk.String(), err
	}
	if a, _, err := start(); err == nil || a.engine.Load() != nil {
		t.Fatalf("a start with nothing: %v", err)
	}
	server.set(bundle, "1")
	a, talk, err := start()
	if err != nil || talk != "" {
		t.Fatalf("a start with the server: %q %v", talk, err)
	}
	digest := a.engine.Load().Digest()
	server.set(nil, "")
	a, talk, err = start()
	if err != nil || a.engine.Load().Digest() != digest || !strings.Contains(talk, "is in force") {
		t.Fatalf("a start without it: %q %v", talk, err)
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(keptBundleFile(), old, old); err != nil {
		t.Fatal(err)
	}
	if a, _, err := start(); err == nil || a.engine.Load() != nil {
		t.Errorf("a bundle that is too old is in force: %v", err)
	}
	if err := os.WriteFile(keptBundleFile(), append(bundle[:len(bundle)-9:len(bundle)-9], "altered!!"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if a, _, err := start(); err == nil || a.engine.Load() != nil {
		t.Errorf("a bundle that was altered is in force: %v", err)
	}
}

// A policy that changes after it was loaded and before the first look at its files is
// a change all the same.
func TestAChangeDuringTheStartIsNotMissed(t *testing.T) {
	dir := policyFolder(t, map[string]string{"p.rego": goodPolicy})
	a := &app{cfg: &config.Config{Policy: config.Policy{Mode: config.ModeEnforce, Path: dir}}}
	if err := a.loadPolicy(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	if f := newFollower(a, io.Discard); f.inForce != policies.Fingerprint(f.paths...) {
		t.Fatal("nothing changed, and it would load the policy again")
	}
	if err := os.WriteFile(filepath.Join(dir, "more.rego"), []byte("package warder.egress\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := newFollower(a, io.Discard); f.inForce == policies.Fingerprint(f.paths...) {
		t.Error("a change before the first look would be missed")
	}
}
