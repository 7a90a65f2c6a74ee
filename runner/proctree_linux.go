package runner

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"a.warder/early"
	"golang.org/x/sys/unix"
)

// killTree ends the processes of run id: helper, sentry and gofer carry the id
// in their arguments and run as one of uids. They normally die with their
// parent; this is for the rest. The kill goes through a pidfd that is opened
// before the arguments are read, so a re-used pid is never hit.
func killTree(id string, uids []uint32) {
	for range 50 {
		if killOnce(id, uids) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond) // death is asynchronous
	}
}

func killOnce(id string, uids []uint32) int {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0
	}
	n := 0
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil || pid == os.Getpid() {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if belongs(d, id, uids) && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			n++
		}
		_ = unix.Close(fd)
	}
	return n
}

func belongs(procDir, id string, uids []uint32) bool {
	raw, err := os.ReadFile(filepath.Join(procDir, "cmdline"))
	if err != nil || len(raw) == 0 {
		return false
	}
	args := strings.Split(string(bytes.TrimRight(raw, "\x00")), "\x00")
	base := filepath.Base(args[0])
	if base != early.Helper && !strings.HasPrefix(base, "runsc") {
		return false
	}
	if !slices.Contains(args, id) {
		return false
	}
	var st unix.Stat_t
	if unix.Stat(procDir, &st) != nil {
		return false
	}
	// A process that changed its ids is shown as root's (proc(5)); its own
	// status file still names the real one.
	return slices.Contains(uids, realUID(procDir)) || slices.Contains(uids, st.Uid)
}

func realUID(procDir string) uint32 {
	b, err := os.ReadFile(filepath.Join(procDir, "status"))
	if err != nil {
		return ^uint32(0)
	}
	for _, line := range strings.Split(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				if v, err := strconv.ParseUint(f[0], 10, 32); err == nil {
					return uint32(v)
				}
			}
		}
	}
	return ^uint32(0)
}
