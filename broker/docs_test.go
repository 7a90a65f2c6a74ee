package broker

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"warder/internal/config"
	"warder/internal/vaulttest"
)

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
