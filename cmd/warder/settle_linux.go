package main

import (
	"cmp"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"warder/runner"
)

// startGarbage is how long what the start left lies around: a short run ends before
// it is worth the work.
const startGarbage = 2 * time.Second

// runMemory is where the heap of a run is collected more often than its growth asks
// for, in bytes: what it keeps of a task's output is a part of it.
const runMemory = 160 << 20

// settle makes this process as large as its one sandbox needs, when that is about
// to start. It runs Go code on as many threads at once as the sandbox may use CPUs:
// it is not asked for more than that sandbox can send and receive, and with more, a
// packet wakes threads that find nothing to do, a third of the CPU of a request.
func settle(cpus float64) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(threadsFor(cpus, runtime.GOMAXPROCS(0)))
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(runMemory)
	}
	time.AfterFunc(startGarbage, debug.FreeOSMemory)
}

// threadsFor is at most what the machine has, and at least 1. Zero CPUs stand for
// the default.
func threadsFor(cpus float64, have int) int {
	cpus = math.Ceil(cmp.Or(cpus, runner.DefaultCPUs))
	if !(cpus < float64(have)) { // also not a number
		return have
	}
	return max(int(cpus), 1)
}
