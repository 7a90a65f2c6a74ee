package runner

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// watchdogInterval is how often memory is looked at where no cgroup bounds it.
// What a task can take in between is bounded by the host alone.
const watchdogInterval = 100 * time.Millisecond

// watchMemory ends the run when the sentry and the task's memory, which the
// sentry holds, pass the limit.
func (u *run) watchMemory(pid int, stop <-chan struct{}) {
	tick := time.NewTicker(watchdogInterval)
	defer tick.Stop()
	limit := u.limits.Memory + memoryOverhead
	for {
		select {
		case <-stop:
			return
		case <-u.exited:
			return
		case <-tick.C:
			if treeMemory("/proc", pid) > limit {
				u.kill(CauseOOM)
				return
			}
		}
	}
}

// treeMemory is the memory of the sentry in bytes: its own pages, and the pages
// of the task, which are shared memory of sentry and stub processes. The largest
// shared part of any process counts, so that none is counted twice.
func treeMemory(procfs string, pid int) int64 {
	anon, shared := procMemory(procfs, pid)
	kids, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "task", strconv.Itoa(pid), "children"))
	if err == nil {
		for _, k := range strings.Fields(string(kids)) {
			if kid, err := strconv.Atoi(k); err == nil {
				_, s := procMemory(procfs, kid)
				shared = max(shared, s)
			}
		}
	}
	return anon + shared
}

func procMemory(procfs string, pid int) (anon, shared int64) {
	b, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, 0
	}
	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		kb, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			continue
		}
		switch f[0] {
		case "RssAnon:":
			anon = kb << 10
		case "RssShmem:":
			shared = kb << 10
		}
	}
	return anon, shared
}
