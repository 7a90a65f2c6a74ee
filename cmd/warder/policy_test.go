package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const goodPolicy = `package warder.egress

# METADATA
# title: Read issues
allow contains {"rule": "read", "credential": "github-read"} if input.request.host == "api.github.com"
`

const goodTest = `package warder.egress_test

import data.warder.egress

test_read if {
	count(egress.allow) == 1 with input as {"request": {"host": "api.github.com"}}
}
`

// policyFolder writes files into a fresh folder.
func policyFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// runPolicy runs `warder policy args…` and returns its output and exit code.
func runPolicy(t *testing.T, fallback string, args ...string) (stdout string, code int, err error) {
	t.Helper()
	t.Setenv("WARDER_CONFIG", "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	cmd := newPolicyCmd(func(string) (string, error) {
		if fallback == "" {
			return "", errors.New("no policy folder")
		}
		return fallback, nil
	})
	var out, talk bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&talk)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err = cmd.ExecuteContext(context.Background())
	var coded *exitError
	switch {
	case err == nil:
	case errors.As(err, &coded):
		code = coded.ExitCode()
	default:
		code = -1
	}
	return out.String(), code, err
}

func TestPolicyCheckExitCodes(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		code  int
		says  string
	}{
		{"good", map[string]string{"p.rego": goodPolicy}, 0, "1 rules"},
		{"warnings do not fail", map[string]string{"p.rego": strings.ReplaceAll(goodPolicy, "# METADATA\n# title: Read issues\n", "")}, 0, "[no-title]"},
		{"empty folder", nil, 1, "no *.rego file"},
		{"syntax error", map[string]string{"p.rego": "package warder.egress\n\nallow contains {\n"}, 1, "p.rego:4"},
		{"typo in the input", map[string]string{"p.rego": strings.ReplaceAll(goodPolicy, "request.host", "request.hots")}, 1, "p.rego:5"},
		{"host with scheme", map[string]string{"p.rego": strings.ReplaceAll(goodPolicy, "api.github.com", "https://api.github.com")}, 2, "p.rego:5"},
		{"unknown key", map[string]string{"p.rego": strings.ReplaceAll(goodPolicy, `"credential"`, `"credentials"`)}, 2, "[unknown-key]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := policyFolder(t, tt.files)
			out, code, err := runPolicy(t, "", "check", dir)
			if err != nil {
				out += err.Error()
			}
			if code != tt.code || !strings.Contains(out, tt.says) {
				t.Errorf("exit %d, want %d; says %q, want %q in it", code, tt.code, out, tt.says)
			}
			out, code, _ = runPolicy(t, "", "check", "-o", "json", dir)
			var report policyReport
			if err := json.Unmarshal([]byte(out), &report); err != nil {
				t.Fatalf("JSON: %v\n%s", err, out)
			}
			if code != tt.code || report.Valid != (tt.code == 0) || (tt.code == 1) != (len(report.Errors) > 0) {
				t.Errorf("JSON: exit %d: %+v", code, report)
			}
		})
	}
}

func TestPolicyTestExitCodes(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		args  []string
		code  int
		says  string
	}{
		{"passes", map[string]string{"p.rego": goodPolicy, "p_test.rego": goodTest}, nil, 0, "1 passed, 0 failed"},
		{"fails", map[string]string{"p.rego": goodPolicy, "p_test.rego": strings.ReplaceAll(goodTest, "== 1", "== 2")}, nil, 2, "p_test.rego:6"},
		{"found none", map[string]string{"p.rego": goodPolicy}, nil, 2, "no test ran"},
		{"none selected", map[string]string{"p.rego": goodPolicy, "p_test.rego": goodTest}, []string{"--run", "nothing-of-that-name"}, 2, "no test ran"},
		{"cannot run: test does not parse", map[string]string{"p.rego": goodPolicy, "p_test.rego": "package x\n\ntest_x if {"}, nil, 1, "p_test.rego:3"},
		{"cannot run: no folder", nil, []string{"/nonexistent"}, 1, "no such file"},
		{"cannot run: bad expression", map[string]string{"p.rego": goodPolicy, "p_test.rego": goodTest}, []string{"--run", "("}, 1, "regular expression"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := policyFolder(t, tt.files)
			out, code, err := runPolicy(t, dir, append([]string{"test"}, tt.args...)...)
			if err != nil {
				out += err.Error()
			}
			if code != tt.code || !strings.Contains(out, tt.says) {
				t.Errorf("exit %d, want %d; says %q, want %q in it", code, tt.code, out, tt.says)
			}
		})
	}
}

func TestPolicyCheckKnowsTheConfiguredCredentials(t *testing.T) {
	dir := policyFolder(t, map[string]string{"p.rego": goodPolicy})
	write := func(name string) string {
		file := filepath.Join(policyFolder(t, nil), "warder.yaml")
		text := "version: 1\npolicy: {path: " + dir + "}\ncredentials:\n  " + name + ":\n    source: {local: {env: TOKEN}}\n    inject: {header: Authorization}\n    hosts: [api.github.com]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	if out, code, err := runPolicy(t, "", "check", dir, "--config", write("github-read")); code != 0 {
		t.Errorf("a defined credential: exit %d: %s %v", code, out, err)
	}
	if out, code, _ := runPolicy(t, "", "check", dir, "--config", write("another")); code != 2 || !strings.Contains(out, "[unknown-credential]") {
		t.Errorf("an undefined credential: exit %d: %s", code, out)
	}
	if _, code, _ := runPolicy(t, "", "check", dir, "--config", "/nonexistent/warder.yaml"); code != 1 {
		t.Errorf("a missing configuration: exit %d", code)
	}
}

func TestPolicyRefusesAnUnknownFormat(t *testing.T) {
	if _, code, err := runPolicy(t, "", "check", "-o", "xml", t.TempDir()); code != 1 || !strings.Contains(err.Error(), "hint:") {
		t.Errorf("exit %d: %v", code, err)
	}
}
