package proxy

import (
	"bufio"
	"net/http"
	"sync/atomic"
	"testing"

	"warder/audit"
)

// stoppable is a granter of the tests whose use an operator can stop.
type stoppable struct {
	Granter
	stopped atomic.Bool
}

func (s *stoppable) Stopped(name string) bool { return name == "api" && s.stopped.Load() }

// TestAStopCutsWhatIsUnderWay: an answer that streams, and one that has not begun;
// what carries no credential goes on.
func TestAStopCutsWhatIsUnderWay(t *testing.T) { // I7
	began := make(chan struct{}, 1)
	h := ticking(t)
	var s stoppable
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			began <- struct{}{}
			<-r.Context().Done()
			return
		}
		h(w, r)
	}, func(e *env, _ *Options, ro *RunOptions) {
		s.Granter = boundSession(e, ro, []string{"GET"}, nil)
		ro.Granter = &s
	})
	open := func(name string) *bufio.Reader {
		t.Helper()
		c := e.tls(name)
		send(t, c, get("/stream", name))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %v", resp, err)
		}
		return bufio.NewReader(resp.Body)
	}
	with, without := open("api.allowed.test"), open("plain.allowed.test")
	silent := e.tls("api.allowed.test")
	send(t, silent, get("/silent", "api.allowed.test"))
	<-began
	if err := lines(with, 3); err != nil {
		t.Fatal(err)
	}
	s.stopped.Store(true)
	cutOff(t, "a stream with a stopped credential", with)
	if resp, err := http.ReadResponse(bufio.NewReader(silent), nil); err != nil || resp.StatusCode != 503 {
		t.Errorf("an answer that had not begun: %v %v", resp, err)
	}
	if err := lines(without, 20); err != nil {
		t.Errorf("a stream without a credential was cut: %v", err)
	}
	e.tape.wait(t, func(all []audit.Record) bool {
		n := 0
		for _, r := range all {
			if r.Stage == audit.StageCompleted && r.Reason == reasonCredentialUnavailable {
				n++
			}
		}
		return n == 2
	})
}
