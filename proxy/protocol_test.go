package proxy

import (
	"bufio"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// A client that waits for leave to send its body gets it after an allow alone, on
// every protocol; a denial comes without it.
func TestContinueOnEveryWay(t *testing.T) {
	onWays(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }, nil, func(t *testing.T, w way, e *env) {
		for host, want := range map[string]string{"plain.allowed.test": "100 200", "evil.test": "403"} {
			got := e.continueOn(w, host, "/", "hello")
			if strings.Join(got, " ") != want {
				t.Errorf("%s: %v", host, got)
			}
		}
	})
}

// continueOn posts JSON, waiting with it for leave, and gives the statuses.
func (e *env) continueOn(w way, host, path, body string) []string {
	if w.h2 {
		return e.continueHTTP2(host, path, body)
	}
	return e.continueHTTP1(w, host, path, body)
}

func (e *env) continueHTTP1(w way, host, target, body string) (statuses []string) {
	e.t.Helper()
	if w.name == "absolute form" {
		target = "http://" + host + target
	}
	c := e.open(w, host)
	defer c.Close()
	send(e.t, c, "POST "+target+" HTTP/1.1\r\nHost: "+host+"\r\nExpect: 100-continue\r\nContent-Type: application/json\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n")
	br := bufio.NewReader(c)
	for {
		resp, err := http.ReadResponse(br, &http.Request{Method: "POST"})
		if err != nil {
			e.t.Fatal(err)
		}
		statuses = append(statuses, resp.Status[:3])
		if resp.StatusCode != http.StatusContinue {
			return statuses
		}
		send(e.t, c, body)
	}
}

func (e *env) continueHTTP2(host, path, body string) (statuses []string) {
	e.t.Helper()
	c := e.connectTo(host)
	defer c.Close()
	r := newRawH2(e.t, e.handshake(c, host, "h2"))
	r.open(1, ":method", "POST", ":scheme", "https", ":path", path, ":authority", host,
		"expect", "100-continue", "content-type", "application/json", "content-length", strconv.Itoa(len(body)))
	for {
		f, err := r.fr.ReadFrame()
		if err != nil {
			e.t.Fatal(err)
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			statuses = append(statuses, h.PseudoValue("status"))
			if h.PseudoValue("status") != "100" {
				return statuses
			}
			if err := r.fr.WriteData(1, true, []byte(body)); err != nil {
				e.t.Fatal(err)
			}
		}
	}
}

// Interim answers arrive before the final one, without what belongs to the hop.
// HTTP/2 has them as header sections of their own.
func TestInterimAnswersOverHTTP2_F055(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.Header().Set("Connection", "X-A")
		w.Header().Set("X-A", "1")
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "hello")
	})
	r := e.rawH2("plain.allowed.test")
	r.headers(1, ordinary()...)
	var statuses []string
	for len(statuses) == 0 || statuses[len(statuses)-1] != "200" {
		f, err := r.fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		h, ok := f.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		statuses = append(statuses, h.PseudoValue("status"))
		link := false
		for _, field := range h.RegularFields() {
			link = link || field.Name == "link"
			if field.Name == "x-a" || field.Name == "connection" || strings.HasPrefix(field.Name, "proxy-") {
				t.Errorf("%s: %s", h.PseudoValue("status"), field.Name)
			}
		}
		if !link {
			t.Errorf("%s has no Link", h.PseudoValue("status"))
		}
	}
	if strings.Join(statuses, " ") != "103 200" {
		t.Errorf("%v", statuses)
	}
}

// What would lead a client elsewhere does not reach it: another service for the
// name (Alt-Svc), an offer of another protocol.
func TestAnswersNameNoOtherWayOut(t *testing.T) {
	h := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Alt-Svc", `h3=":443"; ma=86400`)
		w.Header().Set("Upgrade", "h2c")
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("X-Stays", "1")
	}
	onWays(t, h, nil, func(t *testing.T, w way, e *env) {
		r, _, _ := e.probe(w, "plain.allowed.test", attempt{method: "GET", target: "/"})
		if r.Response == nil || r.StatusCode != 200 || r.Header.Get("Alt-Svc")+r.Header.Get("Upgrade") != "" || r.Header.Get("X-Stays") != "1" {
			t.Errorf("%+v", r.Response)
		}
	})
}

// "Connection: close" ends the client's connection, not ours to the upstream.
func TestConnectionClose_F064(t *testing.T) {
	for _, w := range ways() {
		if w.h2 {
			continue // it has no such field
		}
		t.Run(w.name, func(t *testing.T) {
			target := "/"
			var set []setting
			if !w.tls {
				set = append(set, plainUpstream)
			}
			if w.name == "absolute form" {
				target = "http://plain.allowed.test/"
			}
			e := newEnv(t, nil, set...)
			for range 3 {
				c := e.open(w, "plain.allowed.test")
				send(t, c, "GET "+target+" HTTP/1.1\r\nHost: plain.allowed.test\r\nConnection: close\r\n\r\n")
				br := bufio.NewReader(c)
				if r := readReply(t, br, "GET"); !r.Close || r.body != "hello" {
					t.Errorf("%+v", r.Response)
				}
				if n, err := io.Copy(io.Discard, br); n != 0 || isTimeout(err) {
					t.Errorf("%d bytes, %v", n, err)
				}
			}
			e.tape.completed(t, 3)
			if n := e.up.connections(); n != 1 || strings.Contains(e.up.bytes(), "close") {
				t.Errorf("%d connections to the upstream, which saw %q", n, e.up.bytes())
			}
		})
	}
}
