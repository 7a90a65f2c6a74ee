package main

import (
	"os"
	"path/filepath"
	"testing"

	"warder/internal/config"
)

// The credential templates of the policy library are good configuration.
func TestLibraryCredentialsAreConfiguration(t *testing.T) {
	const dir = "../../policies/library/credentials"
	files, err := os.ReadDir(dir)
	if err != nil || len(files) < 5 {
		t.Fatalf("%d templates: %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "warder.yaml")
		head := "version: 1\nvault: {address: \"https://vault.example:8200\", auth: {method: token_file, token_file: /t}, token_role: agent-run}\n"
		if err := os.WriteFile(file, append([]byte(head), text...), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.LoadFound(file)
		if err != nil {
			t.Errorf("%s: %v", f.Name(), err)
			continue
		}
		for name, c := range cfg.Credentials {
			if c.Source.Vault == nil || len(c.Source.Vault.Policies) == 0 || len(c.Hosts) == 0 {
				t.Errorf("%s: %s: %+v", f.Name(), name, c)
			}
		}
	}
}
