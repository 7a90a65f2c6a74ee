package proxy

import (
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestAllowedRequestByEveryWayIn(t *testing.T) {
	for _, way := range []struct {
		name string
		open func(*env) net.Conn
		raw  string
		mode string
		set  []setting
	}{
		{"transparent TLS", func(e *env) net.Conn { return e.tls("api.allowed.test") }, get("/x?a=1&b=2", "api.allowed.test"), "intercepted", nil},
		{"CONNECT", func(e *env) net.Conn { return e.tunnel("api.allowed.test") }, get("/x?a=1&b=2", "api.allowed.test"), "intercepted", nil},
		{"transparent clear text", func(e *env) net.Conn { return e.plain("plain.allowed.test") }, get("/x?a=1&b=2", "plain.allowed.test"), "plain", []setting{plainUpstream}},
		{"absolute form", func(e *env) net.Conn { return e.explicit() }, get("http://plain.allowed.test/x?a=1&b=2", "plain.allowed.test"), "plain", []setting{plainUpstream}},
	} {
		t.Run(way.name, func(t *testing.T) {
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Up", "1")
				w.Write([]byte("got " + r.Header.Get("Authorization")))
			}, way.set...)
			c := way.open(e)
			r := ask(t, c, way.raw)
			if r.StatusCode != 200 || !strings.HasPrefix(r.body, "got ") || r.Header.Get("X-Up") != "1" {
				t.Fatalf("answer %v %q", r.Response, r.body)
			}
			if strings.Contains(r.body, canary) {
				t.Error("the injected value came back")
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Mode != way.mode || rec.Verdict != "allow" || rec.Request.Path != "/x" || rec.Request.Attempts != 1 {
				t.Errorf("record %s", dump(e.tape.recs))
			}
			if e.tape.count("reserved") != 1 {
				t.Errorf("reserved: %s", dump(e.tape.recs))
			}
			raw := e.up.bytes()
			if way.mode == "intercepted" {
				if !strings.Contains(raw, "Authorization: Bearer "+canary+"\r\n") {
					t.Errorf("upstream saw %q", raw)
				}
				if rec.Credential == nil || rec.Credential.Name != "api" || rec.Response.Scrubbed != 1 {
					t.Errorf("record %s", dump(e.tape.recs))
				}
			}
			if !strings.HasPrefix(raw, "GET /x?a=1&b=2 HTTP/1.1\r\n") || strings.Contains(raw, "User-Agent") || strings.Contains(raw, "Accept-Encoding") ||
				strings.Contains(raw, "Transfer-Encoding") || strings.Contains(raw, "Content-Length") {
				t.Errorf("upstream saw %q", raw)
			}
		})
	}
}
