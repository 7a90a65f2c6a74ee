package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"warder/audit"
	"warder/runner"
)

// hog is a program in Python that a limit has to hold or to end.
type hog struct {
	name, program string
	flags         []string
	causes        []string // of its end, any of them
	says          string   // in its output, when it ended by itself
}

func hogs(files int) []hog {
	const manyFiles = "n = 0\ntry:\n  for n in range(%d): open('/out/%%d' %% n, 'w').close()\n  print('made', n + 1)\nexcept OSError: print('held at', n)"
	return []hog{
		{
			"fork bomb", "import os, time\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.01)",
			[]string{"--pids-limit", "64", "--memory", "2Gi", "--timeout", "4s"},
			[]string{runner.CauseTimeout},
			"",
		},
		{
			"threads", "import threading, time\nn = 0\ntry:\n  while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\nexcept RuntimeError: print('held at', n); import os; os.sys.stdout.flush(); os._exit(0)",
			[]string{"--pids-limit", "64", "--timeout", "60s"},
			[]string{runner.CauseExit},
			"held at",
		},
		{
			"disk filler", `
import os
for d in ("/workspace", "/out", "/tmp", "/dev/shm", "/var/tmp", "/etc"):
  n = 0
  try:
    with open(d + "/fill", "wb", 0) as f:
      while n < 1 << 30: n += f.write(b"x" * (1 << 20))
    print("not held:", d)
  except OSError: pass
  try: os.unlink(d + "/fill")
  except OSError: pass
print("held")`,
			[]string{"--disk", "32Mi", "--memory", "512Mi", "--timeout", "60s"},
			[]string{runner.CauseExit},
			"held",
		},
		{
			"memory hog", "a = []\nwhile True: a.append(bytearray(8 << 20))",
			[]string{"--memory", "128Mi", "--timeout", "60s"},
			[]string{runner.CauseOOM},
			"",
		},
		{
			"memory hog by files", "f = open('/dev/shm/x', 'wb', 0)\ng = open('/tmp/x', 'wb', 0)\nwhile True:\n  for h in (f, g): h.write(b'x' * (1 << 20))",
			[]string{"--memory", "64Mi", "--disk", "1Gi", "--timeout", "60s"},
			[]string{runner.CauseOOM},
			"",
		},
		{
			"busy loops", "import os\nfor _ in range(8):\n  if os.fork() == 0: break\nwhile True: pass",
			[]string{"--timeout", "3s"},
			[]string{runner.CauseTimeout},
			"",
		},
		{
			"files without content", fmt.Sprintf(manyFiles, 8000),
			[]string{"--disk", "16Mi", "--timeout", "60s"},
			[]string{runner.CauseExit},
			"held at",
		},
		{
			"files within the limit", fmt.Sprintf(manyFiles, files),
			[]string{"--disk", "1Gi", "--timeout", "10m"},
			[]string{runner.CauseExit},
			fmt.Sprint("made ", files),
		},
	}
}

// TestE2EHogsAreHeld_I9_F124_F125: each ends or is held, by its own limit, while another run
// goes on and the host has no more of it afterwards.
func TestE2EHogsAreHeld_I9_F124_F125(t *testing.T) {
	l := newLab(t)
	waitOther, other := l.startWaiting("neighbour")
	for _, h := range hogs(number(t, "WARDER_SOAK_FILES", 5000)) {
		t.Run(h.name, func(t *testing.T) {
			l := &lab{t: t, dir: l.dir, up: l.up}
			l.write("hog.py", h.program)
			args := append([]string{"run", "-o", "json", "--input", "hog.py"}, h.flags...)
			o := l.warder(append(args, "--", "python3", "/workspace/hog.py")...)
			r := decodeRun(t, o)
			if !strings.Contains(strings.Join(h.causes, " "), r.Cause) || h.says != "" && !strings.Contains(r.Stdout, h.says) || strings.Contains(r.Stdout, "not held") {
				t.Errorf("cause %q, exit %d: %s\n%s%s", r.Cause, r.ExitCode, r.Detail, r.Stdout, r.Stderr)
			}
			if want := map[string]int{runner.CauseOOM: runner.ExitOOM, runner.CauseTimeout: runner.ExitTimeout}[r.Cause]; r.ExitCode != want || o.code != want {
				t.Errorf("cause %q with exit codes %d and %d", r.Cause, r.ExitCode, o.code)
			}
			waitGone(t, r.RunID)
			if left := cgroupsOf(r.RunID); len(left) > 0 {
				t.Errorf("cgroups: %v", left)
			}
			l.mustHold(l.sh("echo well"), 0, "well")
		})
	}
	if syscall.Kill(other.HelperPID, 0) != nil {
		t.Error("the other run is gone")
	}
	l.mustHold(l.warder("rm", other.Run), 0, other.Run)
	_ = waitOther()
	l.mustBeComplete()
}

// TestE2EOOMOfAChildEndsTheRun_F124: also when the kernel leaves the task's first
// process alive.
func TestE2EOOMOfAChildEndsTheRun_F124(t *testing.T) {
	l := newLab(t)
	l.write("hog.py", "import os\nif os.fork() == 0:\n  a = []\n  while True: a.append(bytearray(8 << 20))\nos.wait()\nwhile True: pass")
	r := decodeRun(t, l.warder("run", "-o", "json", "--input", "hog.py", "--memory", "128Mi", "--timeout", "2m", "--", "python3", "/workspace/hog.py"))
	if r.Cause != runner.CauseOOM || r.ExitCode != runner.ExitOOM {
		t.Errorf("cause %q, exit %d: %s", r.Cause, r.ExitCode, r.Detail)
	}
}

// TestE2EOwn137IsNotOOM_F124: the task's own 137, and its own signal 9, are told
// from the end by the memory limit.
func TestE2EOwn137IsNotOOM_F124(t *testing.T) {
	l := newLab(t)
	for script, cause := range map[string]string{"exit 137": runner.CauseExit, "kill -9 $$": runner.CauseSignal, "sleep 0.1; kill -9 $$": runner.CauseSignal} {
		if r, _ := l.json(script); r.ExitCode != 137 || r.Cause != cause {
			t.Errorf("%s: cause %q, exit %d", script, r.Cause, r.ExitCode)
		}
	}
}

func decodeRun(t *testing.T, o outcomeOf) (r jsonRun) {
	t.Helper()
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil {
		t.Fatalf("result is no JSON: %v\n%s%s", err, o.stdout, o.stderr)
	}
	return r
}

// TestE2EEndlessOutputIsBounded_F128: both streams to the last byte where somebody
// reads them; kept up to a bound, with a flag, where they are part of the result.
// The memory of warder does not follow their length.
func TestE2EEndlessOutputIsBounded_F128(t *testing.T) {
	l := newLab(t)
	mib := number(t, "WARDER_SOAK_OUTPUT_MIB", 24)
	// In blocks of a MiB: through a pipe of yes(1), the sandbox's system calls are what is measured.
	script := fmt.Sprintf("yes | head -c 1M >/tmp/y; yes no | head -c 1M >/tmp/n; for i in $(seq %d); do y=\"$y /tmp/y\" n=\"$n /tmp/n\"; done; cat $y & cat $n >&2; wait", mib)
	peak := func(args ...string) (int64, []byte, int64) {
		t.Helper()
		cmd := l.command(t.Context(), append(append([]string{"run", "--timeout", "60m"}, args...), "--", "/bin/sh", "-c", script)...)
		sum, n := sha256.New(), &countingWriter{}
		var out bytes.Buffer
		if len(args) > 0 {
			cmd.Stdout = &out
		} else {
			cmd.Stdout = sum
		}
		cmd.Stderr = n
		most, err := runForPeak(cmd)
		if err != nil {
			t.Fatal(err)
		}
		if len(args) == 0 {
			out.Write(sum.Sum(nil))
		}
		return most, out.Bytes(), n.n
	}
	rss, sum, errBytes := peak()
	want := sha256.New()
	if _, err := io.Copy(want, io.LimitReader(&yes{}, int64(mib)<<20)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sum, want.Sum(nil)) || errBytes != int64(mib)<<20 {
		t.Errorf("stdout %x, want %x; stderr %d bytes", sum, want.Sum(nil), errBytes)
	}
	kept, out, _ := peak("-o", "json")
	r := decodeRun(t, outcomeOf{stdout: string(out)})
	if !r.Truncated || len(r.Stdout) == 0 || len(r.Stdout) > 8<<20 || len(r.Stderr) > 8<<20 {
		t.Errorf("kept %d and %d bytes, truncated %v", len(r.Stdout), len(r.Stderr), r.Truncated)
	}
	for name, bytes := range map[string]int64{"passed on": rss, "kept": kept} {
		if bytes > 256<<20 {
			t.Errorf("%s: warder took %d MiB of memory", name, bytes>>20)
		}
	}
	ends := l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunEnd })
	for _, e := range ends {
		if e.Stdout.Bytes != int64(mib)<<20 || e.Stderr.Bytes != int64(mib)<<20 || e.Stdout.SHA256 != hex.EncodeToString(want.Sum(nil)) {
			t.Errorf("the log has %+v, %+v", e.Stdout, e.Stderr)
		}
	}
	if len(ends) != 2 || ends[0].Stdout.Truncated || !ends[1].Stdout.Truncated {
		t.Errorf("%d ends", len(ends))
	}
}

// runForPeak runs a command and gives the most memory that it had resident, in bytes.
// getrusage(2) would count what this process had, out of which it is made.
func runForPeak(cmd *exec.Cmd) (most int64, err error) {
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			if most == 0 && err == nil {
				err = errors.New("its memory was never seen")
			}
			return most, err
		case <-look.C:
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)) // nothing once it is gone
		if _, after, ok := bytes.Cut(status, []byte("VmHWM:")); ok {
			var kib int64
			if _, err := fmt.Sscan(string(after), &kib); err == nil {
				most = max(most, kib<<10)
			}
		}
	}
}

// yes is the output of yes(1). It is copied out of a block: a byte at a time, 10 GiB
// take longer than the runs that they are compared with.
type yes struct{ at int }

var yesBlock = bytes.Repeat([]byte("y\n"), 32<<10)

func (y *yes) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		n += copy(b[n:], yesBlock[(y.at+n)%2:])
	}
	y.at += n
	return n, nil
}

// TestYesIsThatOfTheProgram: whatever the sizes of the reads are.
func TestYesIsThatOfTheProgram(t *testing.T) {
	want := bytes.Repeat([]byte("y\n"), 200_000)
	for _, size := range []int{1, 3, 4096, 65535, 65536, 65537, 200_001} {
		got, b := []byte(nil), make([]byte, size)
		for y := new(yes); len(got) < len(want); {
			n, err := y.Read(b)
			if n == 0 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			got = append(got, b[:n]...)
		}
		if !bytes.Equal(got[:len(want)], want) {
			t.Errorf("reads of %d bytes: not what yes writes", size)
		}
	}
}

type countingWriter struct{ n int64 }

func (c *countingWriter) Write(b []byte) (int, error) { c.n += int64(len(b)); return len(b), nil }

// TestE2EAKilledStubEndsTheRun_F123: a host process that runs the task's code is
// killed; the run ends, and is not held by what waits for it.
func TestE2EAKilledStubEndsTheRun_F123(t *testing.T) {
	l := newLab(t)
	trace := filepath.Join(l.dir, "trace-stub")
	cmd := l.command(t.Context(), "run", "-i", "--trace", trace, "--timeout", "2m", "--", "/bin/sh", "-c", "echo up; read x")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	stdin, err1 := cmd.StdinPipe() // never written to: the task waits in its sentry
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	p := followTrace(t, trace, "started")
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	stubs := childrenOf(t, p.SandboxPID)
	if len(stubs) == 0 {
		t.Fatal("control: the sentry has no children")
	}
	for _, pid := range stubs {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = cmd.Wait() // long before its time limit
	switch code := cmd.ProcessState.ExitCode(); {
	case code == runner.ExitWarder && strings.Contains(errs.String(), "was killed") && strings.Contains(errs.String(), "hint:"):
	case code == 128+int(syscall.SIGKILL): // gVisor noticed, and ended the task: a stub was just at work
	default:
		t.Errorf("exit %d: %s", code, errs.String())
	}
	waitGone(t, p.Run)
	l.mustTellTheEnd(p.Run, "stub killed")
	l.mustBeComplete()
}

// childrenOf are the processes below pid, its own children first.
func childrenOf(t *testing.T, pid int) (out []int) {
	t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, d := range dirs {
		b, err := os.ReadFile(d)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ") // proc(5): pid (comm) state ppid
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(pid) {
			if child, err := strconv.Atoi(filepath.Base(filepath.Dir(d))); err == nil {
				out = append(out, child)
				out = append(out, childrenOf(t, child)...)
			}
		}
	}
	return out
}
