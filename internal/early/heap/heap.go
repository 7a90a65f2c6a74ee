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

// Percent is what holds from here on, before most packages are initialised: what
// they make would be collected before main begins. -1 is never; each part of a
// sandbox says in its main when it collects.
var Percent = set()

func set() int {
	percent := commandPercent
	switch {
	case early.Part:
		percent = -1
	case os.Getenv("GOGC") != "":
		return 0 // the caller's
	}
	debug.SetGCPercent(percent)
	return percent
}
