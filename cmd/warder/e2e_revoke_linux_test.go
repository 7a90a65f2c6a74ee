package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"warder/audit"
)

// startAsking starts a run that asks the API until it is refused, and waits for
// its first answer.
func (l *lab) startAsking(name string) (wait func() string, run string) {
	l.t.Helper()
	before := len(l.up.seen())
	trace := filepath.Join(l.dir, "trace-"+name)
	cmd := l.command(l.t.Context(), "run", "--trace", trace, "--timeout", "60s", "--", "/bin/sh", "-c",
		`while s=$(curl -s -m 10 -o /tmp/a -w '%{http_code}' https://api.allowed.test/v1/items) && [ "$s" = 200 ]; do sleep 0.05; done; cat /tmp/a`)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	run = followTrace(l.t, trace, "started").Run
	end := time.Now().Add(time.Minute)
	for len(l.up.seen()) <= before {
		if time.Now().After(end) {
			l.t.Fatal("the run asked for nothing")
		}
		time.Sleep(10 * time.Millisecond) // polling for a request of another process
	}
	return func() string { _ = cmd.Wait(); return out.String() }, run
}

func (l *lab) revoke(args ...string) (revokeResult, outcomeOf) {
	l.t.Helper()
	o := l.warder(append([]string{"revoke", "-o", "json"}, args...)...)
	var r revokeResult
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil && o.code != 1 {
		l.t.Fatalf("exit %d: %v\n%s%s", o.code, err, o.stdout, o.stderr)
	}
	return r, o
}

func TestE2ERevokeEndsTheUseByALiveRun(t *testing.T) { // I7
	l, v := vaultLab(t)
	wait, run := l.startAsking("one")
	acc := l.accessors()
	if len(acc) != 1 {
		t.Fatal("child tokens in the log:", acc)
	}
	if alive, _ := v.Alive(t, acc[0]); !alive {
		t.Fatal("control: the token is not alive before")
	}
	r, o := l.revoke("--run", run)
	if o.code != 0 || r.Stopped != "run "+run || len(r.Revoked) != 1 || r.Revoked[0].Accessor != acc[0] {
		t.Fatalf("exit %d: %+v %s", o.code, r, o.stderr)
	}
	if alive, _ := v.Alive(t, acc[0]); alive {
		t.Error("the token is alive")
	}
	if out := wait(); !strings.Contains(out, `"reason":"credential-unavailable"`) {
		t.Errorf("the run was told %q", out)
	}
	revoked := l.records(func(r *audit.Record) bool {
		return r.Event == "lease.revoke" && r.Run.ID == run && r.Credential.Detail == "revoked by the operator"
	})
	if len(revoked) != 1 {
		t.Errorf("records: %+v", revoked)
	}
	l.mustHold(l.sh(askAPI), 0, "STATUS 200") // a later run is not affected
	if runs := l.ps(); len(runs) != 0 {
		t.Errorf("left: %+v", runs)
	}
	for _, bad := range [][]string{{"--run", run}, {"--run", "../x"}, {"--credential", "nope"}} {
		if _, o := l.revoke(bad...); o.code != 1 {
			t.Errorf("%v: exit %d", bad, o.code)
		}
	}
	l.mustHold(l.warder("revoke"), 1, "required")
	l.mustBeComplete()
}

func TestE2ERevokeOfACredentialAndOfAllWithoutVault(t *testing.T) {
	l := newLab(t)
	for _, args := range [][]string{{"--credential", "api"}, {"--all"}} {
		wait, _ := l.startAsking(strings.Trim(args[0], "-"))
		if r, o := l.revoke(args...); o.code != 0 || len(r.Revoked) != 0 {
			t.Fatalf("exit %d: %+v %s", o.code, r, o.stderr)
		}
		if out := wait(); !strings.Contains(out, `"reason":"credential-unavailable"`) {
			t.Errorf("the run was told %q", out)
		}
		l.mustHold(l.sh(askAPI), 0, "STATUS 200")
	}
}

func TestE2ERevokeWithVaultAwayStopsAndSaysSo(t *testing.T) { // I10
	l, v := vaultLab(t)
	wait, run := l.startAsking("one")
	v.Seal(t)
	r, o := l.revoke("--run", run, "--timeout", "1s")
	if o.code != 2 || r.Error == "" || r.Stopped == "" {
		t.Errorf("exit %d: %+v %s", o.code, r, o.stderr)
	}
	v.Open(t) // the run can take back what it has
	if out := wait(); !strings.Contains(out, `"reason":"credential-unavailable"`) {
		t.Errorf("the run was told %q", out)
	}
}

// TestE2ERevokeCutsAnAnswerUnderWay: one that would go on for ever ends, and the
// log says why.
func TestE2ERevokeCutsAnAnswerUnderWay(t *testing.T) { // I7
	l := newLab(t)
	gone := make(chan struct{})
	l.up.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte("tick\n")); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond) // the pace of the stream
		}
	})
	trace := filepath.Join(l.dir, "trace")
	cmd := l.command(t.Context(), "run", "--trace", trace, "--timeout", "60s", "--", "/bin/sh", "-c",
		"curl -sSN -m 50 https://api.allowed.test/v1/stream >/dev/null; echo curl $?")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	run := followTrace(t, trace, "started").Run
	l.until(func() bool { return len(l.up.seen()) > 0 })
	if r, o := l.revoke("--run", run); o.code != 0 || r.Stopped != "run "+run {
		t.Fatalf("exit %d: %+v %s", o.code, r, o.stderr)
	}
	<-gone // the upstream's side too
	if err := cmd.Wait(); err != nil || strings.Contains(out.String(), "curl 0") || strings.Contains(out.String(), "curl 28") {
		t.Errorf("the stream ended with %v: %s", err, out.String())
	}
	recs := l.records(func(r *audit.Record) bool { return requestsOf(r) && r.Stage == audit.StageCompleted })
	if len(recs) != 1 || recs[0].Reason != "credential-unavailable" {
		t.Errorf("records: %+v", recs)
	}
	l.mustBeComplete()
}
