package runner

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupHost is where cgroups can be made on this host (cgroups(7)).
type cgroupHost struct {
	v2   bool
	base map[string]string // controller → folder that a run's folder is made in
}

// pidsBackstop bounds host threads and stub processes of one sandbox. Hitting it
// kills the sentry, so it stands far above what RLIMIT_NPROC lets a task reach.
const pidsBackstop = 16384

// findCgroups reads mountinfo and the caller's own membership below procfs.
// It returns nil when no usable hierarchy is mounted.
func findCgroups(procfs string) *cgroupHost {
	own := ownCgroups(filepath.Join(procfs, "self/cgroup"))
	f, err := os.Open(filepath.Join(procfs, "self/mountinfo"))
	if err != nil {
		return nil
	}
	defer f.Close()
	h := &cgroupHost{base: map[string]string{}}
	var unified string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		pre, post, ok := strings.Cut(sc.Text(), " - ")
		fields, tail := strings.Fields(pre), strings.Fields(post)
		if !ok || len(fields) < 5 || len(tail) < 3 {
			continue
		}
		switch tail[0] {
		case "cgroup2":
			unified = fields[4]
		case "cgroup":
			for _, ctl := range strings.Split(tail[2], ",") {
				if ctl == "memory" || ctl == "cpu" || ctl == "pids" {
					h.base[ctl] = joinExisting(fields[4], own[ctl])
				}
			}
		}
	}
	if len(h.base) > 0 {
		return h
	}
	if unified != "" {
		return &cgroupHost{v2: true, base: map[string]string{"": unified}}
	}
	return nil
}

// joinExisting is mount/own, or the mount itself where the path of the caller's
// own cgroup is not visible from here (a cgroup namespace).
func joinExisting(mount, own string) string {
	p := filepath.Join(mount, own)
	if fi, err := os.Stat(p); err == nil && fi.IsDir() {
		return p
	}
	return mount
}

func ownCgroups(file string) map[string]string {
	out := map[string]string{}
	b, err := os.ReadFile(file)
	if err != nil {
		return out
	}
	for _, line := range strings.Split(string(b), "\n") {
		parts := strings.SplitN(line, ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, ctl := range strings.Split(parts[1], ",") {
			out[ctl] = parts[2]
		}
	}
	return out
}

// runCgroup is the set of cgroups of one run.
type runCgroup struct {
	v2   bool
	dirs map[string]string // controller ("" for v2) → folder
	held []string          // limits these enforce: cpus, memory
}

// create makes the cgroups of run id with its limits. What could not be made
// is missing from held; the error is for the operator.
func (h *cgroupHost) create(id string, l Limits) (*runCgroup, error) {
	c := &runCgroup{v2: h.v2, dirs: map[string]string{}}
	if h.v2 {
		return c, c.createV2(h.base[""], id, l)
	}
	quota := strconv.FormatInt(int64(l.CPUs*100000), 10)
	mem := strconv.FormatInt(l.Memory+memoryOverhead, 10)
	var errs []error
	for _, w := range []struct {
		ctl, limit string
		files      [][2]string // the first must succeed
	}{
		{"memory", "memory", [][2]string{{"memory.limit_in_bytes", mem}, {"memory.memsw.limit_in_bytes", mem}, {"memory.swappiness", "0"}}},
		{"cpu", "cpus", [][2]string{{"cpu.cfs_quota_us", quota}}},
		{"pids", "", [][2]string{{"pids.max", strconv.Itoa(pidsBackstop)}}},
	} {
		base, ok := h.base[w.ctl]
		if !ok {
			continue
		}
		dir := filepath.Join(base, cgroupName(id))
		if err := makeCgroup(dir, w.files); err != nil {
			errs = append(errs, err)
			continue
		}
		c.dirs[w.ctl] = dir
		if w.limit != "" {
			c.held = append(c.held, w.limit)
		}
	}
	return c, errors.Join(errs...)
}

func cgroupName(id string) string { return "warder-" + id }

func makeCgroup(dir string, files [][2]string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	for i, f := range files {
		err := os.WriteFile(filepath.Join(dir, f[0]), []byte(f[1]), 0)
		if err != nil && i == 0 {
			_ = os.Remove(dir)
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return nil
}

// createV2 makes <unified>/warder/<id>; the intermediate group holds no process,
// so that its controllers can be enabled.
func (c *runCgroup) createV2(unified, id string, l Limits) error {
	parent := filepath.Join(unified, "warder")
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cgroup: %w", err)
	}
	for _, d := range []string{unified, parent} {
		if err := os.WriteFile(filepath.Join(d, "cgroup.subtree_control"), []byte("+cpu +memory +pids"), 0); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	dir := filepath.Join(parent, cgroupName(id))
	mem := strconv.FormatInt(l.Memory+memoryOverhead, 10)
	if err := makeCgroup(dir, [][2]string{{"memory.max", mem}, {"memory.swap.max", "0"}, {"memory.oom.group", "0"}, {"pids.max", strconv.Itoa(pidsBackstop)}}); err != nil {
		return err
	}
	c.dirs[""] = dir
	c.held = append(c.held, "memory")
	cpu := strconv.FormatInt(int64(l.CPUs*100000), 10) + " 100000"
	if err := os.WriteFile(filepath.Join(dir, "cpu.max"), []byte(cpu), 0); err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	c.held = append(c.held, "cpus")
	return nil
}

// add moves a process in; what it starts from then on is in too.
func (c *runCgroup) add(pid int) error {
	if c == nil {
		return nil
	}
	for _, dir := range c.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
	}
	return nil
}

// oomKilled tells whether the kernel killed a process of the run for memory.
func (c *runCgroup) oomKilled() bool {
	if c == nil {
		return false
	}
	file := filepath.Join(c.dirs["memory"], "memory.oom_control")
	if c.v2 {
		file = filepath.Join(c.dirs[""], "memory.events")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" && f[1] != "0" {
			return true
		}
	}
	return false
}

// removeCgroups kills what is left in the cgroups of run id and removes them.
// It is what both a run's end and the sweep call; a missing group is no error.
func (h *cgroupHost) removeCgroups(id string, wait time.Duration) error {
	if h == nil {
		return nil
	}
	var dirs []string
	for _, base := range h.base {
		if h.v2 {
			base = filepath.Join(base, "warder")
		}
		dirs = append(dirs, filepath.Join(base, cgroupName(id)))
	}
	deadline := time.Now().Add(wait)
	for {
		var errs []error
		for _, d := range dirs {
			killMembers(d)
			if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		if len(errs) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove cgroup: %w", errors.Join(errs...))
		}
		time.Sleep(10 * time.Millisecond) // the kernel empties a group asynchronously and has no event for v1
	}
}

func killMembers(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, s := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(s); err == nil && pid > 1 && pid != os.Getpid() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// WarmCgroups pays in advance for what makes the first move of a process into a
// cgroup slow: the kernel waits for a grace period of all processors, and the
// moves that follow at once do not. It moves this process to the group that it
// is in already. Call it in a goroutine when a run is about to start.
func WarmCgroups() {
	if os.Geteuid() != 0 {
		return
	}
	h := findCgroups("/proc")
	if h == nil || h.v2 {
		return
	}
	for _, base := range h.base {
		file := filepath.Join(base, "cgroup.procs")
		if isMember(file, os.Getpid()) { // never a move to another group
			_ = os.WriteFile(file, []byte("0"), 0) // it only saves time
			return
		}
	}
}

// isMember tells whether the list of a group (cgroup.procs) names the process.
func isMember(file string, pid int) bool {
	b, err := os.ReadFile(file)
	return err == nil && slices.Contains(strings.Fields(string(b)), strconv.Itoa(pid))
}
