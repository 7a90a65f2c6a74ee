package proxy

import (
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"warder/audit"
)

// hold keeps the timer from doing what the rest of the test is about.
func (b *behind) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timer.Stop()
	b.armed = true
}

func sayOK(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }

func stagesOf(recs []audit.Record) (out []string) {
	for _, r := range recs {
		if r.Request != nil && r.Stage != "" {
			out = append(out, r.Stage+" "+r.Request.Path)
		}
	}
	return out
}

func TestTheEndOfAnExchangeIsAppendedWithTheNextReservation(t *testing.T) {
	e := newEnv(t, sayOK)
	e.p.behind.hold()
	c := e.tls("api.allowed.test")
	for _, path := range []string{"/1", "/2"} {
		if r := ask(t, c, get(path, "api.allowed.test")); r.StatusCode != 200 {
			t.Fatalf("answer %d %q", r.StatusCode, r.body)
		}
	}
	recs := e.tape.wait(t, func(recs []audit.Record) bool { return len(stagesOf(recs)) >= 3 })
	if got, want := stagesOf(recs)[:3], []string{"reserved /1", "completed /1", "reserved /2"}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
}

// No attempt is without a record after it, also when nothing comes after it (I6).
func TestTheLastExchangeOfARunIsRecordedAtItsEnd_I6(t *testing.T) {
	e := newEnv(t, sayOK)
	e.p.behind.hold()
	if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.StatusCode != 200 {
		t.Fatalf("answer %d %q", r.StatusCode, r.body)
	}
	if err := e.run.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.tape.mu.Lock()
	defer e.tape.mu.Unlock()
	if got, want := stagesOf(e.tape.recs), []string{"reserved /", "completed /"}; !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
}

func TestAnExchangeIsNotHeldBackForLong(t *testing.T) {
	e := newEnv(t, sayOK)
	if r := ask(t, e.tls("api.allowed.test"), get("/", "api.allowed.test")); r.StatusCode != 200 {
		t.Fatalf("answer %d %q", r.StatusCode, r.body)
	}
	e.tape.wait(t, func(recs []audit.Record) bool { return slices.Contains(stagesOf(recs), "completed /") })
	if lingers > 10*time.Millisecond {
		t.Errorf("it may take %v", lingers)
	}
}
