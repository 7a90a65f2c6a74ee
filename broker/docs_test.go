package broker

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

// Every row of the table of Vault's answers names a test that is there.
func TestEveryAnswerInTheDocumentationHasItsTest(t *testing.T) {
	raw, err := os.ReadFile("../docs/vault.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(text)
	}
	_, table, _ := strings.Cut(string(raw), "| answer | taken as |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")[2:]
	for _, row := range rows {
		m := regexp.MustCompile("`(Test[A-Za-z0-9]+)(?:/([^`]+))?` \\|$").FindStringSubmatch(row)
		switch {
		case m == nil:
			t.Errorf("no test: %s", row)
		case !strings.Contains(tests.String(), "func "+m[1]+"("):
			t.Errorf("no test is called %s", m[1])
		case m[2] != "" && !strings.Contains(tests.String(), `"`+m[2]+`"`):
			t.Errorf("%s has no case %q", m[1], m[2])
		}
	}
	if len(rows) < 20 {
		t.Fatalf("only %d rows were found", len(rows))
	}
}

// TestDocumentedSetupWorks applies what docs/vault.md tells an operator, and
// nothing else, to a real Vault.
func TestDocumentedSetupWorks(t *testing.T) {
	raw, err := os.ReadFile("../docs/vault.md")
	if err != nil {
		t.Fatal(err)
	}
	s := vaulttest.Start(t)
	s.KV(t, "secret", 2)
	s.Put(t, "secret", "github", map[string]any{"token": githubCanary})
	s.Must(t, http.MethodPost, "sys/auth/approle", map[string]any{"type": "approle"})
	policies := 0
	for _, m := range regexp.MustCompile("(?s)```hcl\n# policy: ([a-z-]+)\n(.*?)```").FindAllStringSubmatch(string(raw), -1) {
		s.Policy(t, m[1], m[2])
		policies++
	}
	writes := 0
	for _, m := range regexp.MustCompile(`(?m)^vault write (\S+) (.*)$`).FindAllStringSubmatch(string(raw), -1) {
		body := map[string]any{}
		for _, kv := range strings.Fields(m[2]) {
			k, v, _ := strings.Cut(kv, "=")
			body[k] = v
		}
		s.Must(t, http.MethodPost, m[1], body)
		writes++
	}
	if policies != 3 || writes != 2 {
		t.Fatalf("%d policies and %d commands were found", policies, writes)
	}
	r := newRig(t, appRole(t, s), map[string]config.Credential{"github-read": githubCred()})
	sess, _ := r.begin(t)
	g := grant(t, sess, "github-read")
	if injected(t, g) != "Bearer "+githubCanary {
		t.Fatal("not the value")
	}
	if out := end(t, sess); len(out) != 1 || out[0].Status != StatusStatic {
		t.Fatalf("%+v", out)
	}
	login := r.journal.list()[0].Accessor
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{g.Accessor, login} {
		if alive, _ := s.Alive(t, a); alive {
			t.Fatal("a token is alive")
		}
	}
}
