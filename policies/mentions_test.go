package policies

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestScanFolderKnowsHostsAndOpaqueRules(t *testing.T) {
	put := func(dir, name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	put(dir, "a.rego", `package warder.egress

# METADATA
# title: passthrough "comment.example.com" host
allow contains {"rule": "a"} if input.request.host == "api.github.com"

allow contains {"rule": "b"} if input.request.host in {
	"git.example.com",
	"gitlab.example.com", # "comment.example.com"
	"10.1.2.3", "x", "policy.rego", "pkg.Service",
}

allow contains {"rule": "c"} if {
	input.request.path == "/no.host.here"
	input.request.headers["x-mail"] == ["me@example.org"]
}
`)
	put(dir, "a_test.rego", `package x

passthrough := input.request.host == "test.example.com"
`)
	m := ScanFolder(dir)
	if want := []string{"api.github.com", "git.example.com", "gitlab.example.com"}; !slices.Equal(m.Hosts, want) || m.Opaque {
		t.Errorf("%+v, want %v", m, want)
	}
	put(dir, "b.rego", "package warder.egress\n\npassthrough contains {\"rule\": \"p\"} if input.host == \"pinned.example.com\"\n")
	if m = ScanFolder(dir); !m.Opaque || !slices.Contains(m.Hosts, "pinned.example.com") {
		t.Errorf("%+v", m)
	}
	var many strings.Builder
	many.WriteString("package warder.egress\n\nhosts := {\n")
	for i := range 200 {
		fmt.Fprintf(&many, "\t\"h%03d.example\",\n", i)
	}
	put(dir, "c.rego", many.String()+"}\n")
	if m = ScanFolder(dir); len(m.Hosts) > maxMentioned {
		t.Errorf("%d hosts", len(m.Hosts))
	}
	if m = ScanFolder(filepath.Join(dir, "absent")); m.Opaque || len(m.Hosts) != 0 {
		t.Errorf("of nothing: %+v", m)
	}
}
