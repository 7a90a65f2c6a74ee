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
)

// runConfig runs `warder config ARGS` and returns its output and exit code.
func runConfig(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, talk bytes.Buffer
	cmd := newConfigCmd()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&talk)
	if err := cmd.Execute(); err != nil {
		var exit *exitError
		if !errors.As(err, &exit) {
			t.Fatalf("not an exitError: %v", err)
		}
		return out.String(), talk.String() + exit.Error(), exit.ExitCode()
	}
	return out.String(), talk.String(), 0
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "warder.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestConfigCheckPrintsEachValueWithItsOrigin(t *testing.T) {
	path := writeConfig(t, "version: 1\nsandbox: {memory: 64Mi}\n")
	stdout, _, code := runConfig(t, "check", "--config", path, "--policy", "/p")
	if code != 0 {
		t.Fatalf("exit %d", code)
	}
	for _, want := range []string{
		"# " + path + " (flag)\n", "sandbox.memory: \"64Mi\"  # file 2:19\n", "sandbox.pids: 256  # default\n", "policy.path: \"/p\"  # flag\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
}

func TestConfigCheckFindsTheFileByVariable(t *testing.T) {
	path := writeConfig(t, "version: 1\n")
	t.Setenv(config.EnvFile, path)
	stdout, _, code := runConfig(t, "check", "-o", "json")
	var report configReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	if code != 0 || !report.Valid || report.File != path || report.Origin != config.OriginEnv || len(report.Settings) == 0 {
		t.Errorf("exit %d, %+v", code, report)
	}
}

func TestConfigCheckWithoutAFileSaysThatEverythingIsDenied(t *testing.T) {
	t.Setenv(config.EnvFile, "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Chdir(filepath.Dir(writeConfig(t, "version: 1\n"))) // must not be found
	stdout, stderr, code := runConfig(t, "check")
	if code != 0 || !strings.Contains(stderr, "every request is denied") || strings.Contains(stdout, "file") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestConfigCheckFailsWithPlaces(t *testing.T) {
	path := writeConfig(t, "version: 1\npolicy: {mode: log}\naudit: {durable: x}\n")
	stdout, stderr, code := runConfig(t, "check", "--config", path, "-o", "json")
	var report configReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	if code != 1 || report.Valid || len(report.Errors) != 2 || report.Errors[0].Line != 2 || report.Errors[0].Col != 16 || report.Errors[1].Line != 3 {
		t.Errorf("exit %d, %+v", code, report)
	}
	if !strings.Contains(stderr, path+":2:16: ") {
		t.Errorf("stderr %q", stderr)
	}
}

func TestConfigCheckJudgesCredentials(t *testing.T) {
	good := "version: 1\ncredentials:\n  a:\n    source: {local: {env: A}}\n    inject: {header: X-Key}\n    hosts: [a.example]\n"
	if _, stderr, code := runConfig(t, "check", "--config", writeConfig(t, good)); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	path := writeConfig(t, strings.Replace(good, "[a.example]", "[\"https://a.example\"]", 1))
	if _, stderr, code := runConfig(t, "check", "--config", path); code != 1 || !strings.Contains(stderr, path+":6:12: credentials.a.hosts") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

func TestConfigCheckFailures(t *testing.T) {
	for name, args := range map[string][]string{
		"missing file":  {"check", "--config", filepath.Join(t.TempDir(), "none.yaml")},
		"output format": {"check", "-o", "xml"},
	} {
		if stdout, stderr, code := runConfig(t, args...); code != 1 || stdout != "" || !strings.Contains(stderr, "hint: ") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", name, code, stdout, stderr)
		}
	}
}
