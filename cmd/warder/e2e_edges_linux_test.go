package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A signal that comes before the task runs must not be lost: the run ends at
// once, as a process would.
func TestE2ESignalBeforeTheTask(t *testing.T) {
	l := newLab(t)
	for _, phase := range []string{"spawned", "created"} {
		trace := filepath.Join(l.dir, "trace-"+phase)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		cmd := l.command(ctx, "run", "-o", "json", "--trace", trace, "--", "/bin/sleep", "600")
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		followTrace(t, trace, phase)
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		cancel()
		var r jsonRun
		if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
			t.Fatalf("%s: %v\n%s%s", phase, err, out.String(), errs.String())
		}
		if code := cmd.ProcessState.ExitCode(); code != 128+15 || r.ExitCode != code || r.Cause != "signal" || r.Stderr != "" {
			t.Errorf("%s: exit %d, result %+v", phase, code, r)
		}
	}
	l.mustBeComplete()
}

func TestE2EWorkingDirectory(t *testing.T) {
	l := newLab(t)
	l.write("a.txt", "a")
	for dir, want := range map[string]string{"sub": "/workspace/sub", "/workspace/a/b": "/workspace/a/b", "/out/x": "/out/x", ".": "/workspace", "/tmp": "/tmp"} {
		l.mustHold(l.sh("pwd; echo text > new && cat new", "-w", dir), 0, want+"\ntext\n")
	}
	l.mustHold(l.sh("true", "--input", "a.txt", "-w", "a.txt"), 125, "not a folder")
	l.mustHold(l.sh("ls /workspace /out", "--input", "a.txt:.", "--input", "a.txt:/out"), 0, "/out:\na.txt\n\n/workspace:\na.txt\n")
}

// What the sandbox cannot be told as it stands is refused, never changed.
func TestE2EBytesThatCannotBePassedAreRefused(t *testing.T) {
	l := newLab(t)
	l.mustHold(l.warder("run", "--", "/bin/echo", "x\xff"), 125, "not valid UTF-8")
	l.mustHold(l.sh("true", "-e", "NAME=\xff"), 125, "not valid UTF-8")
	l.mustHold(l.sh("true", "-w", "\xff"), 125, "not valid UTF-8")
	l.mustHold(l.warder("run", "--", "/bin/echo", "é\n\x01"), 0, "é\n\x01\n")
}

func TestE2EOutputThatIsLostIsAFailure_I10(t *testing.T) {
	l := newLab(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for script, want := range map[string]int{"echo lost": 125, "echo lost; exit 7": 7, "true": 0} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		cmd := l.command(ctx, "run", "--", "/bin/sh", "-c", script)
		var errs strings.Builder
		cmd.Stdout, cmd.Stderr = full, &errs
		_ = cmd.Run()
		cancel()
		if code := cmd.ProcessState.ExitCode(); code != want || strings.Contains(errs.String(), "no space left") != strings.Contains(script, "lost") {
			t.Errorf("%s: exit %d, want %d: %s", script, code, want, errs.String())
		}
	}
}

// Files without content are bounded too, and shared memory is there.
func TestE2EFileSystemEdges_I9(t *testing.T) {
	l := newLab(t)
	r, _ := l.json(`python3 -c '
import multiprocessing
multiprocessing.Lock()
n = 0
try:
    while n < 100000:
        open("/out/%d" % n, "w").close()
        n += 1
except OSError as e:
    print("files end:", n, e.errno)
'`, "--disk", "4Mi")
	if !strings.Contains(r.Stdout, "files end: 10") || !strings.Contains(r.Stdout, " 28") {
		t.Errorf("%+v", r)
	}
}

// net/http tells the standard logger of bytes that nobody asked for, and they may
// be a credential that the upstream sends back.
func TestE2EUnaskedUpstreamBytesAreNotPrinted_I2(t *testing.T) {
	l := newLab(t)
	l.up.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintf(rw, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswerHTTP/1.1 200 OK\r\nX: %s\r\n\r\n", r.Header.Get("Authorization"))
		_ = rw.Flush()
		_, _ = c.Read(make([]byte, 1)) // until the proxy lets go
	})
	o := l.sh("curl -sS --max-time 20 https://api.allowed.test/v1/x; sleep 1")
	l.mustHold(o, 0, "answer")
	if strings.Contains(o.stdout+o.stderr, canary) || strings.Contains(o.stderr, "Unsolicited") {
		t.Errorf("printed: %s", o.stderr)
	}
	if seen := l.up.seen(); len(seen) != 1 || !strings.Contains(seen[0].authorization, canary) { // positive control
		t.Errorf("the upstream saw %v", seen)
	}
	l.noCanaryOnDisk()
}

// A task must not be able to hide its result, or its exit code, by its files' bits.
func TestE2EArtifactsThatTheirAuthorClosed(t *testing.T) {
	l := newLab(t)
	for _, pattern := range []string{"/out", "/out/**/f", "/out/d/e/f"} {
		r, _ := l.json("mkdir -p /out/d/e; echo text > /out/d/e/f; chmod 000 /out/d/e/f /out/d/e /out/d /out /workspace; exit 3",
			"--artifact", pattern, "--artifacts-dir", filepath.Join(l.dir, "got"))
		if r.ExitCode != 3 || len(r.Artifacts) != 1 || r.Artifacts[0].Path != "/out/d/e/f" || r.Artifacts[0].Size != 5 {
			t.Errorf("%s: %+v", pattern, r)
		}
	}
}

// A folder that results cannot go to is refused before the task runs.
func TestE2EArtifactsDirIsTriedFirst(t *testing.T) {
	l := newLab(t)
	l.write("file", "")
	o := l.sh("curl -s https://api.allowed.test/v1/x", "--artifact", "/out", "--artifacts-dir", filepath.Join(l.dir, "file"))
	l.mustHold(o, 125, "choose a writable --artifacts-dir")
	if n := l.up.connections(); n != 0 {
		t.Errorf("the task ran: %d connections", n)
	}
	l.mustHold(l.sh("curl -s https://api.allowed.test/v1/x; echo r > /out/r", "--artifact", "/out", "--artifacts-dir", filepath.Join(l.dir, "new/dir")), 0, "answer")
	if left, err := os.ReadDir(filepath.Join(l.dir, "new/dir")); err != nil || len(left) != 1 || left[0].Name() != "r" {
		t.Errorf("artefacts: %v, %v", left, err)
	}
}

// With a memory cgroup /workspace counts as memory, and the message says so.
func TestE2EInputsThatAreTooLargeAreTold(t *testing.T) {
	l := newLab(t)
	l.write("large", "")
	if err := os.Truncate(filepath.Join(l.dir, "large"), 300<<20); err != nil {
		t.Fatal(err)
	}
	l.mustHold(l.sh("true", "--input", "large", "--disk", "1Mi"), 125, "no space left")
	if os.Geteuid() == 0 {
		l.mustHold(l.sh("true", "--input", "large", "--memory", "32Mi"), 137, "hint: --memory")
	}
}

// The caller's mask for new files is about the caller's files alone (umask(2)).
func TestE2EUmaskIsTheCallersAlone(t *testing.T) {
	l := newLab(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	l.write("a.txt", "a")
	if err := os.Chmod(filepath.Join(l.dir, "a.txt"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := `umask; stat -c %a / /workspace /out /workspace/a.txt /tmp /etc/resolv.conf; curl -sS https://api.allowed.test/v1/x; echo r > /out/r`
	o := l.sh(script, "--input", "a.txt", "--artifact", "/out/r", "--artifacts-dir", filepath.Join(l.dir, "got"))
	l.mustHold(o, 0, "0022\n755\n755\n755\n644\n1777\n644\nanswer")
	if b, err := os.ReadFile(filepath.Join(l.dir, "got/r")); string(b) != "r\n" {
		t.Errorf("artefact %q, %v", b, err)
	}
}
