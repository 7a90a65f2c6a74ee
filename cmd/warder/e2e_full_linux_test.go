package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// onFullDisk runs warder with a full file system at dir, which nobody else sees:
// in a mount namespace of its own (unshare(1)), as an ordinary user by way of a
// user namespace that maps nobody but the caller.
func (l *lab) onFullDisk(dir string, args ...string) outcomeOf {
	l.t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		l.t.Fatal(err)
	}
	flags := []string{"-m"}
	if os.Geteuid() != 0 {
		flags = append(flags, "-U", "--map-current-user", "--keep-caps")
	}
	script := `mount -t tmpfs -o size=64k,mode=0700 full "$0" && chown "$(id -u):$(id -g)" "$0" && { cat /dev/zero >"$0/fill" 2>/dev/null; exec "$@"; }; exit 99`
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	w := l.command(ctx, args...)
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		l.t.Fatal(err)
	}
	link := filepath.Join(l.dir, "warder") // main goes by its name
	if err := os.Symlink(self, link); err != nil && !os.IsExist(err) {
		l.t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "unshare", append(append(flags, "sh", "-c", script, dir, link), args...)...)
	cmd.Env, cmd.Dir = w.Env, w.Dir
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // its code says it
	return outcomeOf{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// TestE2EAFullDiskIsTold: whatever of ours is on the full disk, there is one clear
// line, and nothing is left; only artefacts that cannot be stored leave the task's
// own result as it is, and are named.
func TestE2EAFullDiskIsTold_I10(t *testing.T) {
	const full = "no space left on device"
	for what, dir := range map[string]string{"state": "state", "log": "audit", "images": "cache"} {
		t.Run(what, func(t *testing.T) {
			l := newLab(t)
			args := []string{"run", "--", "sh", "-c", "echo it ran; curl -sS https://" + allowedHost + "/v1/x"}
			if what == "images" {
				args = append([]string{"run", "--image", "oci:" + rootLayout(t)}, args[1:]...)
			}
			o := l.onFullDisk(filepath.Join(l.dir, dir), args...)
			if o.code != 125 || strings.Contains(o.stdout, "it ran") || !strings.Contains(o.stderr, full) || !strings.Contains(o.stderr, "hint:") || strings.Count(o.stderr, "\n") > 2 {
				t.Errorf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
			}
			if n := len(l.up.seen()); n != 0 {
				t.Errorf("%d requests arrived", n)
			}
			if left := globAny(filepath.Join(l.dir, "state/runs/*.jsonl")); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
			l.mustHold(l.warder(args...), 0, "it ran") // control: the same with room
			l.mustBeComplete()
		})
	}
	l := newLab(t)
	o := l.onFullDisk(filepath.Join(l.dir, "got"), "run", "-o", "json", "--artifact", "/out", "--artifacts-dir", "got", "--", "sh", "-c", "head -c 100000 /dev/zero >/out/big; exit 7")
	var r jsonRun
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
		t.Fatalf("%v\n%s%s", err, o.stdout, o.stderr)
	}
	if r.ExitCode != 7 || r.Cause != "exit" || len(r.Artifacts) != 1 || !strings.Contains(r.Artifacts[0].Refused, full) {
		t.Errorf("%+v", r)
	}
	o = l.onFullDisk(filepath.Join(l.dir, "got"), "run", "--artifact", "/out", "--artifacts-dir", "got", "--", "sh", "-c", "head -c 100000 /dev/zero >/out/big; exit 7")
	if o.code != 7 || !strings.Contains(o.stderr, "/out/big") || !strings.Contains(o.stderr, full) {
		t.Errorf("exit %d: %s", o.code, o.stderr)
	}
	l.mustBeComplete()
}
