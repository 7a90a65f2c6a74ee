package proxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"warder/broker"
	"warder/internal/config"
	"warder/policies"
)

// The same decision and the same record, whatever the way in; a credential never
// in clear text.
func TestEveryWayIsJudgedAlike_F030_F085(t *testing.T) {
	closed := policy(func(in *policies.Input) policies.Decision {
		if in.Request.Method == "POST" && in.Request.Path == "/admin" {
			return policies.Decision{Verdict: policies.Deny, Reason: reasonDenied, Rule: "no-admin"}
		}
		return byHost(in)
	})
	onEveryWay(t, []setting{closed}, func(t *testing.T, w way, e *env) {
		rec := e.denied(w, "plain.allowed.test", attempt{method: "POST", target: "/admin", body: "x"}, 403, reasonDenied)
		if rec.Rule != "no-admin" || rec.Request.Method != "POST" || rec.Request.Path != "/admin" || rec.Request.Host != "plain.allowed.test" || rec.Policy == nil {
			t.Errorf("record %+v", rec)
		}
		e.denied(w, "nobody.test", attempt{method: "GET", target: "/"}, 403, reasonNoRule)
		e.allowed(w, "plain.allowed.test", attempt{method: "POST", target: "/other", body: "x"})
		e.policy.mu.Lock()
		e.policy.fn = func(*policies.Input) policies.Decision {
			return policies.Decision{Verdict: policies.Allow, Rule: "r", Credential: "api"}
		}
		e.policy.mu.Unlock()
		if !w.tls {
			e.denied(w, "api.allowed.test", attempt{method: "GET", target: "/"}, 403, reasonClearTextCredential)
			return
		}
		if _, sent := e.allowed(w, "api.allowed.test", attempt{method: "GET", target: "/"}); strings.Count(sent, canary) != 1 {
			t.Errorf("upstream saw %q", sent)
		}
	})
}

// Without a policy, or with one that answers nothing, everything is denied.
func TestNoPolicyDenies_F015(t *testing.T) {
	none := func(_ *env, o *Options, _ *RunOptions) { o.Policy = func() Decider { return nil } }
	for name, c := range map[string]struct {
		set    setting
		reason string
	}{
		"none":            {none, reasonPolicyError},
		"an empty answer": {policy(func(*policies.Input) policies.Decision { return policies.Decision{} }), reasonPolicyError},
		"an empty list":   {rego("package warder.egress\n\nallow contains {\"rule\": \"x\"} if input.request.host in []\n"), reasonNoRule},
	} {
		t.Run(name, func(t *testing.T) {
			onEveryWay(t, []setting{c.set}, func(t *testing.T, w way, e *env) {
				e.denied(w, "plain.allowed.test", attempt{method: "GET", target: "/"}, 403, c.reason)
			})
		})
	}
}

func TestPathsThatServersReadInTwoWays_F031_F033(t *testing.T) {
	onEveryWay(t, []setting{policy(allowEverything)}, func(t *testing.T, w way, e *env) {
		for _, target := range []string{
			"/public/../secret", "/public/./../secret", "/public/..", "/.", "/public/%2e%2e/secret", "/public/.%2E/secret", "/a%2f..%2fsecret", "/public/%252e%252e/secret", // F031
			"/public/..;/secret", "/public;x=1/../secret", "//secret", "/public//..//secret", "/a//b", "/a/..%3b/b", "/a\\..\\b", "/a%5c..%5cb", "/a%00b", // F033
		} {
			e.denied(w, "plain.allowed.test", attempt{method: "GET", target: target}, 400, reasonBadRequest)
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/public/control"})
	})
}

// What is allowed arrives byte for byte, and the policy has seen all of it.
func TestTargetsArriveAsTheyWereJudged_F034_F041_F043(t *testing.T) {
	leave := policy(func(in *policies.Input) policies.Decision {
		d := byHost(in)
		d.EncodedSlash = true
		return d
	})
	onEveryWay(t, []setting{leave}, func(t *testing.T, w way, e *env) {
		for _, target := range []string{"/o/dir%2Fname?alt=media", "/a%20b+c%3B;d=1", "/v1?x=1&x=2&%61=b;c", "/v1?", "/%C3%BC?a=%2e%2e//", "/?q=http://other.test/%zz"} {
			_, sent := e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: target})
			if !strings.HasPrefix(sent, "GET "+target+" HTTP/1.1\r\n") {
				t.Errorf("%s: upstream saw %q", target, sent)
			}
			in := e.policy.inputs()[len(e.policy.inputs())-1].Request
			path, query, _ := strings.Cut(target, "?")
			if in.Path != path || strings.HasPrefix(query, "x=1") && (!slices.Equal(in.Query["x"], []string{"1", "2"}) || in.Query["a"][0] != "b;c") {
				t.Errorf("%s: the policy saw %q %v", target, in.Path, in.Query)
			}
		}
		// The Host field as stated: a default port is neither added nor dropped.
		port := map[bool]string{true: ":443", false: ":80"}[w.tls]
		if w.name == "absolute form" {
			return // the URL's authority is the one that counts
		}
		for _, host := range []string{"plain.allowed.test", "plain.allowed.test" + port} {
			if _, sent := e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/", host: host}); !slices.Equal(fieldsOf(sent, "Host"), []string{host}) {
				t.Errorf("%s: upstream saw %q", host, sent)
			}
		}
	})
}

// Leave for an encoded slash is that of the rule that matched, on its path.
func TestEncodedSlashIsTheRulesOwn_F035(t *testing.T) {
	leave := policy(func(in *policies.Input) policies.Decision {
		d := byHost(in)
		d.EncodedSlash = strings.HasPrefix(in.Request.Path, "/o/")
		return d
	})
	onEveryWay(t, []setting{leave}, func(t *testing.T, w way, e *env) {
		e.denied(w, "plain.allowed.test", attempt{method: "GET", target: "/p/a%2Fb"}, 400, reasonBadRequest)
		e.denied(w, "plain.allowed.test", attempt{method: "GET", target: "/p/a%2fb"}, 400, reasonBadRequest)
		if _, sent := e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/o/a%2Fb"}); !strings.HasPrefix(sent, "GET /o/a%2Fb ") {
			t.Errorf("upstream saw %q", sent)
		}
	})
}

// HEAD goes where GET does: the binding of a credential says so, and a rule sees
// the method as it is.
func TestHEADFollowsGET_F036(t *testing.T) {
	bound := func(e *env, _ *Options, ro *RunOptions) { ro.Granter = boundSession(e, ro, []string{"GET"}, nil) }
	onEveryWay(t, []setting{bound}, func(t *testing.T, w way, e *env) {
		if !w.tls {
			e.allowed(w, "plain.allowed.test", attempt{method: "HEAD", target: "/pkg"})
			return
		}
		for _, method := range []string{"GET", "HEAD"} {
			if _, sent := e.allowed(w, "api.allowed.test", attempt{method: method, target: "/pkg"}); !strings.HasPrefix(sent, method+" ") || strings.Count(sent, canary) != 1 {
				t.Errorf("upstream saw %q", sent)
			}
		}
		if r, rec, sent := e.probe(w, "api.allowed.test", attempt{method: "POST", target: "/pkg", body: "x"}); r.StatusCode != 403 || rec.Reason != reasonCredentialBinding || sent != "" {
			t.Errorf("POST: %d %q %q", r.StatusCode, r.body, sent)
		}
	})
}

// boundSession is a session whose credential is bound to methods and paths.
func boundSession(e *env, ro *RunOptions, methods, paths []string) Granter {
	cred := config.Credential{
		Source: config.Source{Local: &config.LocalSource{Env: "API_TOKEN"}}, Inject: config.Inject{Header: "Authorization", Format: "Bearer {value}"}, Hosts: []string{"api.allowed.test"},
	}
	if methods != nil {
		cred.Methods = &methods
	}
	if paths != nil {
		cred.Paths = &paths
	}
	b, err := broker.New(broker.Options{Credentials: map[string]config.Credential{"api": cred}, Getenv: func(string) (string, bool) { return canary, true }})
	if err != nil {
		e.t.Fatal(err)
	}
	s, err := b.Begin(ro.Run, nil, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { s.End(context.Background()); b.Close(context.Background()) })
	return s
}

func TestMethods_F037(t *testing.T) {
	onEveryWay(t, []setting{policy(allowEverything)}, func(t *testing.T, w way, e *env) {
		for _, method := range []string{"get", "Post", "TRACE", "FOO", strings.Repeat("A", 8192)} {
			e.denied(w, "plain.allowed.test", attempt{method: method, target: "/"}, 405, reasonMethodNotAllowed)
		}
		_, sent := e.allowed(w, "plain.allowed.test", attempt{method: "POST", target: "/x?_method=DELETE", body: "x", lines: []string{
			"X-HTTP-Method-Override: DELETE", "x-method-override: DELETE", "X-Http-Method: DELETE", "X-Kept: 1",
		}})
		if strings.Contains(strings.ToLower(sent), "method-override") || strings.Contains(strings.ToLower(sent), "x-http-method") || !strings.HasPrefix(sent, "POST ") || !slices.Equal(fieldsOf(sent, "X-Kept"), []string{"1"}) {
			t.Errorf("upstream saw %q", sent)
		}
		// What stays in the query is judged.
		if in := e.policy.inputs(); in[len(in)-1].Request.Query["_method"][0] != "DELETE" {
			t.Error("the policy did not see _method")
		}
	})
}

func TestTwoHostFields_F038(t *testing.T) {
	onEveryWay(t, []setting{policy(allowEverything)}, func(t *testing.T, w way, e *env) {
		for _, line := range []string{"Host: evil.test", "Host: plain.allowed.test", "host: evil.test"} {
			if w.h2 && !strings.Contains(line, "evil") {
				continue // beside :authority the same name is allowed (RFC 9113 §8.3.1)
			}
			status, reason := 400, reasonBadRequest
			if w.h2 {
				status, reason = 421, reasonAuthorityMismatch
			}
			e.denied(w, "plain.allowed.test", attempt{method: "GET", target: "/", lines: []string{line}}, status, reason)
		}
		if !w.h2 {
			for _, line := range []string{"Host : evil.test", "X: y\r\n Host: evil.test", " folded", "\tfolded"} {
				e.denied(w, "plain.allowed.test", attempt{method: "GET", target: "/", lines: []string{line}}, 400, reasonBadRequest)
			}
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/control"})
	})
}

// Two rules do not grant what neither of them says.
func TestRulesDoNotMultiply_F039(t *testing.T) {
	const text = `package warder.egress

allow contains {"rule": "one"} if {
	input.run.agent == "one"
	input.request.host == "plain.allowed.test"
	input.request.path == "/a"
}

allow contains {"rule": "two", "credential": "api"} if {
	input.run.agent == "two"
	input.request.host == "api.allowed.test"
	input.request.path == "/b"
}
`
	agent := func(_ *env, _ *Options, ro *RunOptions) { ro.Run.Agent = "one" }
	onEveryWay(t, []setting{rego(text), agent}, func(t *testing.T, w way, e *env) {
		for _, c := range []struct{ host, path string }{{"api.allowed.test", "/b"}, {"api.allowed.test", "/a"}, {"plain.allowed.test", "/b"}} {
			e.denied(w, c.host, attempt{method: "GET", target: c.path}, 403, reasonNoRule)
		}
		e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/a"})
	})
}

// A client's own value in the credential's slot never passes beside ours.
func TestTheClientsOwnCredential_F042(t *testing.T) {
	onEveryWay(t, nil, func(t *testing.T, w way, e *env) {
		if !w.tls {
			t.Log("no credential goes in clear text: F030")
			return
		}
		_, sent := e.allowed(w, "api.allowed.test", attempt{method: "GET", target: "/", lines: []string{
			"Authorization: Bearer stolen", "authorization: Bearer stolen-too", "AUTHORIZATION: Basic c3RvbGVu", "Cookie: session=kept",
		}})
		if got := fieldsOf(sent, "Authorization"); !slices.Equal(got, []string{"Bearer " + canary}) || strings.Contains(sent, "stolen") {
			t.Errorf("upstream saw %q", sent)
		}
		if !slices.Equal(fieldsOf(sent, "Cookie"), []string{"session=kept"}) {
			t.Errorf("the cookie is not the slot: %q", sent)
		}
	})
}

// What belongs between the client and us stays here.
func TestProxyFieldsStay_F076_F083(t *testing.T) {
	// A rule that wants a field is asked about the inner request alone.
	wants := policy(func(in *policies.Input) policies.Decision {
		if len(in.Request.Headers["x-wanted"]) == 0 {
			return policies.Decision{Verdict: policies.Deny, Reason: reasonDenied, Rule: "wants"}
		}
		return byHost(in)
	})
	onEveryWay(t, []setting{wants}, func(t *testing.T, w way, e *env) {
		_, sent := e.allowed(w, "plain.allowed.test", attempt{method: "GET", target: "/", lines: []string{
			"X-Wanted: 1", "Proxy-Authorization: Basic " + basic("u:"+canary), "Proxy-Authenticate: x", "Proxy-Anything: " + canary,
		}})
		if strings.Contains(strings.ToLower(sent), "proxy-") || strings.Contains(sent, canary) {
			t.Errorf("upstream saw %q", sent)
		}
		for _, in := range e.policy.inputs() {
			if len(in.Request.Headers["proxy-authorization"]) != 0 || in.Request.Method == "CONNECT" {
				t.Errorf("the policy saw %+v", in.Request)
			}
		}
		e.denied(w, "plain.allowed.test", attempt{method: "GET", target: "/"}, 403, reasonDenied)
	})
	// Nor what came with the CONNECT.
	e := newEnv(t, nil)
	c := e.explicit()
	send(t, c, "CONNECT api.allowed.test:443 HTTP/1.1\r\nHost: api.allowed.test:443\r\nProxy-Authorization: Basic "+basic("u:secret-of-the-proxy")+"\r\nProxy-Connection: keep-alive\r\nX-Outer: 1\r\n\r\n")
	read(t, c, len("HTTP/1.1 200 Connection Established\r\n\r\n"))
	if r := ask(t, e.handshake(c, "api.allowed.test", "http/1.1"), get("/", "api.allowed.test")); r.StatusCode != 200 {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
	all := e.up.bytes() + e.logs.String() + dump(e.tape.completed(t, 1)) + fmt.Sprint(e.policy.inputs())
	for _, leak := range []string{basic("u:secret-of-the-proxy"), "secret-of-the-proxy", "X-Outer", "x-outer", "Proxy-"} {
		if strings.Contains(all, leak) {
			t.Errorf("%q is at the upstream, in the log, in the record or before the policy", leak)
		}
	}
}
