package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"warder/internal/config"
)

// Every configuration of docs/policy.md loads, and every command of it does what the
// page says, over the files of the page. (Package policies runs its Rego.)
func TestTheConfigurationsAndCommandsOfThePolicyPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write("bundle.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))

	blocks := regexp.MustCompile("(?s)```([a-z]*)\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	configurations, commands := 0, 0
	for _, b := range blocks {
		first, _, _ := strings.Cut(b[2], "\n")
		switch name, isFile := strings.CutPrefix(first, "# policies/"); {
		case isFile:
			write("policies/"+name, b[2])
		case b[1] == "yaml" && first == "# warder.yaml":
			configurations++
			if _, err := config.Load(write("warder.yaml", "version: 1\n"+b[2])); err != nil {
				t.Errorf("a configuration does not load: %v\n%s", err, b[2])
			}
		case b[1] != "console":
			t.Errorf("a block that nothing runs: %s", first)
		}
	}
	t.Chdir(dir)
	for _, b := range blocks {
		if b[1] != "console" {
			continue
		}
		for _, example := range strings.Split("\n"+b[2], "\n$ ")[1:] {
			commands++
			line, want, _ := strings.Cut(example, "\n")
			if rest, ok := strings.CutPrefix(example, "echo '"); ok { // DOCUMENT' |\n  warder …
				document, after, _ := strings.Cut(rest, "' |\n  ")
				line, want, _ = strings.Cut(after, "\n")
				line += " -i " + write("input.json", document)
			}
			args, ok := strings.CutPrefix(line, "warder policy ")
			if !ok {
				t.Errorf("not a command of this test: %s", line)
				continue
			}
			out, code, err := runPolicy(t, "", strings.Fields(args)...)
			want, _, cut := strings.Cut(want, "…\n")
			if code != 0 || err != nil || want != "" && !strings.HasPrefix(out, want) || !cut && want != "" && out != want {
				t.Errorf("%s: exit %d %v\n%s\nwant\n%s", line, code, err, out, want)
			}
		}
	}
	if configurations < 3 || commands < 4 {
		t.Errorf("the page has %d configurations and %d commands", configurations, commands)
	}
}
