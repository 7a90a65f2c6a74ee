package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// The same anchor goes to standard output, into a file and to a server, and verify
// takes it from there.
func TestAuditAnchorGoesElsewhere(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // has no say
	want, talk, code := runAudit(t, "anchor", "--dir", sampleLog)
	if code != 0 || want == "" {
		t.Fatal(talk)
	}
	file := filepath.Join(t.TempDir(), "anchor.json")
	for range 2 { // the second replaces the first
		if _, talk, code := runAudit(t, "anchor", "--dir", sampleLog, "--to", file); code != 0 {
			t.Fatal(talk)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != want {
		t.Errorf("the file: %v, %s", err, b)
	}
	if out, talk, code := runAudit(t, "verify", "--dir", sampleLog, "--anchor", file); code != 0 {
		t.Errorf("verify: %s%s", out, talk)
	}
	type seen struct{ method, kind, body string }
	posts := make(chan seen, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/good", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		posts <- seen{r.Method, r.Header.Get("Content-Type"), string(b)}
		w.WriteHeader(http.StatusCreated)
	})
	mux.Handle("/bad", http.NotFoundHandler())
	mux.Handle("/elsewhere", http.RedirectHandler("/good", http.StatusTemporaryRedirect))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	if _, talk, code := runAudit(t, "anchor", "--dir", sampleLog, "--to", srv.URL+"/good"); code != 0 {
		t.Fatal(talk)
	}
	if got := <-posts; got != (seen{"POST", "application/json", want}) {
		t.Errorf("the server got %+v", got)
	}
	tlsSrv := httptest.NewTLSServer(mux)
	defer tlsSrv.Close()
	own := copySample(t)
	for name, args := range map[string][]string{
		"a server that refuses":             {"--to", srv.URL + "/bad"},
		"a server that sends elsewhere":     {"--to", srv.URL + "/elsewhere"},
		"a server with a stranger's name":   {"--to", tlsSrv.URL + "/good"},
		"no server":                         {"--to", "http://127.0.0.1:1/"},
		"a folder that is not there":        {"--to", filepath.Join(own, "..", "none", "a")},
		"a file in the log's own directory": {"--to", filepath.Join(own, "keys", "anchor")},
	} {
		if _, talk, code := runAudit(t, append([]string{"anchor", "--dir", own}, args...)...); code != 1 || talk == "" {
			t.Errorf("%s: exit code %d, %s", name, code, talk)
		}
	}
	if len(posts) != 0 {
		t.Error("an anchor went where nobody sent it")
	}
}
