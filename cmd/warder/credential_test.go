package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

// credential runs one verb on a configuration and returns output and exit code.
func credential(t *testing.T, cfg *config.Config, args ...string) (string, int) {
	t.Helper()
	state := t.TempDir()
	cmd := newCredentialCmd(func(string) (*config.Config, string, error) { return cfg, state, nil })
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	cmd.SilenceUsage = true
	err := cmd.ExecuteContext(t.Context())
	code := 0
	if err != nil {
		code = 1
		var coded *exitError
		if errors.As(err, &coded) {
			code = coded.ExitCode()
		}
		out.WriteString(err.Error())
	}
	if strings.Contains(out.String(), "CANARY") {
		t.Error("a value was printed")
	}
	return out.String(), code
}

func ownFile(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := errors.Join(os.Chmod(dir, 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCredentialVerbsShowEverythingButTheValue(t *testing.T) {
	s := vaulttest.Start(t)
	s.Setup(t, "S3CR3T-CANARY-github")
	token, _ := s.BrokerToken(t)
	bind := func(src config.Source) config.Credential {
		return config.Credential{Source: src, Inject: config.Inject{Header: "Authorization"}, Hosts: []string{"api.github.com"}, Methods: &[]string{"GET"}, Paths: &[]string{}}
	}
	vault := func(path string) config.Credential {
		return bind(config.Source{Vault: &config.VaultSource{KV: path, Field: "token", Policies: []string{"run-github"}}})
	}
	t.Setenv("WARDER_TEST_CREDENTIAL", "S3CR3T-CANARY-env")
	t.Setenv("WARDER_TEST_SHORT", "CANARY1")
	cfg := &config.Config{
		File:  ownFile(t, "version: 1\n"),
		Vault: &config.Vault{Address: s.Addr, TokenRole: vaulttest.TokenRole, Auth: config.Auth{Method: "token_file", TokenFile: ownFile(t, token)}},
		Credentials: map[string]config.Credential{
			"github-read": vault("secret/github"), "other": vault("secret/other"),
			"env":   bind(config.Source{Local: &config.LocalSource{Env: "WARDER_TEST_CREDENTIAL"}}),
			"short": bind(config.Source{Local: &config.LocalSource{Env: "WARDER_TEST_SHORT"}}),
			"jwt":   bind(config.Source{Local: &config.LocalSource{JWT: &config.LocalJWT{Audience: "a"}}}),
			"hook": {
				Source: config.Source{Local: &config.LocalSource{HMAC: &config.LocalHMAC{KeyFile: ownFile(t, "S3CR3T-CANARY-hmac")}}},
				Inject: config.Inject{HMAC: &config.HMAC{Header: "X-Signature", Parts: []string{"body"}}}, Hosts: []string{"api.github.com"},
			},
		},
	}
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"list"}, 0, []string{"github-read", "kv", "header Authorization", "GET", "none", "static", "expires"}},
		{[]string{"test", "hook"}, 0, []string{"hook (hmac)", "hmac X-Signature", "its key is sent nowhere", "searched for the signature", "static"}},
		{[]string{"test", "github-read"}, 0, []string{"secret/data/github", "20 bytes", "never by itself", "searched for the value", "static"}},
		{[]string{"test", "env"}, 0, []string{"env: WARDER_TEST_CREDENTIAL", "17 bytes"}},
		{[]string{"test", "short"}, 0, []string{"header only"}},
		{[]string{"test", "jwt"}, 0, []string{"expires"}},
		{[]string{"test", "other"}, 2, []string{"secret/data/other", "403", "hint:"}},
		{[]string{"test", "nope"}, 1, []string{"not configured", "github-read"}},
		{[]string{"test", "env", "-o", "xml"}, 1, []string{"hint: use text or json"}},
		{[]string{"jwks", "env"}, 1, []string{"only a local jwt"}},
	} {
		out, code := credential(t, cfg, c.args...)
		if code != c.code {
			t.Errorf("%v: exit code %d", c.args, code)
		}
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("%v: no %q in:\n%s", c.args, w, out)
			}
		}
	}
	var list []map[string]any
	out, _ := credential(t, cfg, "list", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 6 {
		t.Fatal(err, len(list))
	}
	var set struct{ Keys []map[string]any }
	out, _ = credential(t, cfg, "jwks", "jwt")
	if err := json.Unmarshal([]byte(out), &set); err != nil || len(set.Keys) != 1 || set.Keys[0]["d"] != nil {
		t.Fatal("not a public key set", err)
	}
	var facts map[string]any
	out, _ = credential(t, cfg, "test", "github-read", "-o", "json")
	if err := json.Unmarshal([]byte(out), &facts); err != nil {
		t.Fatal(err)
	}
	if alive, _ := s.Alive(t, facts["accessor"].(string)); alive {
		t.Fatal("the token of the test is alive")
	}
	bad := *cfg
	bad.Credentials = map[string]config.Credential{"x": {}}
	if out, code := credential(t, &bad, "list"); code != 1 || !strings.Contains(out, "credentials.x.source") {
		t.Fatal(out, code)
	}
}
