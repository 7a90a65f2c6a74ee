// Package heap says when the heap is collected first. It is a package of its own
// because package early must not wait for runtime/debug.
package heap

import (
	"os"
	"runtime/debug"

	"a.warder/early"
)

// commandPercent trades memory for time: a run's live heap is a few megabytes, and
// collecting it often is a tenth of the start and of each request.
const commandPercent = 400

// test ends the name of a test binary, which is not the command.
const test = ".test"

// Percent is what holds from here on, before most packages are initialised: what
// they make would be collected before main begins. -1 is never; each part of a
// sandbox says in its main when it collects.
var Percent = set()

func set() int {
	percent := commandPercent
	name := ""
	if len(os.Args) > 0 {
		name = os.Args[0]
	}
	switch {
	case early.Part:
		percent = -1
	case os.Getenv("GOGC") != "", len(name) > len(test) && name[len(name)-len(test):] == test:
		return 0 // the caller's; a process starts with the memory of the one that started it (getrusage(2))
	}
	debug.SetGCPercent(percent)
	return percent
}
