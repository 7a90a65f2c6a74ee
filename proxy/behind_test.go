package proxy

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"warder/audit"
)

func stagesOf(recs []audit.Record) (out []string) {
	for _, r := range recs {
		if r.Request != nil && r.Stage != "" {
			out = append(out, r.Stage+" "+r.Request.Path)
		}
	}
	return out
}

// No attempt is without a record after it, also when nothing comes after it: a run is
// not closed before the kernel has its last (I6).
func TestTheLastExchangeOfARunIsRecordedAtItsEnd_I6(t *testing.T) {
	d := newDiskRig(t, audit.DurableAll)
	release := d.disk.hold()
	if r := ask(t, d.tls("api.allowed.test"), get("/", "api.allowed.test")); r.StatusCode != 200 {
		t.Fatalf("answer %d %q", r.StatusCode, r.body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := d.run.Close(ctx); err == nil || !strings.Contains(err.Error(), "records") {
		t.Errorf("the run was closed while its last record was on its way: %v", err)
	}
	release()
	if err := d.run.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []audit.Record
	for r, err := range audit.Read(t.Context(), d.dir, audit.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, *r)
	}
	if got, want := stagesOf(got), []string{"reserved /", "completed /"}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
}
