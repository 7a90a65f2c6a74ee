package runner

import (
	"fmt"
	"time"
)

// Defaults of the limits; the configuration file's sandbox section and flags replace them.
const (
	DefaultCPUs    = 1.0
	DefaultMemory  = 512 << 20 // bytes
	DefaultPIDs    = 256
	DefaultDisk    = 1 << 30 // bytes
	DefaultTimeout = 10 * time.Minute

	defaultNoFile = 1024
	maxTmp        = 256 << 20 // bytes of /tmp, or the disk limit if that is smaller
	maxOverlay    = 64 << 20  // bytes writable in the rest of the root; see Limits.overlay

	// memoryOverhead is what sentry, gofer and helper need themselves. It is
	// added to the memory limit of the cgroup, so that the limit is the task's.
	memoryOverhead = 64 << 20

	minMemory = 16 << 20
	minDisk   = 64 << 10
)

// Limits bound one run. A zero field means the default.
type Limits struct {
	CPUs    float64       // CPU seconds a second
	Memory  int64         // bytes
	PIDs    int           // processes and threads of the task
	Disk    int64         // bytes in /workspace and /out together
	Timeout time.Duration // wall clock, from the start of the task

	// Asked names the limits given by flag (cpus, memory, pids, disk, timeout):
	// these, or all under Strict, refuse the run where they cannot be enforced.
	Asked  map[string]bool
	Strict bool
}

// withDefaults fills zero fields and refuses what makes no sense.
func (l Limits) withDefaults() (Limits, error) {
	if l.CPUs == 0 && !l.Asked["cpus"] {
		l.CPUs = DefaultCPUs
	}
	if l.Memory == 0 {
		l.Memory = DefaultMemory
	}
	if l.PIDs == 0 && !l.Asked["pids"] {
		l.PIDs = DefaultPIDs
	}
	if l.Disk == 0 {
		l.Disk = DefaultDisk
	}
	if l.Timeout == 0 {
		l.Timeout = DefaultTimeout
	}
	switch {
	case !(l.CPUs >= 0.01 && l.CPUs <= 1024): // also not a number
		return l, fmt.Errorf("cpus: %g is not between 0.01 and 1024", l.CPUs)
	case l.Memory < minMemory:
		return l, fmt.Errorf("memory: %d bytes is below the least possible, %d", l.Memory, minMemory)
	case l.PIDs < 1 || l.PIDs > 1<<20:
		return l, fmt.Errorf("pids: %d is not between 1 and %d", l.PIDs, 1<<20)
	case l.Disk < minDisk:
		return l, fmt.Errorf("disk: %d bytes is below the least possible, %d", l.Disk, minDisk)
	case l.Timeout < 0:
		return l, fmt.Errorf("timeout: %s is negative", l.Timeout)
	}
	return l, nil
}

// refuse returns an error when a limit that cannot be enforced here was asked for.
func (l Limits) refuse(notEnforced []string) error {
	for _, name := range notEnforced {
		if l.Asked[name] {
			return fmt.Errorf("limit --%s cannot be enforced on this host; hint: run as root or with delegated cgroups, or leave the flag out", name)
		}
		if l.Strict {
			return fmt.Errorf("limit %s cannot be enforced on this host and sandbox.limits is strict; hint: run as root or with delegated cgroups", name)
		}
	}
	return nil
}

// overlay is how much can be written to the root file system outside of the folders
// that are ours, in bytes of the sandbox's memory. Programs are installed into an
// image: half of the memory limit is for that, so that a full disk comes before a
// lack of memory.
func (l Limits) overlay(image bool) int64 {
	if image {
		return min(l.Disk, max(l.Memory/2, maxOverlay))
	}
	return min(l.Disk, maxOverlay)
}

// record is the form of the limits in the run's record.
func (l Limits) record(notEnforced []string) map[string]any {
	m := map[string]any{
		"cpus": l.CPUs, "memory": l.Memory, "pids": l.PIDs, "disk": l.Disk,
		"timeout_ms": l.Timeout.Milliseconds(), "nofile": defaultNoFile,
	}
	if len(notEnforced) > 0 {
		m["not_enforced"] = notEnforced
	}
	return m
}
