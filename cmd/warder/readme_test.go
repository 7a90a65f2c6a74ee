package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"warder/internal/config"
	"warder/policies"
)

// readmeBlocks returns the fenced blocks of README.md in one language.
func readmeBlocks(t *testing.T, language string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		out = append(out, m[1])
	}
	if len(out) == 0 {
		t.Fatalf("README.md has no block of %s", language)
	}
	return out
}

func TestReadmeConfigurationAndPolicyDoWhatItSays(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "warder.yaml")
	if err := os.Mkdir(filepath.Join(dir, "policies"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "policies", "github.rego"), []byte(readmeBlocks(t, "rego")[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(readmeBlocks(t, "yaml")[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := validateCredentials(cfg); err != nil {
		t.Fatal(err)
	}
	engine, err := policies.Load(policies.Options{Dir: cfg.Policy.Path, Mode: cfg.Policy.Mode})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		method, host, path string
		want               policies.Verdict
	}{
		{"GET", "api.github.com", "/repos/acme/site/issues", policies.Allow},
		{"HEAD", "api.github.com", "/repos/acme/site/issues", policies.Allow},
		{"POST", "api.github.com", "/repos/acme/site/issues", policies.Deny},
		{"GET", "api.github.com", "/repos/other/site/issues", policies.Deny},
		{"GET", "example.com", "/repos/acme/site/issues", policies.Deny},
	} {
		d := engine.Decide(t.Context(), &policies.Input{Stage: policies.StageRequest, Credentials: []string{"github-read"}, Request: policies.Request{
			ID: "x", Method: tc.method, Scheme: "https", Host: tc.host, Port: 443, Path: tc.path,
			Segments: strings.Split(tc.path, "/")[1:], Protocol: "http/1.1", ContentLength: 0,
		}})
		if d.Verdict != tc.want || tc.want == policies.Allow && d.Credential != "github-read" {
			t.Errorf("%s %s%s: %s (%s) with credential %q, want %s", tc.method, tc.host, tc.path, d.Verdict, d.Reason, d.Credential, tc.want)
		}
	}
}

// The second block leaves out what the first has; together they have to load.
func TestReadmeVaultConfigurationLoads(t *testing.T) {
	blocks := readmeBlocks(t, "yaml")
	if len(blocks) != 2 {
		t.Fatalf("README.md has %d configurations, want 2", len(blocks))
	}
	text := "version: 1\n" + strings.Replace(blocks[1], "    # inject, hosts, methods, paths as above",
		"    inject: {header: Authorization, format: \"Bearer {value}\"}\n    hosts: [api.github.com]", 1)
	cfg, err := config.Load(writeConfig(t, text))
	if err != nil {
		t.Fatal(err)
	}
	if err := validateCredentials(cfg); err != nil {
		t.Fatal(err)
	}
}

// README promises exactly two commands to set up.
func TestReadmeSetUpIsTwoMakeTargets(t *testing.T) {
	block := readmeBlocks(t, "sh")[0]
	var commands []string
	for line := range strings.Lines(block) {
		command, _, _ := strings.Cut(line, "#")
		commands = append(commands, strings.TrimSpace(command))
	}
	if got := strings.Join(commands, ", "); got != "make demo, make test" {
		t.Errorf("set up is %q", got)
	}
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"build", "demo", "test", "bench"} {
		if !regexp.MustCompile(`(?m)^` + target + `:`).Match(makefile) {
			t.Errorf("the Makefile has no target %s", target)
		}
	}
}
