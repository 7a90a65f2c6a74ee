package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestFindNeverLooksInTheWorkingDirectory(t *testing.T) {
	cwd, conf := t.TempDir(), t.TempDir()
	write := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(minimal), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"warder.yaml", "warder/warder.yaml", ".warder.yaml", ".config/warder/warder.yaml", ".warder/warder.yaml"} {
		write(filepath.Join(cwd, name))
	}
	t.Chdir(cwd)
	noEnv := func(string) string { return "" }
	confDir := func() (string, error) { return conf, nil }
	for name, dir := range map[string]func() (string, error){
		"empty folder": confDir,
		"no home":      func() (string, error) { return "", errors.New("no home") },
		"relative":     func() (string, error) { return ".", nil },
		"empty name":   func() (string, error) { return "", nil },
	} {
		if path, found, err := Find("", noEnv, dir); found || err != nil {
			t.Errorf("%s: Find = %q, %v, %v", name, path, found, err)
		}
	}
	// Positive control: the same search finds the file where it belongs.
	want := filepath.Join(conf, "warder", "warder.yaml")
	write(want)
	if path, found, err := Find("", noEnv, confDir); path != want || !found || err != nil {
		t.Errorf("Find = %q, %v, %v, want %q", path, found, err, want)
	}
}

func TestFindOrder(t *testing.T) {
	env := func(k string) string { return map[string]string{EnvFile: "/e/w.yaml"}[k] }
	none := func() (string, error) { return "/nonexistent", nil }
	if path, found, err := Find("/f/w.yaml", env, none); path != "/f/w.yaml" || !found || err != nil {
		t.Errorf("flag: %q, %v, %v", path, found, err)
	}
	if path, found, err := Find("", env, none); path != "/e/w.yaml" || !found || err != nil {
		t.Errorf("variable: %q, %v, %v", path, found, err)
	}
}

func TestStateDir(t *testing.T) {
	vars := func(kv ...string) func(string) string {
		return func(k string) string {
			for i := 0; i < len(kv); i += 2 {
				if kv[i] == k {
					return kv[i+1]
				}
			}
			return ""
		}
	}
	for _, tc := range []struct {
		name string
		env  func(string) string
		euid int
		want string
	}{
		{"user", vars(), 1000, "/home/u/.local/state/warder"},
		{"user with XDG", vars("XDG_STATE_HOME", "/x"), 1000, "/x/warder"},
		{"a relative XDG is ignored", vars("XDG_STATE_HOME", "x"), 1000, "/home/u/.local/state/warder"},
		{"root", vars(), 0, "/var/lib/warder"},
		{"root ignores a user's XDG", vars("XDG_STATE_HOME", "/x"), 0, "/var/lib/warder"},
		{"ours wins", vars("WARDER_STATE_DIR", "/s", "XDG_STATE_HOME", "/x"), 0, "/s"},
		{"ours when relative is ignored", vars("WARDER_STATE_DIR", "s"), 0, "/var/lib/warder"},
	} {
		if got := stateDir(tc.env, tc.euid, "/home/u"); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
