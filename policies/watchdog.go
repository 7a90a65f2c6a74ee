package policies

import (
	"sync"
	"time"

	"github.com/open-policy-agent/opa/v1/topdown"
)

// maxExtensions bounds how often half a budget is added for a starved process.
const maxExtensions = 16

// watchdog stops one evaluation when its budget is over. The first half of the budget is
// wall time; of the second only what the whole process was given of a processor counts,
// of which the evaluation had no more: a busy host must not deny what a policy allows.
type watchdog struct {
	cancel topdown.Cancel
	half   time.Duration
	home   *watchdogs
	cpu    func() (time.Duration, bool) // processor time of the process so far

	mu         sync.Mutex
	timer      *time.Timer
	left       time.Duration // of the second half; guarded by mu
	extensions int           // guarded by mu
	last       time.Duration // cpu when left was last taken from; guarded by mu
	second     bool          // the first half is over; guarded by mu
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
	w.half, w.left, w.extensions, w.second, w.stopped = budget/2, budget/2, 0, false, false
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
	if w.second {
		if w.left -= now - w.last; !known || w.left <= w.half/10 || w.extensions == maxExtensions {
			w.cancel.Cancel()
			return
		}
		w.extensions++
	}
	w.last, w.second = now, true
	w.timer.Reset(w.half)
}
