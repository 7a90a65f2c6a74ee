//go:build unix

package policies

import (
	"syscall"
	"time"
)

// processTime is the processor time used by this process, see getrusage(2).
func processTime() (time.Duration, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
