package policies

import (
	"sync"
	"time"

	"github.com/open-policy-agent/opa/v1/topdown"
)

// maxExtensions bounds how often half a budget is added for a starved process.
const maxExtensions = 6

// watchdog stops one evaluation when its budget is over. The budget is wall
// time, except that time in which the whole process was hardly given a
// processor does not count: a busy host must not deny what a policy allows.
type watchdog struct {
	cancel topdown.Cancel
	half   time.Duration
	cpu    func() (time.Duration, bool) // processor time of the process so far

	mu         sync.Mutex
	timer      *time.Timer
	halves     int           // used up; guarded by mu
	extensions int           // guarded by mu
	last       time.Duration // cpu at the start of this half; guarded by mu
	known      bool          // last is known; guarded by mu
	stopped    bool          // guarded by mu
}

func startWatchdog(budget time.Duration) *watchdog {
	w := &watchdog{cancel: topdown.NewCancel(), half: budget / 2, cpu: processTime}
	w.mu.Lock() // the timer may fire before the next line is done
	w.timer = time.AfterFunc(w.half, w.fire)
	w.mu.Unlock()
	return w
}

// stop ends the watch. It does not wait: what may still fire changes nothing.
func (w *watchdog) stop() {
	w.timer.Stop()
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
}

// fire runs when half a budget has gone by.
func (w *watchdog) fire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	now, known := w.cpu()
	starved := known && w.known && now-w.last < w.half/2
	w.last, w.known = now, known
	switch {
	case starved && w.extensions < maxExtensions:
		w.extensions++
	default:
		w.halves++
	}
	if w.halves >= 2 {
		w.cancel.Cancel()
		return
	}
	w.timer.Reset(w.half)
}
