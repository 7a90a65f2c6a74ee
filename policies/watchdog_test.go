package policies

import (
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/topdown"
)

// fires calls a watchdog's timer function by hand, with a clock of the
// processor that adds each step per half budget, until it cancels.
func fires(steps []time.Duration) int {
	now, i := time.Duration(0), 0
	w := &watchdog{cancel: topdown.NewCancel(), half: 10 * time.Millisecond, left: 10 * time.Millisecond}
	w.cpu = func() (time.Duration, bool) {
		now += steps[min(i, len(steps)-1)]
		return now, steps[0] >= 0
	}
	w.timer = time.NewTimer(time.Hour)
	defer w.timer.Stop()
	for i = 0; !w.cancel.Cancelled(); i++ {
		w.fire()
		if i > 100 {
			return -1
		}
	}
	return i
}

func TestF147BudgetCountsOnlyTimeWithAProcessor(t *testing.T) {
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		steps []time.Duration
		want  int
	}{
		"busy all the time":      {[]time.Duration{10 * ms}, 2},
		"processor time unknown": {[]time.Duration{-1}, 2},
		"on two processors":      {[]time.Duration{20 * ms}, 2},
		"starved once":           {[]time.Duration{10 * ms, 1 * ms, 10 * ms}, 3},
		"given a half":           {[]time.Duration{10 * ms, 5 * ms}, 3},
		"given a tenth":          {[]time.Duration{1 * ms}, 1 + 9},
		"given nothing":          {[]time.Duration{0}, 2 + maxExtensions},
	} {
		if got := fires(tt.steps); got != tt.want {
			t.Errorf("%s: stopped after %d halves of the budget, want %d", name, got, tt.want)
		}
	}
}

func TestStoppedWatchdogDoesNothing(t *testing.T) {
	w := new(watchdogs).start(time.Hour)
	w.stop()
	for range 5 {
		w.fire()
	}
	if w.cancel.Cancelled() {
		t.Error("cancelled after stop")
	}
}
