package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"warder/audit"
)

// folders makes the two folders that a dead sandbox leaves, opened.
func folders(t *testing.T) (ws, out string, wsf, outf *os.File) {
	t.Helper()
	ws, out = t.TempDir(), t.TempDir()
	open := func(p string) *os.File {
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	return ws, out, open(ws), open(out)
}

func byPath(files []audit.File) map[string]audit.File {
	m := map[string]audit.File{}
	for _, f := range files {
		m[f.Path] = f
	}
	return m
}

func TestArtifactsByFileFolderAndGlob(t *testing.T) {
	ws, out, wsf, outf := folders(t)
	write(t, filepath.Join(ws, "report.txt"), "report", 0o644)
	write(t, filepath.Join(ws, "logs/a.log"), "a", 0o4755)
	write(t, filepath.Join(ws, "logs/b.txt"), "b", 0o644)
	write(t, filepath.Join(out, "tree/x/y"), "y", 0o644)
	dest := t.TempDir()
	files, err := collectArtifacts(wsf, outf, []string{"report.txt", "logs/*.log", "/out/tree", "/workspace/absent", "report.txt"}, dest, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	m := byPath(files)
	for p, want := range map[string]string{"/workspace/report.txt": "report", "/workspace/logs/a.log": "a", "/out/tree/x/y": "y"} {
		f := m[p]
		local := strings.TrimPrefix(strings.TrimPrefix(p, "/workspace/"), "/out/")
		b, err := os.ReadFile(filepath.Join(dest, local))
		if f.SHA256 != hashOf(want) || string(b) != want || err != nil {
			t.Errorf("%s: %+v, %q, %v", p, f, b, err)
		}
	}
	if m["/workspace/absent"].Refused != "not found" || len(files) != 4 {
		t.Errorf("files: %+v", files)
	}
	if fi, err := os.Stat(filepath.Join(dest, "logs/a.log")); err != nil || fi.Mode()&os.ModeSetuid != 0 {
		t.Errorf("set-id bit kept: %v %v", fi, err)
	}
}

func TestArtifactsNeverFollowLinks_F109(t *testing.T) {
	ws, out, wsf, outf := folders(t)
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "S3CR3T-CANARY", 0o600)
	link := func(target, p string) {
		if err := os.Symlink(target, p); err != nil {
			t.Fatal(err)
		}
	}
	link(secret, filepath.Join(out, "final"))
	link("/proc/self/environ", filepath.Join(out, "environ"))
	link("/nonexistent", filepath.Join(out, "dangling"))
	link(filepath.Dir(secret), filepath.Join(out, "folder"))
	link(filepath.Dir(secret), filepath.Join(ws, "via"))
	if err := syscall.Mkfifo(filepath.Join(out, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(out, "good"), "good", 0o644)
	dest := t.TempDir()
	files, err := collectArtifacts(wsf, outf, []string{"/out", "/workspace/via/secret", "/workspace/via/*", "../secret", "/etc/passwd"}, dest, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	m := byPath(files)
	for _, p := range []string{"/out/final", "/out/environ", "/out/dangling", "/out/folder", "/out/fifo", "/workspace/via", "../secret", "/etc/passwd"} {
		if m[p].Refused == "" {
			t.Errorf("%s was not refused: %+v", p, m[p])
		}
	}
	// Positive control: the regular file beside them arrived.
	if m["/out/good"].SHA256 != hashOf("good") {
		t.Errorf("good: %+v", m["/out/good"])
	}
	es, err := os.ReadDir(dest)
	if err != nil || len(es) != 1 || es[0].Name() != "good" {
		t.Errorf("destination holds %v, %v", es, err)
	}
}

func TestArtifactsReplaceALinkAtTheDestination(t *testing.T) {
	_, out, wsf, outf := folders(t)
	write(t, filepath.Join(out, "a"), "new", 0o644)
	victim := filepath.Join(t.TempDir(), "victim")
	write(t, victim, "keep", 0o600)
	dest := t.TempDir()
	if err := os.Symlink(victim, filepath.Join(dest, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := collectArtifacts(wsf, outf, []string{"/out/a"}, dest, 1<<30); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(victim); string(b) != "keep" {
		t.Errorf("the file behind the link was overwritten with %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(dest, "a")); string(b) != "new" {
		t.Errorf("artefact: %q", b)
	}
}

func TestArtifactsOfOneNameAreNotConfused(t *testing.T) {
	ws, out, wsf, outf := folders(t)
	write(t, filepath.Join(ws, "same"), "first", 0o644)
	write(t, filepath.Join(out, "same"), "second", 0o644)
	files, err := collectArtifacts(wsf, outf, []string{"same", "/out/same"}, t.TempDir(), 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	refused := slices.DeleteFunc(slices.Clone(files), func(f audit.File) bool { return f.Refused == "" })
	if len(files) != 2 || len(refused) != 1 {
		t.Errorf("files: %+v", files)
	}
}

func TestArtifactsDepthIsBounded(t *testing.T) {
	_, out, wsf, outf := folders(t)
	write(t, filepath.Join(out, strings.Repeat("d/", maxArtifactDepth+2)+"f"), "deep", 0o644)
	files, err := collectArtifacts(wsf, outf, []string{"/out"}, t.TempDir(), 1<<30)
	if err != nil || len(files) != 1 || !strings.Contains(files[0].Refused, "deeper") {
		t.Errorf("%+v, %v", files, err)
	}
}

// A sparse file costs its author nothing; what is copied out is bounded by the
// disk limit (I9).
func TestArtifactsAreBoundedByTheDiskLimit_I9(t *testing.T) {
	_, out, wsf, outf := folders(t)
	write(t, filepath.Join(out, "small"), "small", 0o644)
	if err := os.WriteFile(filepath.Join(out, "sparse"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(out, "sparse"), 1<<40); err != nil {
		t.Fatal(err)
	}
	dest := t.TempDir()
	files, err := collectArtifacts(wsf, outf, []string{"/out"}, dest, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	m := byPath(files)
	if m["/out/small"].SHA256 != hashOf("small") {
		t.Errorf("the small one: %+v", m["/out/small"])
	}
	if !strings.Contains(m["/out/sparse"].Refused, "size limit") {
		t.Errorf("the sparse one: %+v", m["/out/sparse"])
	}
	if _, err := os.Stat(filepath.Join(dest, "sparse")); !os.IsNotExist(err) {
		t.Errorf("something of it was written: %v", err)
	}
}

func TestArtifactPatterns(t *testing.T) {
	_, out, wsf, outf := folders(t)
	for _, name := range []string{"a.xml", "x/a.xml", "x/y/z/a.xml", "x/y/b.txt", "g[1].txt", "["} {
		write(t, filepath.Join(out, name), name, 0o644)
	}
	if err := os.Symlink(out, filepath.Join(out, "x/loop")); err != nil {
		t.Fatal(err)
	}
	for pattern, want := range map[string][]string{
		"/out/**/*.xml":    {"/out/a.xml", "/out/x/a.xml", "/out/x/y/z/a.xml"},
		"/out/x/**/**/a.*": {"/out/x/a.xml", "/out/x/y/z/a.xml"},
		"/out/x/y/**":      {"/out/x/y/b.txt", "/out/x/y/z/a.xml"},
		"/out/g[1].txt":    {"/out/g[1].txt"}, // itself, when nothing else matches
		"/out/[":           {"/out/["},
		"/out/*.xml":       {"/out/a.xml"},
	} {
		files, err := collectArtifacts(wsf, outf, []string{pattern}, t.TempDir(), 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range files {
			if f.Refused != "" {
				t.Errorf("%s: %+v", pattern, f)
			}
			got = append(got, f.Path)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", pattern, got, want)
		}
	}
}

func TestArtifactNamesThatAreNotUTF8AreToldApart(t *testing.T) {
	_, out, wsf, outf := folders(t)
	write(t, filepath.Join(out, "bad\xff"), "one", 0o644)
	write(t, filepath.Join(out, "bad\xfe"), "two", 0o644)
	write(t, filepath.Join(out, "é\n"), "three", 0o644)
	dest := t.TempDir()
	files, err := collectArtifacts(wsf, outf, []string{"/out"}, dest, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	m := byPath(files)
	for p, want := range map[string]string{`/out/bad\xff`: "one", `/out/bad\xfe`: "two", "/out/é\n": "three"} {
		if m[p].SHA256 != hashOf(want) {
			t.Errorf("%q: %+v of %+v", p, m[p], files)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dest, "bad\xff")); string(b) != "one" {
		t.Errorf("on the host: %q, %v", b, err)
	}
}

func TestArtifactsCountIsBounded(t *testing.T) {
	_, out, wsf, outf := folders(t)
	for i := range maxArtifacts + 5 {
		if err := os.Symlink("x", filepath.Join(out, fmt.Sprintf("l%05d", i))); err != nil { // refused, and counted like any other
			t.Fatal(err)
		}
	}
	files, err := collectArtifacts(wsf, outf, []string{"/out"}, t.TempDir(), 1<<30)
	if err != nil || len(files) != maxArtifacts+1 {
		t.Fatalf("%d are listed, %v", len(files), err)
	}
	over := 0
	for _, f := range files {
		if strings.Contains(f.Refused, "more than") {
			over++
		}
	}
	if over != 1 {
		t.Errorf("%d entries say that there are more", over)
	}
}
