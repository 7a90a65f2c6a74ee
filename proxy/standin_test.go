package proxy

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"warder/broker"
	"warder/internal/config"
	"warder/internal/identity"
)

// withStandIn offers the credential "api" with a stand-in in API_KEY.
func withStandIn(in config.Inject) setting {
	return func(e *env, _ *Options, ro *RunOptions) {
		b, err := broker.New(broker.Options{
			Credentials: map[string]config.Credential{"api": {
				Source: config.Source{Local: &config.LocalSource{Env: "API_TOKEN"}}, Inject: in, Hosts: []string{"api.allowed.test"},
				StandIn: map[string]string{"API_KEY": "sk_{random:24}"},
			}},
			Getenv: func(string) (string, bool) { return canary, true },
		})
		if err != nil {
			e.t.Fatal(err)
		}
		ro.Run = identity.Run{ID: identity.NewRunID()}
		s, err := b.Begin(ro.Run, nil, nil)
		if err != nil {
			e.t.Fatal(err)
		}
		e.t.Cleanup(func() { s.End(context.Background()); b.Close(context.Background()) })
		ro.Granter, ro.StandIns = s, StandInsOf(s)
	}
}

func (e *env) standIn() string {
	e.t.Helper()
	s := e.run.standIns
	if len(s) != 1 || s[0].Env != "API_KEY" || len(s[0].Credentials) != 1 || s[0].Credentials[0] != "api" || len(s[0].Value) != 27 {
		e.t.Fatalf("stand-ins %+v", s)
	}
	return s[0].Value
}

func TestStandInsOutsideTheirPlaceAreRefused_F070(t *testing.T) {
	form := func(kind, body string) string {
		return fmt.Sprintf("Content-Type: %s\r\nContent-Length: %d\r\n\r\n%s", kind, len(body), body)
	}
	const urlencoded = "application/x-www-form-urlencoded"
	escaped := func(v string) string { return strings.Replace(v, "_", "%5F", 1) }
	for name, c := range map[string]struct {
		method, path string
		rest         func(v string) string // fields and body
		bound        bool                  // to the bound host, which gets the value too
	}{
		"a header":                          {"GET", "/", func(v string) string { return "X-Key: " + v + "\r\n\r\n" }, false},
		"the credential's header":           {"GET", "/", func(v string) string { return "Authorization: Bearer " + v + "\r\n\r\n" }, false},
		"a header, percent-encoded":         {"GET", "/", func(v string) string { return "Referer: /?k=" + escaped(v) + "\r\n\r\n" }, false},
		"Basic":                             {"GET", "/", func(v string) string { return "Authorization: Basic " + basic("u:"+v) + "\r\n\r\n" }, false},
		"Basic, as the user":                {"GET", "/", func(v string) string { return "Authorization: basic " + basic(v+":") + "\r\n\r\n" }, false},
		"the path":                          {"GET", "/a/STANDIN/b", func(string) string { return "\r\n" }, false},
		"the path, percent-encoded":         {"GET", "/a/ESCAPED", func(string) string { return "\r\n" }, false},
		"the query":                         {"GET", "/?k=STANDIN", func(string) string { return "\r\n" }, false},
		"the query, encoded twice":          {"GET", "/?k=TWICE", func(string) string { return "\r\n" }, false},
		"a form":                            {"POST", "/", func(v string) string { return form(urlencoded, "a=b&k="+v) }, false},
		"a form, percent-encoded":           {"POST", "/", func(v string) string { return form(urlencoded, "a=b&k="+escaped(v)) }, false},
		"a form of parts":                   {"POST", "/", func(v string) string { return form("multipart/form-data; boundary=x", "--x\r\n\r\n"+v+"\r\n--x--") }, false},
		"the bound host, another header":    {"GET", "/", func(v string) string { return "X-Key: " + v + "\r\n\r\n" }, true},
		"the bound host, the query":         {"GET", "/?k=STANDIN", func(string) string { return "\r\n" }, true},
		"the bound host, a form":            {"POST", "/", func(v string) string { return form(urlencoded, "k="+v) }, true},
		"the bound host, beside the header": {"GET", "/", func(v string) string { return "Authorization: Bearer " + v + "\r\nCookie: k=" + v + "\r\n\r\n" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, nil, withStandIn(config.Inject{Header: "Authorization", Format: "Bearer {value}"}))
			host := map[bool]string{true: "api.allowed.test", false: "plain.allowed.test"}[c.bound]
			v := e.standIn()
			path := strings.NewReplacer("STANDIN", v, "ESCAPED", escaped(v), "TWICE", url.QueryEscape(escaped(v))).Replace(c.path)
			r := ask(t, e.tls(host), c.method+" "+path+" HTTP/1.1\r\nHost: "+host+"\r\n"+c.rest(v))
			if r.StatusCode != 403 || r.reason() != reasonStandInLeak || !strings.Contains(r.body, "API_KEY") || strings.Contains(r.body, v) {
				t.Errorf("answer %d %q", r.StatusCode, r.body)
			}
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != reasonStandInLeak || rec.Verdict != verdictDeny || strings.Contains(rec.Detail, v) {
				t.Errorf("records %s", dump(e.tape.recs))
			}
			if got := e.up.bytes(); got != "" {
				t.Errorf("upstream saw %q", got)
			}
		})
	}
}

func basic(pair string) string { return base64.StdEncoding.EncodeToString([]byte(pair)) }

// What an SDK sends in the credential's slot is replaced by the value.
func TestStandInInItsPlaceBecomesTheValue(t *testing.T) {
	for name, c := range map[string]struct {
		in         config.Inject
		path, line string // with STANDIN
		want       string // at the upstream
	}{
		"header": {config.Inject{Header: "Authorization", Format: "Bearer {value}"}, "/x", "Authorization: Bearer STANDIN\r\n", "Authorization: Bearer " + canary + "\r\n"},
		"basic":  {config.Inject{Basic: &config.Basic{Username: "u"}}, "/x", "Authorization: Basic " + basic("u:STANDIN") + "\r\n", "Authorization: Basic " + basic("u:"+canary) + "\r\n"},
		"query":  {config.Inject{Query: "key"}, "/x?a=1&key=STANDIN", "", "GET /x?a=1&key=" + canary + " HTTP/1.1\r\n"},
	} {
		for _, way := range []string{"intercepted", "CONNECT", "h2"} {
			t.Run(name+" "+way, func(t *testing.T) {
				e := newEnv(t, nil, withStandIn(c.in))
				v := e.standIn()
				line := strings.Replace(c.line, "STANDIN", v, 1)
				if name == "basic" {
					line = "Authorization: Basic " + basic("u:"+v) + "\r\n"
				}
				path := strings.Replace(c.path, "STANDIN", v, 1)
				var r reply
				if way == "h2" {
					req, err := http.NewRequestWithContext(t.Context(), "GET", "https://api.allowed.test"+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					if k, val, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
						req.Header.Set(k, val)
					}
					cc, _ := e.h2("api.allowed.test")
					r = h2Do(t, cc, req)
				} else {
					var conn net.Conn = e.tls("api.allowed.test")
					if way == "CONNECT" {
						conn = e.tunnel("api.allowed.test")
					}
					r = ask(t, conn, "GET "+path+" HTTP/1.1\r\nHost: api.allowed.test\r\n"+line+"\r\n")
				}
				raw := e.up.bytes()
				if r.StatusCode != 200 || strings.Count(raw, c.want) != 1 || strings.Contains(raw, v) {
					t.Errorf("%d %q; upstream saw %q", r.StatusCode, r.body, raw)
				}
			})
		}
	}
}

// In clear text there is no place for it at all.
func TestStandInInClearTextIsRefused_F070(t *testing.T) {
	e := newEnv(t, nil, plainUpstream, withStandIn(config.Inject{Header: "Authorization"}))
	for _, host := range []string{"plain.allowed.test", "api.allowed.test"} {
		r := ask(t, e.plain(host), "GET / HTTP/1.1\r\nHost: "+host+"\r\nAuthorization: "+e.standIn()+"\r\n\r\n")
		if r.StatusCode != 403 || r.reason() != reasonStandInLeak {
			t.Errorf("%s: %d %q", host, r.StatusCode, r.body)
		}
	}
	if got := e.up.bytes(); got != "" {
		t.Errorf("upstream saw %q", got)
	}
}

func TestStandInsInStreamedBodiesAreCounted(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
	}, withStandIn(config.Inject{Header: "Authorization"}))
	v := e.standIn()
	big := "k=" + v + strings.Repeat("&pad=0123456789", maxForm/15) + "&again=" + v
	for i, c := range []struct{ kind, body string }{
		{"application/json", `{"a":"` + v + `","b":"` + v + `","c":"` + v[:20] + `"}`},
		{"application/x-www-form-urlencoded", big},
	} {
		r := ask(t, e.tls("plain.allowed.test"), fmt.Sprintf("POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", c.kind, len(c.body), c.body))
		if r.StatusCode != 200 || r.body != c.body {
			t.Errorf("%s: %d, %d bytes", c.kind, r.StatusCode, len(r.body))
		}
		if rec := e.tape.completed(t, i+1)[i]; rec.Request.StandIns != 2 {
			t.Errorf("%s: counted %d", c.kind, rec.Request.StandIns)
		}
	}
}

func TestStandInInATrailerEndsTheRequest(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, r.Trailer)
	}, withStandIn(config.Inject{Header: "Authorization"}))
	for value, status := range map[string]int{"ordinary": 200, e.standIn(): 403} {
		r := ask(t, e.tls("plain.allowed.test"), "POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-T: "+value+"\r\n\r\n")
		if r.StatusCode != status {
			t.Errorf("%d %q", r.StatusCode, r.body)
		}
	}
	if strings.Contains(e.up.bytes(), e.standIn()) {
		t.Error("it was sent")
	}
}

func TestStandInCounterDoesNotMindCuts(t *testing.T) {
	list := []StandIn{{Value: "abcabd"}, {Value: "0123456789"}}
	text := "xabcabcabdx0123456789abcabd01234567890123456789"
	for size := 1; size <= len(text); size++ {
		c := standInCounter{list: list}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			c.add([]byte(rest[:n]))
			rest = rest[n:]
		}
		if c.n != 5 {
			t.Errorf("parts of %d bytes: %d", size, c.n)
		}
	}
}

func FuzzStandInText(f *testing.F) {
	f.Add("a%5f", "sk_x")
	list := []StandIn{{Env: "K", Value: "sk_0123456789"}}
	f.Fuzz(func(t *testing.T, before, after string) {
		for _, v := range []string{list[0].Value, url.QueryEscape(list[0].Value), "sk%5F0123456789", "%73k_0123456789"} {
			if strings.HasSuffix(before, "%") || len(before) > 1 && before[len(before)-2] == '%' {
				return // the text is another one then
			}
			if inText(before+v+after, list) != "K" {
				t.Errorf("%q is not found", before+v+after)
			}
		}
	})
}
