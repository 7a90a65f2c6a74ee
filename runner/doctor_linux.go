package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Check is one line of `warder doctor`. Fix says what to do about a problem.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok | warn | fail
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

// Statuses of a check.
const (
	CheckOK   = "ok"
	CheckWarn = "warn" // runs work, with less
	CheckFail = "fail" // runs do not work
)

// Floors below which a run fails in odd ways.
const (
	minKernelMajor, minKernelMinor = 5, 12 // mount_setattr(2)
	minFree                        = 256 << 20
)

// CheckHost looks at what a sandbox needs of this host. state is the folder of
// run state; procfs is /proc.
func CheckHost(procfs, state string) []Check {
	return []Check{
		checkBinary(), checkKernel(), checkUserns(procfs), checkSeccomp(procfs), checkCgroups(procfs),
		checkDescriptors(), checkFree(state), checkClock(time.Now()),
	}
}

func checkBinary() Check {
	c := Check{Name: "binary", Status: CheckOK, Detail: "static"}
	if !builtStatic {
		c.Status, c.Detail, c.Fix = CheckFail, "built with cgo", "build with CGO_ENABLED=0 (make build)"
	}
	return c
}

func checkKernel() Check {
	c := Check{Name: "kernel", Status: CheckOK}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Check{"kernel", CheckFail, err.Error(), "uname(2) must work"}
	}
	c.Detail = unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(c.Detail, "%d.%d", &major, &minor); err != nil || major < minKernelMajor || major == minKernelMajor && minor < minKernelMinor {
		c.Status, c.Fix = CheckFail, fmt.Sprintf("Linux %d.%d or later is needed", minKernelMajor, minKernelMinor)
	}
	return c
}

func readSysctl(procfs, name string) (int64, bool) {
	b, err := os.ReadFile(filepath.Join(procfs, "sys", filepath.FromSlash(name)))
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// checkUserns reads the switches that distributions have for user namespaces.
func checkUserns(procfs string) Check {
	c := Check{Name: "user namespaces", Status: CheckOK, Detail: "allowed"}
	fail := func(sysctl, value string) Check {
		return Check{c.Name, CheckFail, sysctl + " forbids them", "sysctl -w " + sysctl + "=" + value}
	}
	if n, ok := readSysctl(procfs, "user/max_user_namespaces"); ok && n == 0 {
		return fail("user.max_user_namespaces", "15000")
	}
	if os.Geteuid() == 0 {
		return c
	}
	if n, ok := readSysctl(procfs, "kernel/unprivileged_userns_clone"); ok && n == 0 {
		return fail("kernel.unprivileged_userns_clone", "1")
	}
	if n, ok := readSysctl(procfs, "kernel/apparmor_restrict_unprivileged_userns"); ok && n == 1 {
		return fail("kernel.apparmor_restrict_unprivileged_userns", "0")
	}
	return c
}

func checkSeccomp(procfs string) Check {
	if _, err := os.Stat(filepath.Join(procfs, "sys/kernel/seccomp/actions_avail")); err != nil {
		return Check{"seccomp", CheckFail, "the kernel has no seccomp filters", "a kernel with CONFIG_SECCOMP_FILTER is needed"}
	}
	return Check{Name: "seccomp", Status: CheckOK, Detail: "filters are available"}
}

func checkCgroups(procfs string) Check {
	c := Check{Name: "cgroups", Status: CheckOK}
	h := findCgroups(procfs)
	switch {
	case h == nil:
		c.Status, c.Detail = CheckWarn, "none is mounted: memory is held by a watchdog, CPU not at all"
		c.Fix = "mount cgroups, or accept that --cpus is refused"
	case os.Geteuid() != 0:
		c.Status, c.Detail = CheckWarn, "not writable for an ordinary user: memory is held by a watchdog, CPU not at all"
		c.Fix = "run as root, or accept that --cpus is refused"
	case h.v2:
		c.Detail = "version 2"
	default:
		c.Detail = "version 1"
	}
	return c
}

func checkDescriptors() Check {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return Check{"open files", CheckFail, err.Error(), "getrlimit(2) must work"}
	}
	c := Check{Name: "open files", Status: CheckOK, Detail: fmt.Sprintf("limit %d", l.Max)}
	if l.Max < 4096 {
		c.Status, c.Fix = CheckWarn, "a busy run needs more: ulimit -n 4096"
	}
	return c
}

func checkFree(dir string) Check {
	c := Check{Name: "disk", Status: CheckOK}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Check{c.Name, CheckFail, "state folder: " + err.Error(), "make " + dir + " writable"}
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return Check{c.Name, CheckFail, "state folder " + dir + ": " + err.Error(), "make it writable"}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Check{c.Name, CheckFail, "state folder: " + err.Error(), "statfs(2) must work"}
	}
	free := st.Bavail * uint64(st.Bsize)
	c.Detail = fmt.Sprintf("%d MiB free at %s", free>>20, dir)
	if free < minFree {
		c.Status, c.Fix = CheckFail, "free some space: records that cannot be written stop requests"
	}
	return c
}

// checkClock refuses a clock that cannot be right: certificates and leases
// depend on it.
func checkClock(now time.Time) Check {
	c := Check{Name: "clock", Status: CheckOK, Detail: now.UTC().Format(time.RFC3339)}
	if now.Year() < 2026 || now.Year() > 2100 {
		c.Status, c.Fix = CheckFail, "set the clock: certificates and leases depend on it"
	}
	return c
}

// errUnhealthy is returned with the checks that failed.
var errUnhealthy = errors.New("this host cannot run a sandbox as it is")

// Verdict is nil when no check failed.
func Verdict(checks []Check) error {
	for _, c := range checks {
		if c.Status == CheckFail {
			return errUnhealthy
		}
	}
	return nil
}
