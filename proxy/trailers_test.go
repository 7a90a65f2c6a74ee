package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"warder/audit"
	"warder/internal/config"
)

// A trailer of a request that names what routes, frames or authenticates, what the
// head has said already, or the very place of the credential, reaches nobody: not
// when it is announced, not alone, not beside others, not in another case.
func TestRequestTrailersThatMeanMore_I3_I5_F061(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }
	for _, slot := range []string{"Authorization", "X-Api-Key"} {
		set := func(_ *env, _ *Options, ro *RunOptions) {
			ro.Granter = testSession(t, ro.Run, config.Inject{Header: slot, Format: "{value}"})
		}
		for _, host := range []string{"api.allowed.test", "plain.allowed.test"} {
			if slot == "X-Api-Key" && host != "api.allowed.test" {
				continue // nothing is in that place there
			}
			for _, announced := range []string{
				"", slot, strings.ToLower(slot), "X-Sum, " + slot, "X-Sum", "X-Judged", "Authorization", "Cookie, Host", "X-Sum, Host, Connection, Te, Proxy-Authorization, Upgrade, Expect, X-Http-Method-Override",
			} {
				e := newEnv(t, h, set)
				trailer := ""
				if announced != "" {
					trailer = "Trailer: " + announced + "\r\n"
				}
				names := []string{slot, strings.ToUpper(slot), "Authorization", "Host", "Cookie", "Connection", "Te", "Upgrade", "Expect", "Proxy-Authorization", "X-Http-Method-Override", "X-Judged"}
				section := "X-Sum: 42\r\n"
				for _, name := range names {
					section += name + ": stolen\r\n"
				}
				raw := "POST / HTTP/1.1\r\nHost: " + host + "\r\nX-Judged: yes\r\nTransfer-Encoding: chunked\r\n" + trailer + "\r\n3\r\nabc\r\n0\r\n" + section + "\r\n"
				c := e.tls(host)
				send(t, c, raw+get("/control", host))
				br := bufio.NewReader(c)
				if r := readReply(t, br, "POST"); r.StatusCode != 200 || r.body != "abc" {
					t.Errorf("%s, %q: %d %q", host, announced, r.StatusCode, r.body)
				}
				readReply(t, br, "GET")
				got := e.up.bytes()
				_, end, _ := strings.Cut(got, "\r\n0\r\n")
				end, _, _ = strings.Cut(end, "\r\n\r\n")
				if strings.Contains(got, "stolen") || strings.Contains(strings.ToLower(headOf(got)), "trailer: "+strings.ToLower(announced)) && announced != "" && announced != "X-Sum" {
					t.Errorf("%s, %s, %q: upstream saw %q", slot, host, announced, got)
				}
				if want := strings.Contains(announced, "X-Sum"); want != strings.Contains(end, "X-Sum: 42") {
					t.Errorf("%s, %q: the trailers are %q", host, announced, end)
				}
				if n := strings.Count(got, canary); !strings.Contains(got, "GET /control ") || n != map[bool]int{true: 2}[host == "api.allowed.test"] {
					t.Errorf("control: the credential %d times in %q", n, got)
				}
				e.tape.completed(t, 2)
			}
		}
	}
}

// Names that no trailer may have are refused as soon as they are announced.
func TestAnnouncedTrailersThatFrame_I6_F061(t *testing.T) {
	for _, name := range []string{"Content-Length", "Transfer-Encoding", "Trailer"} {
		e := newEnv(t, nil)
		r := ask(t, e.tls("plain.allowed.test"), "POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nTransfer-Encoding: chunked\r\nTrailer: "+name+"\r\n\r\n0\r\n"+name+": 5\r\n\r\n")
		rec := e.tape.completed(t, 1)[0]
		if r.StatusCode != 400 || r.reason() != reasonBadRequest || rec.Reason != reasonBadRequest {
			t.Errorf("%s: %d %q, record %s", name, r.StatusCode, r.body, rec.Reason)
		}
		e.sawNothing(t)
		// Not announced they are dropped.
		e = newEnv(t, nil)
		r = ask(t, e.tls("plain.allowed.test"), "POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"+name+": stolen\r\n\r\n")
		if r.StatusCode != 200 || strings.Contains(e.up.bytes(), "stolen") {
			t.Errorf("%s: %d, upstream saw %q", name, r.StatusCode, e.up.bytes())
		}
	}
}

// The same over HTTP/2, where a trailer section can also hold pseudo-headers.
func TestHTTP2RequestTrailersThatMeanMore_F061(t *testing.T) {
	for name, c := range map[string]struct {
		announced string
		fields    []string
		want      string // what of it is sent; "-": the request is refused
	}{
		"control":                {"x-sum", []string{"x-sum", "42"}, "X-Sum: 42"},
		"the slot":               {"x-api-key", []string{"x-api-key", "stolen"}, ""},
		"the slot beside":        {"x-sum, x-api-key", []string{"x-sum", "42", "x-api-key", "stolen"}, "X-Sum: 42"},
		"authorization":          {"authorization", []string{"authorization", "stolen"}, "-"},
		"not announced":          {"", []string{"authorization", "stolen", "x-sum", "stolen", "host", "stolen"}, ""},
		"what the head has said": {"x-judged", []string{"x-judged", "stolen"}, ""},
		"a path":                 {"x-sum", []string{":path", "/stolen"}, "-"},
		"an authority":           {"", []string{":authority", "stolen.test"}, "-"},
		"a status":               {"", []string{":status", "200"}, "-"},
		"a length":               {"", []string{"content-length", "99"}, ""},
		"a coding":               {"", []string{"transfer-encoding", "stolen"}, "?"},
		"upper case":             {"x-sum", []string{"X-Sum", "stolen"}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }, func(_ *env, _ *Options, ro *RunOptions) {
				ro.Granter = testSession(t, ro.Run, config.Inject{Header: "X-Api-Key", Format: "{value}"})
			})
			r := e.rawH2("api.allowed.test")
			fields := []string{":method", "POST", ":scheme", "https", ":path", "/", ":authority", "api.allowed.test", "x-judged", "yes"}
			if c.announced != "" {
				fields = append(fields, "trailer", c.announced)
			}
			r.open(1, fields...)
			if err := r.fr.WriteData(1, false, []byte("abc")); err != nil {
				t.Fatal(err)
			}
			r.trailers(1, c.fields...)
			got := r.reply(1)
			r.c.Close()
			rec := e.tape.completed(t, 1)[0]
			saw := e.up.bytes()
			_, end, whole := strings.Cut(saw, "\r\n0\r\n")
			if c.want == "-" && (got.Response != nil && got.StatusCode == 200 || whole) {
				t.Errorf("%v, upstream saw %q, record %s", got.Response, saw, dump([]audit.Record{rec}))
			}
			if c.want != "-" && c.want != "?" && (got.Response == nil || got.StatusCode != 200 || strings.TrimSpace(end) != c.want) {
				t.Errorf("%v, upstream saw %q, record %s", got.Response, saw, dump([]audit.Record{rec}))
			}
			if strings.Contains(saw, "stolen") || strings.Contains(end, "ontent-") {
				t.Errorf("upstream saw %q", saw)
			}
		})
	}
}

// trailers ends a stream with a header section.
func (r *rawH2) trailers(stream uint32, fields ...string) {
	r.t.Helper()
	var b strings.Builder
	enc := hpack.NewEncoder(&b)
	enc.SetMaxDynamicTableSizeLimit(0)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true}) // into memory
	}
	if err := r.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte(b.String()), EndStream: true, EndHeaders: true}); err != nil {
		r.t.Fatal(fmt.Errorf("trailers: %w", err))
	}
}
