package interop

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// echo answers with what it got, so that a client sees what its upstream saw.
func echo(w http.ResponseWriter, r *http.Request) {
	n, _ := io.Copy(io.Discard, r.Body)
	w.Header().Set("Trailer", "X-End")
	fmt.Fprintf(w, "%s %s %s %d", r.Method, r.RequestURI, r.Proto, n)
	w.Header().Set("X-End", "yes")
}

// curl speaks each version by each way in; the upstream sees HTTP/1.1, the log
// what the client spoke.
func TestCurl(t *testing.T) {
	a := newAuthority(t)
	l := newLab(t, labOptions{authority: a, upstreams: map[string]string{"svc.test": a.serve(t, http.HandlerFunc(echo), "svc.test")}})
	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	ways := map[string][]string{
		"transparent": {"--connect-to", "svc.test:443:" + l.transparent("svc.test", 443)},
		"CONNECT":     {"--proxy", "http://" + l.explicit()},
		"SOCKS5":      {"--proxy", "socks5h://" + l.explicit()},
	}
	versions := map[string]string{"--http1.0": "1.0", "--http1.1": "1.1", "--http2": "2"}
	for way, args := range ways {
		for flag, version := range versions {
			t.Run(way+" "+flag, func(t *testing.T) {
				curl := func(more ...string) string {
					argv := append([]string{"curl", "-sS", "--max-time", "60", "--cacert", l.caFile, flag, "-w", "|%{http_code} %{http_version} %{num_connects}"}, args...)
					got := output(t, nil, "", append(argv, more...)...)
					return regexp.MustCompile(`\|(\d+) 1 `).ReplaceAllString(got, "|$1 1.0 ") // some releases print 1.0 as 1
				}
				if got, want := curl("https://svc.test/a%2Fb?x=1"), "|400 "+version+" 1"; !strings.HasSuffix(got, want) {
					t.Errorf("an encoded slash: %q", got)
				}
				if got, want := curl("https://svc.test/a?x=1"), "GET /a?x=1 HTTP/1.1 0|200 "+version+" 1"; got != want {
					t.Errorf("GET: %q", got)
				}
				if got, want := curl("-I", "https://svc.test/"), "|200 "+version+" 1"; !strings.HasSuffix(got, want) {
					t.Errorf("HEAD: %q", got)
				}
				if got, want := curl("-H", "Expect: 100-continue", "--data-binary", "@"+body, "https://svc.test/up"), "POST /up HTTP/1.1 2097152|200 "+version+" 1"; got != want {
					t.Errorf("POST: %q", got)
				}
				if got := curl("https://svc.test/1", "https://svc.test/2"); version != "1.0" && !strings.Contains(got, "|200 "+version+" 0") {
					t.Errorf("the connection was not used again: %q", got)
				}
				if got, want := curl("-T", body, "https://svc.test/put"), "PUT /put HTTP/1.1 2097152|200 "+version+" 1"; got != want {
					t.Errorf("PUT: %q", got)
				}
			})
		}
	}
	spoken := map[string]int{}
	for _, r := range l.completed() {
		spoken[r.Request.Protocol]++
	}
	for _, p := range []string{"http/1.0", "http/1.1", "h2"} {
		if spoken[p] != 7*len(ways) {
			t.Errorf("%d records of %s", spoken[p], p)
		}
	}
}

// In clear text, and denied.
func TestCurlInClearTextAndDenied(t *testing.T) {
	a := newAuthority(t)
	l := newLab(t, labOptions{authority: a, upstreams: map[string]string{"svc.test": a.serve(t, http.HandlerFunc(echo), "svc.test")}})
	proxy := l.explicit()
	for _, flag := range []string{"--http1.0", "--http1.1", "--http2"} {
		for _, url := range []string{"http://evil.test/", "https://evil.test/"} {
			got := output(t, nil, "", "curl", "-sS", "--cacert", l.caFile, flag, "--proxy", "http://"+proxy, "-w", "|%{http_code} %{content_type}", url)
			if !strings.Contains(got, `"reason":"no-rule"`) || !strings.HasSuffix(got, "|403 application/problem+json") {
				t.Errorf("%s %s: %q", flag, url, got)
			}
		}
	}
	for _, r := range l.completed() {
		if r.Verdict != "deny" || r.Reason != "no-rule" || r.Request.Host != "evil.test" {
			t.Errorf("record %+v %+v", r, r.Request)
		}
	}
}

func TestNghttp(t *testing.T) {
	a := newAuthority(t)
	l := newLab(t, labOptions{authority: a, upstreams: map[string]string{"localhost": a.serve(t, http.HandlerFunc(echo), "localhost")}})
	_, port, _ := net.SplitHostPort(l.transparent("localhost", 0))
	url := "https://localhost:" + port
	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, make([]byte, 300_000), 0o600); err != nil {
		t.Fatal(err)
	}
	got := output(t, nil, "", "nghttp", "-v", "--no-dep", url+"/a?x=1", url+"/b")
	for _, want := range []string{":status: 200", "GET /a?x=1 HTTP/1.1 0", "GET /b HTTP/1.1 0", "x-end: yes"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in %s", want, got)
		}
	}
	got = output(t, nil, "", "nghttp", "-v", "--data="+body, "--trailer=x-sum: 1", "--expect-continue", url+"/up")
	if !strings.Contains(got, ":status: 100") || !strings.Contains(got, "POST /up HTTP/1.1 300000") {
		t.Errorf("an upload: %s", got)
	}
	// PRIORITY frames, padding, small windows.
	got = output(t, nil, "", "nghttp", "-v", "--padding=64", "--window-bits=10", "--connection-window-bits=12", "--weight=200", url+"/c")
	if !strings.Contains(got, "GET /c HTTP/1.1 0") {
		t.Errorf("padding and small windows: %s", got)
	}
	for _, r := range l.completed() {
		if r.Verdict != "allow" || r.Request.Protocol != "h2" {
			t.Errorf("record %+v %+v", r, r.Request)
		}
	}
}

func TestH2load(t *testing.T) {
	a := newAuthority(t)
	l := newLab(t, labOptions{authority: a, upstreams: map[string]string{"localhost": a.serve(t, http.HandlerFunc(echo), "localhost")}})
	_, port, _ := net.SplitHostPort(l.transparent("localhost", 0))
	for _, args := range [][]string{{"-m", "20"}, {"--h1"}, {"-m", "4", "--window-bits=12"}} {
		got := output(t, nil, "", append(append([]string{"h2load", "-n", "300", "-c", "6"}, args...), "https://localhost:"+port+"/")...)
		if !strings.Contains(got, "300 succeeded, 0 failed, 0 errored, 0 timeout") || !regexp.MustCompile(`status codes: 300 2xx, 0 3xx`).MatchString(got) {
			t.Errorf("%v: %s", args, got)
		}
	}
	if n := len(l.completed()); n != 900 {
		t.Errorf("%d records", n)
	}
}
