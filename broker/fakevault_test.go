package broker

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"warder/internal/config"
)

// fake answers as Vault does where a real one cannot be brought to: broken,
// hostile and rare answers. What a test does not override is answered well.
type fake struct {
	*httptest.Server
	mu     sync.Mutex
	seen   []string            // "METHOD path"
	header map[string][]string // X-Vault-Token of each path
	answer map[string]http.HandlerFunc
	minted int
}

func newFake(t *testing.T, answers map[string]http.HandlerFunc) *fake {
	t.Helper()
	f := &fake{answer: answers, header: map[string][]string{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1/")
	f.mu.Lock()
	f.seen = append(f.seen, r.Method+" "+path)
	f.header[path] = append(f.header[path], r.Header.Get("X-Vault-Token"))
	h := f.answer[path]
	f.minted++
	n := f.minted
	f.mu.Unlock()
	switch {
	case h != nil:
		h(w, r)
	case path == "auth/token/create/agent-run":
		jsonAnswer(200, fmt.Sprintf(`{"auth":{"client_token":"S3CR3T-CANARY-run-%d","accessor":"acc-%d","lease_duration":900,"token_policies":["run-base"]}}`, n, n))(w, r)
	case path == "secret/data/github":
		jsonAnswer(200, `{"request_id":"req","data":{"data":{"token":"`+githubCanary+`"},"metadata":{"version":1}}}`)(w, r)
	case strings.HasPrefix(path, "auth/token/lookup"):
		jsonAnswer(200, `{"data":{}}`)(w, r)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func (f *fake) count(call string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.seen {
		if s == call {
			n++
		}
	}
	return n
}

func (f *fake) total() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.seen)
}

func (f *fake) set(path string, h http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answer == nil {
		f.answer = map[string]http.HandlerFunc{}
	}
	f.answer[path] = h
}

func jsonAnswer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func fakeRig(t *testing.T, f *fake) *rig {
	t.Helper()
	return newRig(t, tokenFile(t, f.URL, "S3CR3T-CANARY-broker"), map[string]config.Credential{"github-read": githubCred()})
}
