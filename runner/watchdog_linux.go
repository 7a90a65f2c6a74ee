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
			if task > u.limits.Memory || task+own > u.limits.Memory+memoryOverhead {
				u.kill(CauseOOM)
				return
			}
		}
	}
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
