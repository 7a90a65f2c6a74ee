package proxy

import (
	"context"
	"testing"
	"time"
)

// Refusals beyond the rate wait, failures that are not the run's do not (I9).
func TestARunThatIsRefusedAgainAndAgainWaits_I9(t *testing.T) {
	r := &Run{}
	r.refusals.rate = 1 // a second
	ended, cancel := context.WithCancel(t.Context())
	cancel() // nobody waits longer than his request lives
	for range 100 {
		r.wearily(ended, refuse(reasonUpstreamDNS, ""))
	}
	if wait := time.Until(r.refusals.next); wait > 0 {
		t.Errorf("failures of upstreams are held against the run: %v", wait)
	}
	for range 100 {
		r.wearily(ended, refuse(reasonNoRule, ""))
	}
	if wait := time.Until(r.refusals.next); wait < 90*time.Second {
		t.Errorf("after 100 denials at one a second the next would wait %v", wait)
	}
	e := newEnv(t, nil)
	if e.run.refusals.rate != refusalRate {
		t.Errorf("a run is refused %v times a second", e.run.refusals.rate)
	}
	before := e.run.refusals.next
	if r := ask(t, e.tls("api.allowed.test"), get("/", "other.test")); r.StatusCode != 421 {
		t.Fatalf("answer %d", r.StatusCode)
	}
	if !e.run.refusals.next.After(before) {
		t.Error("a refusal was not counted")
	}
}
