package main

import (
	"bufio"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

//go:embed testdata/attacks.c
var attacksSource string

// attackProgram is testdata/attacks.c as a static program, which every root can run.
// It refuses to run outside of a sandbox.
func (l *lab) attackProgram() {
	l.t.Helper()
	l.write("attacks.c", attacksSource)
	out, err := exec.Command("gcc", "-static", "-O1", "-w", "-o", filepath.Join(l.dir, "attacks"), filepath.Join(l.dir, "attacks.c")).CombinedOutput()
	if err != nil {
		l.t.Fatalf("gcc: %v\n%s", err, out)
	}
}

// hostThings are what the host has, and no sandbox may reach: an abstract socket, a
// shared memory segment, a key, a process. Each is reached from here.
type hostThings struct {
	name string
	key  int
}

func startHostThings(t *testing.T) hostThings {
	t.Helper()
	h := hostThings{fmt.Sprintf("warder-attacks-%d", os.Getpid()), 0x57000000 + os.Getpid()}
	ln, err := net.Listen("unix", "@"+h.name)
	if err != nil {
		t.Fatal(err)
	}
	id, err := unix.SysvShmGet(h.key, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ln.Close()
		if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
			t.Error(err)
		}
	})
	c, err := net.Dial("unix", "@"+h.name)
	if err != nil {
		t.Fatal("control: ", err)
	}
	c.Close()
	if _, err := unix.SysvShmGet(h.key, 4096, 0); err != nil {
		t.Fatal("control: ", err)
	}
	return h
}

// TestE2EAttacksOnTheKernel_F131: what a program without scruples tries, as every user
// of every kind of root file system: privileges, odd system calls, links and
// addresses, devices, masked files, processes, sockets and memory of the host and of
// another run that lives. Nothing of it works; the program's controls do.
func TestE2EAttacksOnTheKernel_F131(t *testing.T) { // I1, I9, F118, F132
	l := newLab(t)
	l.attackProgram()
	if out, err := exec.Command(filepath.Join(l.dir, "attacks"), "x", "1", "1").CombinedOutput(); err == nil || !strings.Contains(string(out), "no sandbox") {
		t.Fatalf("outside of a sandbox: %v %s", err, out)
	}
	h := startHostThings(t)
	other := h.name + "-run"
	neighbour := l.command(t.Context(), "run", "-i", "--timeout", "10m", "--input", "attacks", "--", "/workspace/attacks", "wait", other, strconv.Itoa(h.key+2))
	stdin, err1 := neighbour.StdinPipe()
	stdout, err2 := neighbour.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := neighbour.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stdin.Close(); _ = neighbour.Wait() }()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("control: the neighbour says %q, %v", line, err)
	}
	l.write("host-file", "of the host")
	hostPaths := []string{filepath.Join(l.dir, "host-file"), l.dir, "/workspace/of-the-neighbour"}
	kinds := append(l.rootKinds(), rootKind{"curated, as ever", nil})
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			for name, key := range map[string]int{h.name: h.key, other: h.key + 2} {
				args := slices.Concat([]string{"run", "--timeout", "5m", "--input", "attacks"}, kind.flags,
					[]string{"--", "/workspace/attacks", name, strconv.Itoa(os.Getpid()), strconv.Itoa(key)}, hostPaths)
				o := l.warder(args...)
				if o.code != 0 || !strings.HasPrefix(o.stdout, "tried ") || strings.Count(o.stdout, "\n") != 1 {
					t.Errorf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
				}
			}
		})
	}
	l.mustBeComplete()
}
