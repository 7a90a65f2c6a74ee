package main

import (
	"math"
	"testing"
)

func TestThreadsFollowTheLimitOfTheSandbox(t *testing.T) {
	for _, c := range []struct {
		cpus       float64
		have, want int
	}{
		{0, 8, 1}, {0.5, 8, 1}, {1, 8, 1}, {1.5, 8, 2}, {4, 8, 4}, {4, 2, 2}, {1024, 8, 8}, {1, 1, 1}, {-1, 8, 1}, {math.NaN(), 8, 8},
	} {
		if got := threadsFor(c.cpus, c.have); got != c.want {
			t.Errorf("%g CPUs on a machine of %d: %d threads, want %d", c.cpus, c.have, got, c.want)
		}
	}
}
