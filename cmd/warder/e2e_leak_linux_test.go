package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/audit"
	"warder/internal/identity"
	"warder/runner"
)

// number is that of the environment, for a soak, or a small one.
func number(t *testing.T, name string, small int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return small
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number of runs", name, s)
	}
	return n
}

// lookAround tells whatever an earlier or another run has left where a run can
// write, and leaves something there itself.
const lookAround = `ps=$(ls /proc | grep -c '^[0-9]*$')
for d in /tmp /var/tmp /workspace /out /dev/shm /run /home "$HOME"; do
  for f in "$d"/* "$d"/.[!.]*; do case $f in /home/*) ;; *) [ ! -e "$f" ] || echo "found $f" ;; esac; done
done
for d in /tmp /workspace /out /dev/shm; do echo trace >"$d/mark" || echo "cannot write to $d"; done
[ "$ps" -lt 6 ] || echo "sees $ps processes"
echo looked`

// host counts what runs of the given ids have on the host.
func onHost(t *testing.T, l *lab, ids []string) map[string]int {
	t.Helper()
	n := map[string]int{"mounts": strings.Count(mounts(t), "\n")}
	for _, id := range ids {
		n["processes"] += len(processesOf(id))
		n["cgroups"] += len(cgroupsOf(id))
	}
	err := filepath.WalkDir(l.dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !strings.HasPrefix(p, filepath.Join(l.dir, "audit")) {
			n["files"]++
		}
		return nil // a folder that just went is no fault
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestE2EManyRunsAtOnceLeaveNothing_F132: beside each other they see nothing of one
// another, and after them the host is as before.
func TestE2EManyRunsAtOnceLeaveNothing_F132(t *testing.T) { // I8, I9, F132
	l := newLab(t)
	l.mustHold(l.sh("true"), 0, "")
	before := onHost(t, l, nil)
	var ids []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range number(t, "WARDER_SOAK_ATONCE", 6) {
		wg.Go(func() {
			cmd := l.command(t.Context(), "run", "-o", "json", "--timeout", "5m", "--memory", "64Mi", "--", "/bin/sh", "-c", lookAround+"; sleep 2")
			out, err := cmd.Output()
			var r jsonRun
			if jerr := json.Unmarshal(out, &r); err != nil || jerr != nil || r.Stdout != "looked\n" || r.Stderr != "" {
				t.Errorf("%v %v: %s", err, jerr, out)
			}
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, r.RunID)
		})
	}
	wg.Wait()
	if after := onHost(t, l, ids); fmt.Sprint(after) != fmt.Sprint(map[string]int{"mounts": before["mounts"], "files": before["files"], "processes": 0, "cgroups": 0}) {
		t.Errorf("before %v, after %v", before, after)
	}
	l.mustBeComplete()

	wait, p := l.startWaiting("control")
	defer func() { _ = wait() }()
	during := onHost(t, l, []string{p.Run})
	if during["processes"] < 3 || during["files"] <= before["files"] || os.Geteuid() == 0 && during["cgroups"] == 0 {
		t.Errorf("control: a run that lives counts as %v", during)
	}
	l.mustHold(l.warder("rm", p.Run), 0, p.Run)
}

// inProcess counts what this process holds: descriptors, goroutines, threads,
// children, bytes of its heap.
func inProcess(t *testing.T) map[string]int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	kids, err := exec.Command("ps", "--no-headers", "-o", "pid", "--ppid", strconv.Itoa(os.Getpid())).Output()
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return map[string]int{"descriptors": len(fds), "goroutines": runtime.NumGoroutine(), "children": bytes.Count(kids, []byte("\n")), "heap": int(m.HeapAlloc)}
}

// TestE2EManyRunsInOneProcess_F132: a process that runs one task after the other holds
// no more after the last than after the first.
func TestE2EManyRunsInOneProcess_F132(t *testing.T) { // I8, F132
	l := newLab(t)
	runs := number(t, "WARDER_SOAK_RUNS", 10)
	a, err := newApp(appOptions{config: filepath.Join(l.dir, "warder.yaml"), state: filepath.Join(l.dir, "state"), oneShot: true, stderr: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	}()
	r := &runner.Runner{State: a.state, Log: a.log}
	r.Open = func(ctx context.Context) error {
		err := a.open(ctx)
		r.Proxy, r.Broker = a.proxy, a.broker
		return err
	}
	r.Ready = func(ctx context.Context) (*audit.Log, error) { return a.ready(ctx) }
	one := func() string {
		t.Helper()
		task := runner.Task{
			Run: identity.Run{ID: identity.NewRunID()}, Argv: []string{"/bin/sh", "-c", askAPI + ";" + lookAround}, UIDRange: a.cfg.Sandbox.UIDRange,
			Limits: runner.Limits{Timeout: time.Minute},
		}
		res, err := r.Run(t.Context(), task)
		if err != nil || res.ExitCode != 0 || !bytes.HasSuffix(res.Stdout, []byte("\nlooked\n")) || bytes.Contains(res.Stdout, []byte("found")) {
			t.Fatalf("%+v: %v\n%s%s", res, err, res.Stdout, res.Stderr)
		}
		return res.RunID
	}
	for range 5 {
		one() // what is made once is made
	}
	before := inProcess(t)
	for range 20 {
		time.Sleep(50 * time.Millisecond) // what ends beside us is not what a run keeps
		for k, v := range inProcess(t) {
			before[k] = min(before[k], v)
		}
	}
	hostBefore := onHost(t, l, nil)
	var ids []string
	for range runs {
		ids = append(ids, one())
	}
	grew := func(now map[string]int) (what []string) {
		for k, v := range now {
			allowed := before[k]
			if k == "heap" {
				allowed += 2<<20 + runs*1024
			}
			if v > allowed {
				what = append(what, fmt.Sprintf("%s: %d, then %d", k, before[k], v))
			}
		}
		return what
	}
	now := inProcess(t)
	for deadline := time.Now().Add(10 * time.Second); len(grew(now)) > 0 && time.Now().Before(deadline); now = inProcess(t) {
		time.Sleep(50 * time.Millisecond) // the last run's goroutines end beside us
	}
	if what := grew(now); len(what) > 0 {
		t.Errorf("after %d runs: %v", runs, what)
		stacks := make([]byte, 1<<20)
		t.Logf("%s", stacks[:runtime.Stack(stacks, true)])
		fds, _ := exec.Command("ls", "-l", fmt.Sprintf("/proc/%d/fd", os.Getpid())).CombinedOutput()
		t.Logf("%s", fds)
	}
	after := onHost(t, l, ids)
	if after["processes"]+after["cgroups"] > 0 || after["mounts"] != hostBefore["mounts"] || after["files"] != hostBefore["files"] {
		t.Errorf("after %d runs the host has %v, before %v", runs, after, hostBefore)
	}
	t.Logf("%d runs: %v before, %v after", runs, before, now)
	l.mustBeComplete()

	leak, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	held := make([]byte, 4<<20+runs*2048)
	go func() { <-stop }()
	if what := grew(inProcess(t)); len(what) < 3 {
		t.Errorf("control: a descriptor, a goroutine and %d bytes more are counted as %v", len(held), what)
	}
	close(stop)
	leak.Close()
	runtime.KeepAlive(held)
}
