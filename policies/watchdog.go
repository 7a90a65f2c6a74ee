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
	home   *watchdogs
	cpu    func() (time.Duration, bool) // processor time of the process so far

	mu         sync.Mutex
	timer      *time.Timer
	halves     int           // used up; guarded by mu
	extensions int           // guarded by mu
	last       time.Duration // cpu at the start of this half; guarded by mu
	known      bool          // last is known; guarded by mu
	stopped    bool          // guarded by mu
}

// watchdogs holds those whose timer was stopped in time, for the next evaluation.
type watchdogs struct{ free sync.Pool }

func (ws *watchdogs) start(budget time.Duration) *watchdog {
	w, _ := ws.free.Get().(*watchdog)
	if w == nil {
		w = &watchdog{cancel: topdown.NewCancel(), cpu: processTime, home: ws}
	}
	w.mu.Lock() // the timer may fire before it is known
	defer w.mu.Unlock()
	w.half, w.halves, w.extensions, w.known, w.stopped = budget/2, 0, 0, false, false
	if w.timer == nil {
		w.timer = time.AfterFunc(w.half, w.fire)
	} else {
		w.timer.Reset(w.half)
	}
	return w
}

// stop ends the watch, which must not be used any more. It does not wait: what
// may still fire changes nothing.
func (w *watchdog) stop() {
	inTime := w.timer.Stop()
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	if inTime && !w.cancel.Cancelled() {
		w.home.free.Put(w)
	}
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
