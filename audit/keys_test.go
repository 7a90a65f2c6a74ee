package audit

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeyRotationKeepsTheLogWhole(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.requests(t, 1)
	no(t, g.Checkpoint(t.Context()))
	before := g.c.s.key.Name()
	name, err := RotateKey(t.Context(), Options{Dir: g.dir, FS: &faulty{}})
	no(t, err)
	if name == before {
		t.Fatal("the key is the same")
	}
	wantVerdict(t, g.dir, VerdictComplete)
	no(t, g.Checkpoint(t.Context())) // a live writer goes on with the key it has
	wantVerdict(t, g.dir, VerdictComplete)
	g.close(t)
	start(t, Options{Dir: g.dir, FS: &faulty{}}).close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	last, err := os.ReadFile(filepath.Join(g.dir, registryFile))
	no(t, err)
	if lines := split(last); !strings.Contains(string(lines[len(lines)-1]), `"key":"`+name+`"`) {
		t.Errorf("the last line is not signed with %s: %s", name, lines[len(lines)-1])
	}
}

// Each system call of a rotation fails in turn: the next start goes on with a key that
// the log accounts for.
func TestEverySystemCallOfARotationFailsInTurn(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.requests(t, 1)
	g.close(t)
	trace := &faulty{}
	_, err := RotateKey(t.Context(), Options{Dir: copyDir(t, g.dir), FS: trace})
	no(t, err)
	for i, call := range trace.calls {
		dir := copyDir(t, g.dir)
		fsys := &faulty{hook: func(n int, _, _ string) error {
			if n == i {
				return errors.New("it fails")
			}
			return nil
		}}
		_, _ = RotateKey(t.Context(), Options{Dir: dir, FS: fsys})
		if err := judge(t, dir, nil); err != nil {
			t.Errorf("%d %s: %v", i, call, err)
		}
	}
}

func TestALostOrForeignKeyIsTold(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"lost": func(t *testing.T, dir string) { no(t, os.Remove(filepath.Join(dir, keysDir, signingKey))) },
		"foreign": func(t *testing.T, dir string) {
			no(t, os.Remove(filepath.Join(dir, keysDir, signingKey)))
			k, private, err := newKey()
			no(t, err)
			no(t, os.WriteFile(filepath.Join(dir, keysDir, signingKey), []byte(private), 0o600))
			no(t, os.WriteFile(filepath.Join(dir, keysDir, k.Name()+publicExt), []byte(k.public), 0o600))
		},
	} {
		g := start(t, Options{FS: &faulty{}})
		g.close(t)
		spoil(t, g.dir)
		wantVerdict(t, g.dir, VerdictComplete)
		next := start(t, Options{Dir: g.dir, FS: &faulty{}})
		next.close(t)
		if len(next.warnings()) == 0 {
			t.Errorf("%s: nothing was said", name)
		}
		wantVerdict(t, g.dir, VerdictAltered)
	}
}

func TestAKeyThatOthersMayReadIsRefused(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.close(t)
	no(t, os.Chmod(filepath.Join(g.dir, keysDir, signingKey), 0o644))
	if l, err := Open(t.Context(), Options{Dir: g.dir}); err == nil || !strings.Contains(err.Error(), "hint: chmod 0600") {
		t.Errorf("Open: %v", err)
		if err == nil {
			no(t, l.Close(t.Context()))
		}
	}
}

// The end of a run is signed for soon after it, without anybody asking.
func TestARunsEndIsSignedFor(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	name := filepath.Join(g.dir, streamsDir, g.stream(), checkpointFile)
	g.must(t, g.reserved("q1"), g.completed("q1"))
	no(t, g.ask(t.Context(), false, func() error { g.c.ticks = 0; g.c.tick(); return nil }))
	if _, err := os.Stat(name); err == nil {
		t.Fatal("a request is signed for: the test shows nothing")
	}
	g.must(t, &Record{Event: EventRunEnd, Run: g.run, RunEnd: &RunEnd{Cause: "exit"}})
	g.tickNow(t)
	text, err := os.ReadFile(name)
	if err != nil || !strings.Contains(string(text), "\n3\n") {
		t.Errorf("%v: %s", err, text)
	}
	wantVerdict(t, g.dir, VerdictComplete)
	g.close(t)
}

func TestACheckpointHasOneForm(t *testing.T) {
	c := checkpoint{"s-1", 3, "abc=", 2, strings.Repeat("a", 64)}
	k, _, err := newKey()
	no(t, err)
	signed, err := c.sign(k)
	no(t, err)
	text, _, _ := strings.Cut(string(signed), "\n\n")
	got, err := parseCheckpoint(text + "\n")
	if err != nil || got != c {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{
		"", text, text + "\n\n", strings.Replace(text, "\n3\n", "\n03\n", 1) + "\n", strings.Replace(text, "\n3\n", "\n+3\n", 1) + "\n",
		strings.Replace(text, "warder.audit", "another.audit", 1) + "\n", strings.Replace(text, "registry ", "registry  ", 1) + "\n",
	} {
		if _, err := parseCheckpoint(bad); err == nil {
			t.Errorf("%q is taken for a checkpoint", bad)
		}
	}
}
