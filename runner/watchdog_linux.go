package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// watchdogInterval is how often memory is looked at where no cgroup bounds it.
// What a task can take in between is bounded by the host alone.
const watchdogInterval = 50 * time.Millisecond

// watchMemory ends the run when the task's memory passes the limit, or when the
// sentry's own does on top of it.
func (u *run) watchMemory(pid int, stop <-chan struct{}) {
	tick := time.NewTicker(watchdogInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-u.exited:
			return
		case <-tick.C:
			task, own := sentryMemory("/proc", pid)
			if u.limits.over(task, own) {
				u.kill(CauseOOM)
				return
			}
		}
	}
}

// over reports that a task, which has that much, is over its limit, or is with
// what its sentry has besides.
func (l Limits) over(task, own int64) bool {
	return task > l.Memory || task+own > l.Memory+memoryOverhead
}

const (
	healthInterval = time.Second
	// deadLooks is at how many looks in a row a dead process has to be there.
	deadLooks = 3
)

// watchHealth ends a run that would go on without a part of its own: when the
// kernel killed any process of it for memory, and when a process in which the
// task's code runs was killed. Its sentry takes those for running, and waits.
func (u *run) watchHealth(sentry int, stop <-chan struct{}) {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	seen := map[int]int{}
	for {
		select {
		case <-stop:
			return
		case <-u.exited:
			return
		case <-tick.C:
		}
		if u.cg.oomKilled() {
			u.kill(CauseOOM)
			return
		}
		seen = stillDead(seen, deadChildren("/proc", sentry))
		for _, looks := range seen {
			if looks >= deadLooks {
				u.kill(CauseError)
				return
			}
		}
	}
}

// stillDead counts at how many looks in a row each process was dead.
func stillDead(before map[int]int, dead []int) map[int]int {
	now := make(map[int]int, len(dead))
	for _, pid := range dead {
		now[pid] = before[pid] + 1
	}
	return now
}

// deadChildren are the children of a process that ended and were not waited for:
// a sentry waits at once for those that it ends itself (proc(5): children, stat).
func deadChildren(procfs string, pid int) (dead []int) {
	lists, err := filepath.Glob(filepath.Join(procfs, strconv.Itoa(pid), "task/*/children"))
	if err != nil {
		return nil
	}
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // the thread ended
		}
		for _, s := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(s)
			if err == nil && processState(procfs, child) == "Z" {
				dead = append(dead, child)
			}
		}
	}
	return dead
}

func processState(procfs string, pid int) string {
	b, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), ") ") // pid (comm) state …
	state, _, _ := strings.Cut(rest, " ")
	return state
}

// sentryMemory returns, in bytes, the memory of the task, which the sentry holds
// in memory files (memfd_create(2)) with as many blocks as were touched, and the
// sentry's own anonymous memory.
func sentryMemory(procfs string, pid int) (task, own int64) {
	dir := filepath.Join(procfs, strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0 // it is just ending
	}
	for _, fd := range fds {
		p := filepath.Join(dir, fd.Name())
		if target, err := os.Readlink(p); err != nil || !strings.HasPrefix(target, "/memfd:") {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(p, &st) == nil {
			task += st.Blocks * 512 // stat(2): always 512-byte units
		}
	}
	return task, rssAnon(filepath.Join(procfs, strconv.Itoa(pid), "status"))
}

func rssAnon(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	var kb int64
	for _, line := range strings.Split(string(b), "\n") {
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return 0
}
