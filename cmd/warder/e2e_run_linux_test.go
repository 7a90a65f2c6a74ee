package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"warder/audit"
)

// TestE2EClientsReachTheAllowedAPI: programs that know nothing of proxies reach
// an allowed API over TLS; the API sees the credential, they never do.
func TestE2EClientsReachTheAllowedAPI(t *testing.T) { // I2, I3
	for name, script := range map[string]string{
		"curl":    `curl -sS --fail -D - https://api.allowed.test/v1/items`,
		"python3": `python3 -c 'import urllib.request as u; r = u.urlopen("https://api.allowed.test/v1/items"); print(r.headers, r.read().decode())'`,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			o := l.sh(`env | grep -i proxy; ` + script)
			if o.code != 0 || !strings.Contains(o.stdout, "answer to GET /v1/items") {
				t.Fatalf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
			}
			got := l.up.seen()
			if len(got) != 1 || got[0].authorization != "Bearer "+canary {
				t.Fatalf("the API saw %d requests, with the credential: %v", len(got), len(got) == 1 && got[0].authorization == "Bearer "+canary)
			}
			if strings.Contains(o.stdout+o.stderr, canary) || !strings.Contains(o.stdout, strings.Repeat("*", len(canary))) {
				t.Error("the reflected credential was not masked")
			}
			if recs := l.records(requestsOf); len(recs) != 2 || recs[0].Stage != audit.StageReserved || recs[1].Stage != audit.StageCompleted ||
				recs[1].Credential == nil || recs[1].Credential.Name != "api" || recs[1].Response.Scrubbed < 2 {
				t.Errorf("records: %+v", recs)
			}
			l.mustBeComplete()
			l.noCanaryOnDisk()
		})
	}
}

func TestE2EGitReadsARemote_F084(t *testing.T) {
	l := newLab(t)
	l.up.serveGit(t)
	o := l.sh(`git ls-remote https://api.allowed.test/repo.git`)
	if o.code != 0 || !strings.Contains(o.stdout, "refs/heads/main") {
		t.Fatalf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
	}
	for _, r := range l.up.seen() {
		if r.authorization != "Bearer "+canary {
			t.Errorf("%s %s came without the credential", r.method, r.target)
		}
	}
	if len(l.up.seen()) == 0 {
		t.Error("the API saw nothing")
	}
}

// noCanaryOnDisk searches everything that was written, with a planted canary as
// positive control.
func (l *lab) noCanaryOnDisk() {
	l.t.Helper()
	planted := filepath.Join(l.dir, "state", "planted")
	if err := os.WriteFile(planted, []byte("x"+canary+"y"), 0o600); err != nil {
		l.t.Fatal(err)
	}
	var found []string
	err := filepath.WalkDir(l.dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || p == filepath.Join(l.dir, "secret") {
			return err
		}
		b, err := os.ReadFile(p)
		if strings.Contains(string(b), canary) {
			found = append(found, p)
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	if !slices.Equal(found, []string{planted}) {
		l.t.Errorf("the credential stands in %v; only the planted one should be found", found)
	}
	if err := os.Remove(planted); err != nil {
		l.t.Fatal(err)
	}
}

// searcher looks for two texts without holding either in one piece: the
// credential, and one that is planted in each place as positive control.
const searcher = `
import os, re, sys, urllib.request, subprocess
real = re.compile(rb"S3CR3T[-]CANARY[-]0123456789abcdef")
control = re.compile(rb"PLANTED[-]CONTROL[-]fedcba9876543210")
plant = "-".join(["PLANTED", "CONTROL", "fedcba9876543210"])
body = urllib.request.urlopen("https://api.allowed.test/v1/items").read()
os.makedirs("/tmp/d", exist_ok=True)
open("/tmp/d/planted", "w").write(plant)
child = subprocess.Popen(["/bin/sleep", "600", ], env={"P": plant})
argv = subprocess.Popen(["/bin/sh", "-c", "sleep 600; : " + plant])
keep = bytearray(plant.encode())
hits = {"real": set(), "control": set()}
def look(where, data):
    if real.search(data): hits["real"].add(where)
    if control.search(data): hits["control"].add(where)
os.environ["PLANT"] = plant
look("environment", "\n".join("%s=%s" % kv for kv in os.environ.items()).encode())
seen = 0
for top in ("/etc", "/tmp", "/workspace", "/out", "/root", "/home", "/run", "/var", "/dev/shm", "/opt", "/srv", "/mnt"):
    for d, _, names in os.walk(top):
        for n in names:
            p = os.path.join(d, n)
            if os.path.islink(p) or not os.path.isfile(p): continue
            try:
                with open(p, "rb") as f: look("file", f.read(8 << 20)); seen += 1
            except OSError: pass
for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
    for n in ("environ", "cmdline", "status", "mountinfo", "maps", "comm", "limits", "auxv"):
        try:
            with open("/proc/%s/%s" % (pid, n), "rb") as f: look("/proc " + n, f.read(8 << 20))
        except OSError: pass
for n in os.listdir("/proc"):
    if n.isdigit() or n in ("kmsg", "kcore", "sysrq-trigger") or os.path.isdir("/proc/" + n): continue
    try:
        with open("/proc/" + n, "rb") as f: look("/proc", f.read(1 << 20))
    except OSError: pass
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as mem:
    for line in maps:
        span, perm = line.split()[:2]
        if "r" not in perm or "vsyscall" in line or "vvar" in line: continue
        a, b = (int(x, 16) for x in span.split("-"))
        try:
            mem.seek(a); look("memory", mem.read(min(b - a, 256 << 20)))
        except (OSError, ValueError, OverflowError): pass
child.kill(); argv.kill()
print("reflected:", b"*" * 30 in body, "files:", seen > 20)
print("real:", sorted(hits["real"]))
print("control:", sorted(hits["control"]))
`

func TestE2ECredentialIsNowhereInside(t *testing.T) { // I2, F093, F118
	l := newLab(t)
	l.write("search.py", searcher)
	for _, user := range labUsers() {
		o := l.warder("run", "--user", user, "--input", "search.py", "--", "python3", "/workspace/search.py")
		if o.code != 0 || !strings.Contains(o.stdout, "reflected: True files: True") {
			t.Fatalf("user %s: exit %d\n%s%s", user, o.code, o.stdout, o.stderr)
		}
		if !strings.Contains(o.stdout, "real: []\n") {
			t.Errorf("user %s: %s", user, o.stdout)
		}
		if !strings.Contains(o.stdout, "control: ['/proc cmdline', '/proc environ', 'environment', 'file', 'memory']") {
			t.Errorf("user %s: the search misses a place: %s", user, o.stdout)
		}
	}
	for _, r := range l.up.seen() {
		if r.authorization != "Bearer "+canary {
			t.Error("control: the API did not see the credential")
		}
	}
	l.noCanaryOnDisk()
}

// labUsers are the ids that the task can have: one as an ordinary user, two as root.
func labUsers() []string {
	if os.Geteuid() == 0 {
		return []string{"0", "1000"}
	}
	return []string{"0"}
}

func TestE2EProcessListShowsNoCredential(t *testing.T) { // I2, F077
	l := newLab(t)
	trace := filepath.Join(l.dir, "trace")
	cmd := l.command(t.Context(), "run", "--trace", trace, "--", "/bin/sh", "-c", "curl -sS https://api.allowed.test/v1/x >/dev/null; echo ready; read x")
	cmd.Args = append(cmd.Args[:2], append([]string{"-i", "--label", "control=PLANTED-CONTROL"}, cmd.Args[2:]...)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	var real, control int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		for _, n := range []string{"cmdline", "environ"} {
			b, _ := os.ReadFile(filepath.Join(d, n))
			if strings.Contains(string(b), canary) {
				real++
			}
			if strings.Contains(string(b), "PLANTED-CONTROL") {
				control++
			}
		}
	}
	if _, err := stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if real != 0 || control == 0 {
		t.Errorf("the credential in %d places of the process list, the control in %d", real, control)
	}
}

func TestE2ENothingOfTheHostLeaksIn_F118_F130(t *testing.T) { // F118, F130
	l := newLab(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	o := l.sh(`env; hostname; cat /proc/self/environ /proc/cmdline /proc/mounts /proc/self/mountinfo /etc/hosts /etc/resolv.conf /etc/passwd; ls -l /proc/self/fd | wc -l; cat /etc/shadow /root/.bashrc`, "-e", "DECLARED=yes")
	for _, bad := range []string{"HOST-ENVIRONMENT-CANARY", l.dir, "/home/" + "x"} {
		if strings.Contains(o.stdout, bad) {
			t.Errorf("%q is visible inside", bad)
		}
	}
	if !commonName(host) && strings.Contains(o.stdout, host+"\n") {
		t.Errorf("the host's name %q is visible inside", host)
	}
	if !strings.Contains(o.stdout, "DECLARED=yes") {
		t.Error("control: a declared variable is not visible inside")
	}
	// 0, 1, 2, the folder that ls reads, and the line "total 0".
	if !strings.Contains(o.stdout, "\n5\n") {
		t.Errorf("descriptors beyond the three: %s", o.stdout)
	}
}

func TestE2EExitCodesAndCauses_F127(t *testing.T) { // F127
	l := newLab(t)
	for _, c := range []struct {
		name, script string
		flags        []string
		code         int
		cause        string
	}{
		{"zero", "true", nil, 0, "exit"},
		{"one", "exit 1", nil, 1, "exit"},
		{"seven", "exit 7", nil, 7, "exit"},
		{"the task's own 137", "exit 137", nil, 137, "exit"},
		{"255", "exit 255", nil, 255, "exit"},
		{"SIGKILL", "kill -9 $$; sleep 60", nil, 137, "signal"},
		{"SIGSEGV", "kill -SEGV $$; sleep 60", nil, 139, "signal"},
		{"timeout", "trap '' TERM; while :; do :; done", []string{"--timeout", "2s"}, 124, "timeout"},
		{"out of memory", `exec python3 -c 'x=[bytearray(10<<20) for _ in range(60)]; print("survived")'`, []string{"--memory", "128Mi"}, 137, "oom"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, o := l.json(c.script, c.flags...)
			if o.code != c.code || r.ExitCode != c.code || r.Cause != c.cause {
				t.Errorf("exit %d, JSON %d %q; want %d %q\n%s", o.code, r.ExitCode, r.Cause, c.code, c.cause, o.stderr)
			}
		})
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		text string
	}{
		{"not found", []string{"run", "--", "no-such-command"}, 127, "no-such-command"},
		{"not found by path", []string{"run", "--", "/no/such"}, 127, "/no/such"},
		{"not executable", []string{"run", "--", "/etc/passwd"}, 126, "/etc/passwd"},
		{"our fault: no such flag", []string{"run", "--no-such-flag", "--", "true"}, 125, "no-such-flag"},
		{"our fault: no command", []string{"run"}, 125, ""},
		{"our fault: an input that is not there", []string{"run", "--input", "absent", "--", "true"}, 125, "absent"},
		{"our fault: an impossible limit", []string{"run", "--memory", "1", "--", "true"}, 125, "memory"},
		{"our fault: no user", []string{"run", "--user", "4294967296", "--", "true"}, 125, "4294967296"},
		{"our fault: an unknown credential", []string{"run", "--credential", "nope", "--", "true"}, 125, "nope"},
	} {
		t.Run(c.name, func(t *testing.T) { l.mustHold(l.warder(c.args...), c.code, c.text) })
	}
	l.mustBeComplete()
}

func TestE2EStreamsPassUnchanged_F128_F129(t *testing.T) { // F128, F129
	l := newLab(t)
	o := l.sh(`printf 'out\000\377\033[31m{"verdict":"allow"}'; printf 'err\001' >&2`)
	if o.stdout != "out\x00\xff\x1b[31m{\"verdict\":\"allow\"}" || o.stderr != "err\x01" {
		t.Errorf("stdout %q stderr %q", o.stdout, o.stderr)
	}
	r, _ := l.json(`head -c 20000000 /dev/zero | tr '\0' x; echo end >&2`)
	if len(r.Stdout) != 8<<20 || !r.Truncated || r.Stderr != "end\n" {
		t.Errorf("kept %d bytes, truncated %v, stderr %q", len(r.Stdout), r.Truncated, r.Stderr)
	}
	o = l.sh(`head -c 20000000 /dev/zero`)
	if len(o.stdout) != 20000000 {
		t.Errorf("%d of 20000000 bytes arrived", len(o.stdout))
	}
}

func TestE2EInputsAndArtifacts(t *testing.T) {
	l := newLab(t)
	if err := os.MkdirAll(filepath.Join(l.dir, "src/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.write("src/sub/data", "input data")
	r, o := l.json(`cat src/sub/data > /out/copy; echo log > build.log; ln -s /etc/passwd /out/link; echo $((1+1)) > two.log`,
		"--input", "src", "--artifact", "/out", "--artifact", "*.log", "--artifacts-dir", "got")
	if o.code != 0 {
		t.Fatalf("exit %d: %s%s", o.code, o.stdout, o.stderr)
	}
	for name, want := range map[string]string{"copy": "input data", "build.log": "log\n", "two.log": "2\n"} {
		if b, err := os.ReadFile(filepath.Join(l.dir, "got", name)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	refused := 0
	for _, a := range r.Artifacts {
		if a.Path == "/out/link" && a.Refused != "" {
			refused++
		}
	}
	if refused != 1 || len(r.Artifacts) != 4 {
		t.Errorf("artefacts: %+v", r.Artifacts)
	}
	if b, err := os.ReadFile(filepath.Join(l.dir, "src/sub/data")); err != nil || string(b) != "input data" {
		t.Errorf("the caller's input changed: %q %v", b, err)
	}
	start := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunStart })
	end := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunEnd })
	if len(start) != 1 || len(start[0].Inputs) != 1 || start[0].Inputs[0].SHA256 == "" || len(end) != 1 || len(end[0].Artifacts) != 4 {
		t.Errorf("records: start %+v, end %+v", start, end)
	}
}

func TestE2ELimitsHold_F125(t *testing.T) { // F125
	l := newLab(t)
	t.Run("processes", func(t *testing.T) {
		o := l.sh(`for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 60 & done 2>&1; echo started`, "--pids-limit", "10", "--timeout", "20s")
		if !strings.Contains(o.stdout+o.stderr, "fork") {
			t.Errorf("20 processes under a limit of 10: exit %d\n%s%s", o.code, o.stdout, o.stderr)
		}
	})
	t.Run("disk", func(t *testing.T) {
		o := l.sh(`head -c 2M /dev/zero > /workspace/a && echo control; head -c 20M /dev/zero > /workspace/b || echo full`, "--disk", "8Mi")
		if !strings.Contains(o.stdout, "control") || !strings.Contains(o.stdout, "full") {
			t.Errorf("%s%s", o.stdout, o.stderr)
		}
	})
	t.Run("cpus", func(t *testing.T) {
		o := l.sh(`true`, "--cpus", "0.5")
		if os.Geteuid() == 0 {
			l.mustHold(o, 0, "")
			return
		}
		l.mustHold(o, 125, "--cpus cannot be enforced") // never a limit that was asked for and does not hold
		r, _ := l.json(`true`)
		if !slices.Equal(r.NotEnforced, []string{"cpus"}) {
			t.Errorf("not enforced: %v", r.NotEnforced)
		}
	})
}

func TestE2EStandardInput(t *testing.T) {
	l := newLab(t)
	cmd := l.command(t.Context(), "run", "-i", "--", "cat")
	cmd.Stdin = strings.NewReader("hello\x00world")
	if out, err := cmd.Output(); err != nil || string(out) != "hello\x00world" {
		t.Errorf("%q %v", out, err)
	}
	cmd = l.command(t.Context(), "run", "--", "cat")
	cmd.Stdin = strings.NewReader("not passed on")
	if out, err := cmd.Output(); err != nil || string(out) != "" {
		t.Errorf("without -i: %q %v", out, err)
	}
}

// TestE2EAReaderThatGoesAway_F128: as in a shell's pipeline, the task's writes fail,
// and the run ends in order.
func TestE2EAReaderThatGoesAway_F128(t *testing.T) { // F128
	l := newLab(t)
	cmd := l.command(t.Context(), "run", "--timeout", "60s", "--", "yes")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	out.Close()
	_ = cmd.Wait()
	ends := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunEnd })
	if len(ends) != 1 || ends[0].Cause == "timeout" || !ends[0].Stdout.Truncated {
		t.Errorf("exit %d, records %+v", cmd.ProcessState.ExitCode(), ends)
	}
	l.mustBeComplete()
}

func TestE2EJSONTellsEveryFailure(t *testing.T) {
	l := newLab(t)
	for name, spoil := range map[string]func(){
		"the task":          func() {},
		"the configuration": func() { l.write("warder.yaml", "version: 7\n") },
	} {
		t.Run(name, func(t *testing.T) {
			spoil()
			o := l.warder("run", "-o", "json", "--", "/no/such")
			var r jsonRun
			if err := json.Unmarshal([]byte(o.stdout), &r); err != nil || r.ExitCode != o.code || r.Cause != "error" || r.Detail == "" {
				t.Errorf("%v: exit %d: %s", err, o.code, o.stdout)
			}
		})
	}
}
