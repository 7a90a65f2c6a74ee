package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/policies"
)

const regoPolicy = `package warder.egress

# METADATA
# title: Read what is public
# custom: {owner: tests}
allow contains {"rule": "read", "hint": "read only"} if {
	input.request.host == "plain.allowed.test"
	input.request.method in {"GET", "HEAD"}
	glob.match("/public/**", ["/"], input.request.path)
}

# METADATA
# title: Post small orders
# custom: {owner: tests}
allow contains {"rule": "orders", "credential": "api"} if {
	input.request.host == "api.allowed.test"
	input.request.method == "POST"
	input.request.body.total < 100
}

deny contains {"rule": "no-secrets", "message": "this path is closed", "hint": "ask the owners"} if {
	input.request.segments[1] == "secret"
}
`

func rego(text string) setting {
	return func(e *env, o *Options, _ *RunOptions) {
		dir := filepath.Join(e.t.(*testing.T).TempDir(), "policies")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			e.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "egress.rego"), []byte(text), 0o600); err != nil {
			e.t.Fatal(err)
		}
		engine, err := policies.Load(policies.Options{Dir: dir})
		if err != nil {
			e.t.Fatal(err)
		}
		o.Policy = func() Decider { return engine }
	}
}

// The real engine judges what the proxy makes of real requests, alike in clear
// text and intercepted (F030).
func TestRegoJudgesBothPathsAlike_F030(t *testing.T) {
	for _, way := range []string{"clear text", "intercepted"} {
		t.Run(way, func(t *testing.T) {
			set := []setting{rego(regoPolicy)}
			if way == "clear text" {
				set = append(set, plainUpstream)
			}
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "seen") }, set...)
			for i, c := range []struct {
				method, path, reason, rule string
				status                     int
			}{
				{"GET", "/public/a?x=1", "", "read", 200},
				{"HEAD", "/public/a", "", "read", 200}, // F036
				{"POST", "/public/a", "no-rule", "", 403},
				{"GET", "/admin", "no-rule", "", 403},
				{"GET", "/public/secret/x", "denied", "no-secrets", 403},
				{"GET", "/public/%73ecret/x", "denied", "no-secrets", 403},
				{"GET", "/public/..%2fadmin", "bad-request", "", 400},
				{"GET", "/public/a%2Fb", "bad-request", "read", 400},
			} {
				var conn net.Conn = e.plain("plain.allowed.test")
				if way == "intercepted" {
					conn = e.tls("plain.allowed.test")
				}
				r := ask(t, conn, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n", c.method, c.path))
				rec := e.tape.completed(t, i+1)[i]
				if r.StatusCode != c.status || r.reason() != c.reason || rec.Reason != c.reason || rec.Rule != c.rule {
					t.Errorf("%s %s: %d %q, record %s", c.method, c.path, r.StatusCode, r.body, dump(e.tape.recs[len(e.tape.recs)-1:]))
				}
			}
			if raw := e.up.bytes(); strings.Contains(raw, "admin") || strings.Contains(raw, "secret") || strings.Count(raw, " HTTP/1.1") != 2 {
				t.Errorf("upstream saw %q", raw)
			}
		})
	}
}

func TestRegoSeesTheBodyAndTheUpstreamTheSameBytes(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
	}, rego(regoPolicy))
	for body, status := range map[string]int{`{"total": 5,  "x":"é"}`: 200, `{"total": 500}`: 403, `not json`: 403, ``: 403} {
		r := ask(t, e.tls("api.allowed.test"), fmt.Sprintf("POST /orders HTTP/1.1\r\nHost: api.allowed.test\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		if r.StatusCode != status || status == 200 && r.body != body {
			t.Errorf("%q: %d %q", body, r.StatusCode, r.body)
		}
	}
	if n := strings.Count(e.up.bytes(), canary); n != 1 {
		t.Errorf("the credential was sent %d times", n)
	}
}

const bodyPolicy = `package warder.egress

allow contains {"rule": "orders"} if {
	input.request.host == "plain.allowed.test"
	input.request.body.total < 100
}

allow contains {"rule": "open"} if input.request.host == "other.allowed.test"

deny contains {"rule": "closed"} if startswith(input.request.path, "/closed")

deny contains {"rule": "no-secrets"} if {
	input.request.method == "POST"
	input.request.body.secret
}
`

// Where the policy is over bodies, a client that waits with its own is told to go
// on only when what it asks for may be allowed by it; what is refused whatever it
// says is refused before. A body that no rule is about is not read ahead.
func TestContinueWaitsForWhatCanBeJudgedWithoutTheBody(t *testing.T) {
	onWays(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }, []setting{rego(bodyPolicy)}, func(t *testing.T, w way, e *env) {
		for _, c := range []struct{ host, path, want string }{
			{"evil.test", "/", "403"},
			{"plain.allowed.test", "/closed", "403"},
			{"other.allowed.test", "/closed/x", "403"},
			{"plain.allowed.test", "/", "100 200"}, // control: the body decides
			{"plain.allowed.test", "/large", "100 403"},
			{"other.allowed.test", "/", "100 200"},
		} {
			body := `{"total": 5}`
			if c.path == "/large" {
				body = `{"total": 500}`
			}
			got := e.continueOn(w, c.host, c.path, body)
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s%s: %v", c.host, c.path, got)
			}
		}
	})
}

// A stream to a host that no rule over bodies is about goes on as it comes.
func TestABodyThatNoRuleIsAboutStreams_F060(t *testing.T) {
	got := make(chan string)
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		b := make([]byte, 4)
		for range 2 {
			io.ReadFull(r.Body, b)
			got <- string(b)
		}
	}, rego(bodyPolicy))
	c := e.tls("other.allowed.test")
	send(t, c, "PUT / HTTP/1.1\r\nHost: other.allowed.test\r\nContent-Length: 8\r\n\r\nhalf")
	if s := <-got; s != "half" { // while the rest is not there
		t.Errorf("%q", s)
	}
	send(t, c, "more")
	if s := <-got; s != "more" {
		t.Errorf("%q", s)
	}
	if r := readReply(t, bufio.NewReader(c), "PUT"); r.StatusCode != 200 {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
}
