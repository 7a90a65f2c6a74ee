package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/audit"
)

// TestE2EBadInputIsOneClearLine: what a caller can get wrong before a task runs is
// told in one line with a hint, costs 125, and leaves nothing but its record.
func TestE2EBadInputIsOneClearLine(t *testing.T) {
	l := newLab(t)
	_, ref := imageRegistry(t, testImage(t))
	l.write("fine", "text")
	l.write("closed", "text")
	l.write("no.tar", "this is no archive\n")
	for _, d := range []string{"readonly", "secrets", "links"} {
		if err := os.Mkdir(filepath.Join(l.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.write("secrets/.env", "TOKEN=S3CR3T-CANARY\n")
	if err := os.Symlink("/etc/passwd", filepath.Join(l.dir, "links/link")); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		flags []string
		text  string
	}{
		"image: no layout":        {[]string{"--image", "oci:nowhere"}, "nowhere"},
		"image: no archive":       {[]string{"--image", "oci-archive:no.tar"}, "no.tar"},
		"image: no docker save":   {[]string{"--image", "docker-archive:no.tar"}, "no.tar"},
		"image: no folder":        {[]string{"--image", "dir:nowhere"}, "nowhere"},
		"image: no file":          {[]string{"--image", "erofs:nowhere"}, "nowhere"},
		"image: no tag":           {[]string{"--image", strings.TrimSuffix(ref, "1") + "2"}, "MANIFEST_UNKNOWN"},
		"image: no registry":      {[]string{"--image", "127.0.0.1:1/app:1"}, "connection refused"},
		"image: no digest":        {[]string{"--image", ref[:len(ref)-2] + "@sha256:" + strings.Repeat("0", 64)}, "MANIFEST_UNKNOWN"},
		"image: no name":          {[]string{"--image", "UPPER CASE"}, "UPPER CASE"},
		"input: missing":          {[]string{"--input", "nowhere"}, "nowhere"},
		"input: no archive":       {[]string{"--input", "tar:no.tar"}, "no.tar"},
		"input: climbs":           {[]string{"--input", "fine:../x"}, "leaves the workspace"},
		"input: elsewhere":        {[]string{"--input", "fine:/etc/x"}, "/workspace or /out"},
		"input: a credential":     {[]string{"--input", "secrets"}, ".env"},
		"input: a link outside":   {[]string{"--input", "links"}, "points outside"},
		"limit: no memory":        {[]string{"--memory", "1"}, "memory"},
		"limit: no disk":          {[]string{"--disk", "1"}, "disk"},
		"limit: no processes":     {[]string{"--pids-limit", "0"}, "pids"},
		"limit: no time":          {[]string{"--timeout", "-1s"}, "timeout"},
		"artefacts: a file":       {[]string{"--artifact", "/out", "--artifacts-dir", "fine"}, "fine"},
		"artefacts: below a file": {[]string{"--artifact", "/out", "--artifacts-dir", "fine/x"}, "fine"},
		"user: no number":         {[]string{"--user", "somebody"}, "somebody"},
		"credential: unknown":     {[]string{"--credential", "nowhere"}, "nowhere"},
	}
	if os.Geteuid() != 0 { // modes say nothing to root
		if err := os.Chmod(filepath.Join(l.dir, "closed"), 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(l.dir, "readonly"), 0o555); err != nil {
			t.Fatal(err)
		}
		cases["input: unreadable"] = struct {
			flags []string
			text  string
		}{[]string{"--input", "closed"}, "permission denied"}
		cases["artefacts: read-only"] = struct {
			flags []string
			text  string
		}{[]string{"--artifact", "/out", "--artifacts-dir", "readonly"}, "permission denied"}
	} else {
		cases["artefacts: read-only"] = struct {
			flags []string
			text  string
		}{[]string{"--artifact", "/out", "--artifacts-dir", "/proc/sys"}, "/proc/sys"}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := len(l.records(nil))
			o := l.warder(append(append([]string{"run"}, c.flags...), "--", "sh", "-c", "echo it ran")...)
			said := strings.TrimSuffix(o.stderr, "\n")
			if o.code != 125 || o.stdout != "" || !strings.Contains(said, c.text) || !strings.HasPrefix(said, "warder: ") || strings.Contains(said, "\n") || !strings.Contains(said, "hint:") {
				t.Errorf("exit %d, want one line with %q and a hint\n%s%s", o.code, c.text, o.stdout, o.stderr)
			}
			if strings.Contains(o.stderr, "S3CR3T-CANARY") {
				t.Error("the line shows what is in the file")
			}
			if left := globAny(filepath.Join(l.dir, "state/runs/*.jsonl")); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			for _, r := range l.records(nil)[before:] {
				if r.Event == audit.EventRunEnd && (r.RunEnd.Cause != "error" || fmt.Sprint(*r.RunEnd.ExitCode) != "125") {
					t.Errorf("run.end: %+v", r.RunEnd)
				}
			}
		})
	}
	l.mustHold(l.warder("run", "--input", "fine", "--artifact", "/out", "--", "sh", "-c", "cat fine; echo it ran"), 0, "textit ran") // control
	l.mustBeComplete()
}

// TestE2ERefusedArtifactsAreNamed: in text too, without a byte that a terminal obeys.
func TestE2ERefusedArtifactsAreNamed_F109_F129(t *testing.T) {
	l := newLab(t)
	o := l.sh(`ln -s /etc/passwd /out/link; ln -s /proc/self/environ "/out/$(printf 'esc\033]52;c;aGk=\007')"; echo fine >/out/fine; exit 3`, "--artifact", "/out", "--artifact", "/out/absent")
	for _, want := range []string{`"/out/link": `, `esc\x1b]52`, `"/out/absent": `} {
		l.mustHold(o, 3, want)
	}
	if strings.ContainsAny(o.stderr, "\x1b\x07") || strings.Contains(o.stderr, "fine") {
		t.Errorf("%q", o.stderr)
	}
	if got, _ := filepath.Glob(filepath.Join(l.dir, "artifacts/*")); len(got) != 1 {
		t.Errorf("collected: %v", got)
	}
}
