package main

import (
	"fmt"
	"strings"
	"testing"

	"warder/audit"
)

// TestE2EBandwidthOfARunIsRecorded_I9: what the file says holds for a run, whose
// bytes still all arrive, and stands in its record.
func TestE2EBandwidthOfARunIsRecorded_I9(t *testing.T) {
	l := newLab(t)
	l.write("policies/up.rego", `package warder.egress
allow contains {"rule": "api-write"} if {
	input.request.host == "api.allowed.test"
	input.request.method == "POST"
}
`)
	l.mustHold(l.sh("true"), 0, "")
	l.write("warder.yaml", strings.Replace(l.read("warder.yaml"), "proxy:\n", "proxy:\n  limits: {bandwidth: 1Mi}\n", 1))
	l.mustHold(l.sh(`head -c 300000 /dev/zero | curl -sS --data-binary @- https://api.allowed.test/v1/up`), 0, "answer to POST /v1/up")
	var sent int
	for _, r := range l.up.seen() {
		sent += len(r.body)
	}
	if sent != 300000 {
		t.Errorf("%d bytes arrived", sent)
	}
	var said []string
	for _, r := range l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunStart }) {
		said = append(said, fmt.Sprint(r.Limits["bandwidth"]))
	}
	if got := strings.Join(said, " "); got != "<nil> 1.048576e+06" {
		t.Errorf("the records say %s", got)
	}
}
