package runner

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"warder/runner/image"
)

// trustGolden writes down what clients are given to trust: the variables, and the
// files of the curated root and of an image that has every place we know.
func trustGolden(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("the run's")})
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("the host's")})
	tr := newTrust(ca, roots)
	jks, err := javaTrustStore(tr.bundle, time.UnixMilli(0))
	if err != nil {
		t.Fatal(err)
	}
	kind := func(path string, data []byte) string {
		switch {
		case bytes.Equal(data, ca):
			return "the run's CA"
		case bytes.Equal(data, tr.bundle):
			return "bundle"
		case len(data) == len(jks) && bytes.HasPrefix(data, jks[:12]):
			return "Java key store"
		case path == aptConfig:
			return strings.TrimSpace(string(data))
		}
		return ""
	}
	out.WriteString("variables\n")
	for _, v := range slices.SortedFunc(slices.Values(trustTable), func(a, b trustVar) int { return strings.Compare(a.name, b.name) }) {
		fmt.Fprintf(&out, "  %s=%s: %s\n", v.name, v.file, v.client)
	}
	plan, err := curatedRoot(tr, owner{taskUID, taskUID})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range plan.Files {
		if k := kind(f.Path, f.Data); k != "" {
			lines = append(lines, fmt.Sprintf("  %s: %s\n", f.Path, k))
		}
	}
	for _, l := range plan.Links {
		if strings.HasPrefix(l.Path, "/etc/") {
			lines = append(lines, fmt.Sprintf("  %s -> %s\n", l.Path, l.Target))
		}
	}
	slices.Sort(lines)
	out.WriteString("curated root\n" + strings.Join(lines, ""))
	lines = nil
	for name, data := range upperOfTrust(t, tr) {
		if k := kind(name, []byte(data)); k != "" {
			lines = append(lines, fmt.Sprintf("  %s: %s\n", name, k))
		}
	}
	slices.Sort(lines)
	out.WriteString("image that has them all\n" + strings.Join(lines, ""))
	return out.String()
}

// TestTrustTable_F094 compares with testdata/trust.golden, which is for a person to read.
func TestTrustTable_F094(t *testing.T) {
	got := trustGolden(t)
	want, err := os.ReadFile("testdata/trust.golden")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the trust table is not testdata/trust.golden any more; if that is wanted, write it there:\n%s", got)
	}
	for _, e := range trustEnv() {
		if strings.Contains(strings.ToLower(e), "proxy") {
			t.Errorf("%s: no proxy variable is set", e)
		}
	}
}

// Authorities of the host are there for hosts that are passed through, and only then.
func TestTheBundleHasTheHostsAuthoritiesWhereTheyAreNeeded_F095(t *testing.T) {
	ca := []byte(testCA)
	if b := newTrust(ca, nil).bundle; !bytes.Equal(b, ca) {
		t.Errorf("without a host that is passed through: %q", b)
	}
	b := newTrust(ca, []byte("more")).bundle
	if !bytes.HasPrefix(b, ca) || !bytes.HasSuffix(b, []byte("\nmore")) {
		t.Errorf("%q", b)
	}
}

func TestGitIsSentOverHTTPS(t *testing.T) {
	if got := gitOverHTTPS(nil); got != nil {
		t.Errorf("without a host: %v", got)
	}
	want := []string{
		"GIT_CONFIG_KEY_0=url.https://a.test/.insteadOf", "GIT_CONFIG_VALUE_0=git@a.test:",
		"GIT_CONFIG_KEY_1=url.https://a.test/.insteadOf", "GIT_CONFIG_VALUE_1=ssh://git@a.test/", "GIT_CONFIG_COUNT=2",
	}
	if got := gitOverHTTPS([]string{"a.test"}); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// upperOfTrust is what is laid over an image with a file at every place of the table.
func upperOfTrust(t *testing.T, tr trust) map[string]string {
	t.Helper()
	dir := t.TempDir()
	places := slices.Concat(otherBundles, []string{
		"/usr/lib/jvm/java-17/lib/security/cacerts", "/opt/java/openjdk/lib/security/cacerts", "/opt/jdk/jre/lib/security/cacerts",
		"/srv/java/lib/security/cacerts", "/etc/apt/apt.conf.d/70debconf",
	})
	for p := range caBundleLinks {
		places = append(places, p)
	}
	for _, p := range places {
		to := filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, to, "theirs", 0o644)
	}
	img := &image.Image{Ref: "test", Root: dir, Config: image.Config{Env: []string{"JAVA_HOME=/srv/java"}}}
	plan, err := imageRoot(img, tr, owner{taskUID, taskUID}, "")
	if err != nil {
		t.Fatal(err)
	}
	_, content := readUpper(t, plan.Upper)
	return content
}
