package proxy

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"warder/policies"
)

// keeping is a recorder that takes decision inputs too.
type keeping struct {
	Recorder
	mu   sync.Mutex
	kept map[string]string
}

func (k *keeping) KeepInput(ref string, content []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[ref] = string(content)
}

// What a decision was made from is kept, without secrets, before the request goes out,
// and both of its records name it (I2).
func TestTheInputOfADecisionIsKept_I2(t *testing.T) {
	dir := t.TempDir()
	text := `package warder.egress

allow contains {"rule": "r"} if {
	input.request.host == "plain.allowed.test"
	input.request.headers.authorization
	input.request.query.page == ["2"]
	input.request.query.token
}
`
	if err := os.WriteFile(filepath.Join(dir, "a.rego"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	engine, err := policies.Load(policies.Options{Dir: dir, KeepInput: true})
	if err != nil {
		t.Fatal(err)
	}
	k := &keeping{kept: map[string]string{}}
	early := make(chan int, 1)
	e := newEnv(t, func(http.ResponseWriter, *http.Request) {
		k.mu.Lock()
		defer k.mu.Unlock()
		early <- len(k.kept)
	}, func(_ *env, o *Options, _ *RunOptions) {
		k.Recorder, o.Audit = o.Audit, k
		o.Policy = func() Decider { return engine }
	})
	r := ask(t, e.tls("plain.allowed.test"), "GET /x?page=2&token="+canary+" HTTP/1.1\r\nHost: plain.allowed.test\r\nAuthorization: Bearer "+canary+"\r\n\r\n")
	if r.StatusCode != 200 {
		t.Fatalf("%d %q", r.StatusCode, r.body)
	}
	if n := <-early; n != 1 {
		t.Errorf("%d inputs were kept when the upstream was reached", n)
	}
	rec := e.tape.completed(t, 1)[0]
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := k.kept[rec.Policy.InputRef]
	if !strings.Contains(kept, `"page":["2"]`) || !strings.Contains(kept, `"authorization":["(masked)"]`) {
		t.Errorf("kept under %q: %s", rec.Policy.InputRef, kept)
	}
	if strings.Contains(kept, canary) || len(k.kept) != 1 {
		t.Errorf("kept %v", k.kept)
	}
	for _, rec := range e.tape.recs {
		if rec.Policy != nil && rec.Policy.InputRef == "" {
			t.Errorf("the %s record names no input", rec.Stage)
		}
	}
}
