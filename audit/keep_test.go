package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func refOf(content string) string { return digestPrefix + hexSum([]byte(content)) }

// Inputs are stored by content, once, whole, and come back checked.
func TestInputsAreKeptByContent(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	const one, two = `{"request":{"host":"a"}}`, `{"request":{"host":"b"}}`
	g.KeepInput(refOf(one), []byte(one))
	g.KeepInput(refOf(one), []byte(one))
	g.KeepInput(refOf(two), []byte(two))
	g.KeepInput(refOf(two), []byte("something else")) // not what its name says
	g.KeepInput("sha256:../../x", []byte("x"))
	g.close(t)
	for _, want := range []string{one, two} {
		if got, err := ReadInput(g.dir, refOf(want)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", want, got, err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(g.dir, inputsDir))
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if st, err := e.Info(); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), st.Mode(), err)
		}
	}
	no(t, os.WriteFile(filepath.Join(g.dir, inputsDir, hexSum([]byte(one))), []byte(two), 0o600))
	for _, ref := range []string{refOf(one), refOf("none"), "sha256:../../registry.jsonl", "x"} {
		if b, err := ReadInput(g.dir, ref); err == nil {
			t.Errorf("%s reads as %q", ref, b)
		}
	}
	wantVerdict(t, g.dir, VerdictComplete)
}

// noInputs is a file system on which the folder of inputs takes its time, and fails.
type noInputs struct {
	osFS
	release chan struct{}
}

func (n noInputs) MkdirAll(name string, perm os.FileMode) error {
	if filepath.Base(name) == inputsDir {
		<-n.release
		return errors.New("no space for inputs")
	}
	return n.osFS.MkdirAll(name, perm)
}

// A store that cannot be written holds nobody up: the log says how many are missing.
func TestInputsThatAreDroppedAreTold(t *testing.T) {
	release := make(chan struct{})
	g := start(t, Options{FS: noInputs{release: release}})
	const each = 1 << 20
	for i := range 2 + maxKeepQueue/each { // the first is with the goroutine, in the queue's bytes
		content := fmt.Sprintf("%0*d", each, i)
		g.KeepInput(refOf(content), []byte(content))
	}
	g.requests(t, 1) // goes on although the store hangs
	close(release)
	g.close(t)
	told := ""
	for _, r := range records(t, g.dir, Filter{}) {
		if r.Event == EventAnomaly {
			told += r.Detail + "\n"
		}
	}
	want := Count(2+maxKeepQueue/each, "decision input") + " not kept"
	if !strings.Contains(told, want) {
		t.Errorf("the log says %q, want %q", told, want)
	}
	wantVerdict(t, g.dir, VerdictComplete)
}

// The text of a policy is there under its digest; an attempt to leave the folder fails.
func TestPoliciesAreKeptByDigest(t *testing.T) {
	g := start(t, Options{})
	digest := refOf("a policy")
	files := map[string][]byte{"a.rego": []byte("package a"), "lib/b.rego": []byte("package b")}
	for range 2 {
		no(t, g.KeepPolicy(digest, files))
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(g.dir, policiesDir, strings.TrimPrefix(digest, digestPrefix), name))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, bad := range []string{"../x", "/x", "a/../../x", ""} {
		if err := g.KeepPolicy(refOf(bad), map[string][]byte{bad: nil}); err == nil {
			t.Errorf("%q was stored", bad)
		}
	}
	if err := g.KeepPolicy("sha256:..", files); err == nil {
		t.Error("a digest that is none was taken")
	}
	entries, err := os.ReadDir(filepath.Join(g.dir, policiesDir))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
}
