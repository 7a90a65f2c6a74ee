package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFilesThatLookLikeCredentials(t *testing.T) {
	dir := t.TempDir()
	key := "-----BEGIN EC PRIVATE KEY-----\nS3CR3T-CANARY-not-a-key\n"
	for name, tc := range map[string]struct {
		data   string
		secret bool
	}{
		".env": {"A=1", true}, ".env.production": {"A=1", true}, ".env.example": {"A=", false}, "env": {"A=1", false}, ".environment": {"", false},
		"id_rsa": {key, true}, "id_ed25519": {"", true}, "id_rsa.pub": {"ssh-rsa AAAA", false}, ".ssh/config": {"Host x", true}, ".ssh/known_hosts": {"x", false},
		"server.key": {key, true}, "server.pem": {key, true}, "ca.pem": {"-----BEGIN CERTIFICATE-----", false}, "i18n.key": {"hello", false},
		"store.p12": {"", true}, "deploy-key.json": {`{"type":"service_account","private_key":"x"}`, true}, "key.json": {`{"keyboard":"us"}`, false},
		".aws/credentials": {"[default]", true}, "credentials": {"", false}, ".kube/config": {"", true}, "config": {"", false},
		".docker/config.json": {"{}", true}, "config.json": {"{}", false}, "gcloud/access_tokens.db": {"", true}, ".azure/msal_token_cache.json": {"", true},
		".netrc": {"", true}, ".git-credentials": {"", true}, ".npmrc": {"//r.example/:_authToken=S3CR3T-CANARY", true}, "b/.npmrc": {"save-exact=true", false},
		"main.go": {"package main // PRIVATE KEY-----", false}, "README.md": {key, false},
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(tc.data), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := looksSecret(p); got != tc.secret {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestCredentialsInAFolderHaveToBeNamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "src")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"main.go", ".env", "sub/id_rsa"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("S3CR3T-CANARY"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env, key := filepath.Join(dir, ".env"), filepath.Join(dir, "sub", "id_rsa")
	_, err := planInputs([]Input{{dir, ""}})
	if err == nil || !strings.Contains(err.Error(), ".env, sub/id_rsa") || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("both: %v", err)
	}
	if strings.Contains(err.Error(), "CANARY") {
		t.Error("the error quotes a file")
	}
	if _, err = planInputs([]Input{{dir, ""}, {env, "src/.env"}}); err == nil || strings.Contains(err.Error(), ".env,") {
		t.Errorf("one is named, the other is not: %v", err)
	}
	out, err := copyInputs(t, Input{dir, ""}, Input{env, "src/.env"}, Input{key, "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"src/.env", "src/sub/id_rsa", "elsewhere", "src/main.go"} {
		if b, err := os.ReadFile(filepath.Join(out, "workspace", f)); err != nil || string(b) != "S3CR3T-CANARY" {
			t.Errorf("%s: %v", f, err)
		}
	}
}
