package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// noCore keeps this process and those it starts from leaving their memory in a core
// file: a limit of one byte, which the kernel also takes as "none" where cores go to
// a program (core(5)), and a filter that lets no memory through. What the host does
// not allow is left: kept secrets are out of any dump by themselves (internal/secret).
func noCore() {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1})
	_ = os.WriteFile("/proc/self/coredump_filter", []byte("0"), 0)
}
