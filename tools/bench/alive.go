package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// aliveCell is how fast one more starts, and what each takes, beside others that
// are alive and do nothing.
type aliveCell struct {
	Name   string  `json:"name"`
	Alive  int     `json:"alive"` // of its own kind; as many of the other kind beside them
	WallMS float64 `json:"wall_ms"`
	CPUMS  float64 `json:"cpu_ms"`
	MiB    float64 `json:"idle_mib"` // proportional set size of all processes of one
}

var aliveCounts = []int{1, 10, 50}

// benchAlive starts /usr/bin/true beside 1, 10 and 50 idle sandboxes of each kind.
func benchAlive(o options) ([]aliveCell, error) {
	variants, err := startVariants(o)
	if err != nil {
		return nil, err
	}
	pairs := variants[1:3] // runsc do, warder run
	var idle [2][]*exec.Cmd
	defer func() {
		for _, list := range idle {
			for _, cmd := range list {
				stopIdle(cmd)
			}
		}
	}()
	o.rounds = max(o.rounds/2, 5)
	var cells []aliveCell
	for _, n := range aliveCounts {
		for k, v := range pairs {
			for len(idle[k]) < n {
				cmd, err := startIdle(v)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", v.name, err)
				}
				idle[k] = append(idle[k], cmd)
			}
		}
		for _, v := range pairs {
			v.wall, v.cpu = nil, nil
		}
		timed, err := interleave(o, pairs)
		if err != nil {
			return nil, err
		}
		for k, c := range timed {
			var mem []float64
			for _, cmd := range idle[k] {
				mem = append(mem, treeMiB(cmd.Process.Pid))
			}
			cells = append(cells, aliveCell{Name: c.Name, Alive: n, WallMS: c.WallMS, CPUMS: c.CPUMS, MiB: median(mem)})
		}
	}
	return cells, nil
}

// startIdle starts the variant with a command that says when it runs, and waits.
func startIdle(v *variant) (*exec.Cmd, error) {
	argv := append(slices.Clone(v.argv[:len(v.argv)-1]), "/usr/bin/sh", "-c", "echo up; exec sleep 3600")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = v.env
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	word := make([]byte, 3)
	if _, err := io.ReadFull(out, word); err != nil || string(word) != "up\n" {
		stopIdle(cmd)
		return nil, fmt.Errorf("it never ran: %q, %w", word, err)
	}
	return cmd, nil
}

func stopIdle(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(os.Interrupt)
	done := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	done.Stop()
}

// treeMiB is the proportional set size of a process and all below it (proc(5):
// smaps_rollup): what is shared counts once in all.
func treeMiB(pid int) float64 {
	children := map[int][]int{}
	dirs, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range dirs {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])); len(fields) > 1 {
			parent, err1 := strconv.Atoi(fields[1])
			child, err2 := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err1 == nil && err2 == nil {
				children[parent] = append(children[parent], child)
			}
		}
	}
	total := 0.0
	for todo := []int{pid}; len(todo) > 0; todo = todo[1:] {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", todo[0]))
		for _, line := range strings.Split(string(b), "\n") {
			var kb float64
			if n, _ := fmt.Sscanf(line, "Pss: %f kB", &kb); n == 1 {
				total += kb / 1024
			}
		}
		todo = append(todo, children[todo[0]]...)
	}
	return total
}

func aliveRatios(cells []aliveCell) (out []ratio) {
	for i := 0; i+1 < len(cells); i += 2 {
		r, w := cells[i], cells[i+1]
		if r.WallMS == 0 || r.MiB == 0 {
			continue
		}
		out = append(out, bound(fmt.Sprintf("%d alive, wall of one more: %s / %s", r.Alive, w.Name, r.Name), w.WallMS/r.WallMS, "", 0))
		if r.Alive == 10 {
			out = append(out, bound(fmt.Sprintf("idle memory of one: %s / %s", w.Name, r.Name), w.MiB/r.MiB, "", 0))
		}
	}
	return out
}
