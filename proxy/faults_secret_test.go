package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
	"warder/policies"
)

// A redirect is the client's to follow; the next request is judged afresh and has
// a credential only by its own rule.
func TestRedirectsCarryNoCredential_F068(t *testing.T) {
	locations := []string{"https://evil.test/", "http://api.allowed.test/", "https://sub.api.allowed.test/", "https://api.allowed.test:8443/", "https://other.allowed.test/"}
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/go" {
			return
		}
		var n int
		fmt.Sscan(r.URL.Query().Get("n"), &n)
		w.Header().Set("Location", locations[n])
		w.WriteHeader([]int{301, 302, 307, 308, 303}[n])
	}
	onWays(t, h, nil, func(t *testing.T, w way, e *env) {
		host := map[bool]string{true: "api.allowed.test", false: "plain.allowed.test"}[w.tls]
		for n, location := range locations {
			r, _, sent := e.probe(w, host, attempt{method: "GET", target: fmt.Sprintf("/go?n=%d", n)})
			if r.Response == nil || r.StatusCode/100 != 3 || r.Header.Get("Location") != location || strings.Count(sent, " HTTP/1.1\r\n") != 1 {
				t.Errorf("%s: %v, upstream saw %q", location, r.Response, sent)
			}
		}
		e.denied(w, "evil.test", attempt{method: "GET", target: "/"}, 403, reasonNoRule)
		if _, sent := e.allowed(w, "other.allowed.test", attempt{method: "GET", target: "/"}); strings.Contains(sent, canary) {
			t.Errorf("the credential followed: %q", sent)
		}
	})
}

// No file of the log, no line, no metric and no answer holds a value, ours or one
// of the client's in a query, a field or the user information of a URL.
func TestNoRecordHoldsAValue_F077_F078(t *testing.T) {
	const own = "the-clients-OWN-SECRET"
	e := newEnv(t, nil, func(e *env, _ *Options, ro *RunOptions) {
		ro.Granter = testSession(e.t, ro.Run, config.Inject{Query: "key"})
	})
	admin := e.admin(func() error { return nil })
	for _, w := range ways() {
		if !w.tls {
			continue
		}
		_, sent := e.allowed(w, "api.allowed.test", attempt{method: "GET", target: "/x?access_token=" + own + "&a=1", lines: []string{
			"Cookie: session=" + own, "Referer: https://u:" + own + "@x.test/?t=" + own, "X-Token: " + own, "Proxy-Authorization: Bearer " + own,
		}})
		if !strings.Contains(sent, "key="+canary) || !strings.Contains(sent, own) {
			t.Fatalf("the positive control is missing: %q", sent)
		}
		e.denied(w, "evil.test", attempt{method: "GET", target: "/y?access_token=" + own, lines: []string{"Authorization: " + own}}, 403, reasonNoRule)
	}
	for _, raw := range []string{
		get("http://u:"+own+"@plain.allowed.test/", "plain.allowed.test"),
		get("/", "u:"+own+"@plain.allowed.test"),
		"GET u:" + own + "@plain.allowed.test/ HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n",
		"GET http://u:" + own + "@plain.allowed.test/ HTTP/1.1\r\nHost : plain.allowed.test\r\n\r\n", // refused while it is read
		"CONNECT u:" + own + "@plain.allowed.test:443 HTTP/1.1\r\nHost: plain.allowed.test:443\r\n\r\n",
		"CONNECT plain.allowed.test:443 HTTP/1.1\r\nHost: u:" + own + "@plain.allowed.test:443\r\n\r\n",
	} {
		if r := ask(t, e.explicit(), raw); r.StatusCode/100 != 4 || strings.Contains(r.body, own) {
			t.Errorf("%q: %d %q", raw, r.StatusCode, r.body)
		}
	}
	metrics := fetch(t, admin, "/metrics", "localhost").body
	if err := e.run.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := e.logs.String() + metrics + fmt.Sprint(e.run.Denials()) + dump(e.tape.recs)
	files := 0
	err := filepath.WalkDir(e.auditDir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		all += string(b)
		files++
		return err
	})
	if err != nil || files == 0 || !strings.Contains(all, "access_token") { // positive control: the key is there
		t.Fatalf("%d files, %v", files, err)
	}
	for _, secret := range []string{canary, own} {
		if i := strings.Index(all, secret); i >= 0 {
			t.Errorf("%s stands in %q", secret, all[max(0, i-200):i])
		}
	}
}

// A denial tells a code and a sentence, not where or what our parts are.
func TestErrorsTellNothingOfTheInside_F079(t *testing.T) {
	inner := errors.New("open /var/lib/inner/secret: dial tcp 10.9.8.7:8200: refused")
	internal := netip.MustParseAddr("10.9.8.7")
	for name, c := range map[string]struct {
		set    setting
		alter  func(*env)
		host   string
		tls    bool
		status int
		reason string
	}{
		"DNS": {nil, func(e *env) {
			e.run.dialer.up.hosts = nil
			e.run.dialer.lookup = func(context.Context, string) ([]netip.Addr, error) { return nil, inner }
		}, "plain.allowed.test", false, 502, "upstream-dns"},
		"an internal address": {nil, func(e *env) { e.resolveTo(&internal) }, "plain.allowed.test", false, 403, reasonInternalAddress},
		"credential":          {func(_ *env, _ *Options, ro *RunOptions) { ro.Granter = brokenGranter{inner} }, func(*env) {}, "api.allowed.test", true, 503, reasonCredentialUnavailable},
		"policy": {policy(func(*policies.Input) policies.Decision {
			return policies.Decision{Verdict: policies.Deny, Reason: reasonPolicyError, Detail: inner.Error()}
		}), func(*env) {}, "plain.allowed.test", false, 403, reasonPolicyError},
		"certificate": {nil, func(e *env) { e.run.dialer.up.roots = func() *x509.CertPool { return x509.NewCertPool() } }, "api.allowed.test", true, 502, "upstream-tls"},
	} {
		t.Run(name, func(t *testing.T) {
			var set []setting
			if c.set != nil {
				set = append(set, c.set)
			}
			onWays(t, nil, set, func(t *testing.T, w way, e *env) {
				if c.tls && !w.tls {
					return
				}
				c.alter(e)
				r, rec, sent := e.probe(w, c.host, attempt{method: "GET", target: "/x?q=1"})
				if r.Response == nil || r.StatusCode != c.status || r.reason() != c.reason || rec.Reason != c.reason || strings.Contains(sent, canary) {
					t.Fatalf("%v %q, record %+v", r.Response, r.body, rec)
				}
				for _, leak := range []string{"10.9.8.7", "127.0.0.1", "/var/lib", "dial", "x509", "refused", "goroutine", ".go:", "q=1"} {
					if strings.Contains(r.body, leak) || strings.Contains(fmt.Sprint(r.Header), leak) {
						t.Errorf("the answer has %q: %q", leak, r.body)
					}
				}
				if rec.Request.ID == "" || !strings.Contains(r.body, `"decision_id"`) {
					t.Errorf("nothing to ask about: %q", r.body)
				}
			})
		})
	}
}

// The name that is answered by us tells, and takes no orders; nor can a request
// say whose it is.
func TestTheSandboxApprovesNothing_F080(t *testing.T) {
	onEveryWay(t, nil, func(t *testing.T, w way, e *env) {
		other, err := e.p.NewRun(RunOptions{Run: identity.Run{ID: "r-other"}})
		if err != nil {
			t.Fatal(err)
		}
		other.deny(Denial{Host: "only-of-the-other.test"})
		for _, path := range []string{"/", "/rules", "/denials", "/stand-ins", "/ca.pem"} {
			for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
				r, _, _ := e.probe(w, reservedHost, attempt{method: method, target: path, body: `{"run": "r-other", "approve": true}`})
				if r.Response == nil || r.StatusCode != 405 {
					t.Errorf("%s %s: %v", method, path, r.Response)
				}
			}
			r, _, _ := e.probe(w, reservedHost, attempt{method: "GET", target: path + "?run=r-other", lines: []string{"X-Run: r-other", "X-Warder-Run: r-other"}})
			if r.Response == nil || r.StatusCode != 200 || strings.Contains(r.body, "only-of-the-other") {
				t.Errorf("GET %s: %v %q", path, r.Response, r.body)
			}
		}
		for _, path := range []string{"/approve", "/approvals", "/v1/approvals", "/grants", "/policy", "/reload", "/debug/pprof/", "/metrics"} {
			if r, _, _ := e.probe(w, reservedHost, attempt{method: "GET", target: path}); r.Response == nil || r.StatusCode != 404 {
				t.Errorf("GET %s: %v", path, r.Response)
			}
		}
		if e.up.connections() != 0 || len(e.policy.inputs()) != 0 {
			t.Error("something left, or was decided")
		}
	})
}

// A client of the listener is its token: not its address, not what it says of
// itself, not the connection's first request. Good tokens are not throttled for
// the bad ones of others.
func TestClientsAreTheirTokens_F081_F087(t *testing.T) {
	e := newEnv(t, nil, plainUpstream)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- e.p.ServeListener(ctx, ln, ListenOptions{
			Clients: []Client{{Name: "a", Token: sha256.Sum256([]byte("tok-CANARY-a"))}, {Name: "b", Token: sha256.Sum256([]byte("tok-CANARY-b"))}},
			Open: func(_ context.Context, client Client) (*Run, error) {
				return e.p.NewRun(RunOptions{Run: identity.Run{ID: "r-" + client.Name}})
			},
			Close: func(context.Context, string, *Run) {},
		})
	}()
	defer func() { cancel(); <-done }()
	n := 0
	try := func(raw string, status int, run string) {
		t.Helper()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(20 * time.Second))
		r := ask(t, c, raw)
		rec := e.tape.completed(t, n+1)[n]
		n++
		got := ""
		if rec.Run != nil {
			got = rec.Run.ID
		}
		if r.StatusCode != status || got != run {
			t.Fatalf("%q: %d, run %q", raw, r.StatusCode, got)
		}
	}
	const head = "GET http://plain.allowed.test/ HTTP/1.1\r\nHost: plain.allowed.test\r\n"
	try(head+"Proxy-Authorization: Bearer tok-CANARY-a\r\n\r\n", 200, "r-a")
	try(head+"Proxy-Authorization: Bearer tok-CANARY-b\r\nX-Forwarded-For: 10.0.0.1\r\nX-Run: r-a\r\n\r\n", 200, "r-b")
	try(head+"X-Forwarded-For: 127.0.0.1\r\nForwarded: for=r-a\r\nX-Real-IP: 127.0.0.1\r\n\r\n", 407, "")
	try(head+"Proxy-Authorization: Bearer tok-CANARY-a\r\nProxy-Authorization: Bearer tok-CANARY-b\r\n\r\n", 200, "r-a")
	try(head+"Proxy-Authorization: Bearer r-a\r\n\r\n", 407, "")
	try(head+"Authorization: Bearer tok-CANARY-a\r\n\r\n", 407, "")
	for range 100 {
		try(head+"Proxy-Authorization: Bearer tok-CANARY-a\r\n\r\n", 200, "r-a")
	}
	for range 30 {
		try(head+"Proxy-Authorization: Bearer guess\r\n\r\n", 407, "")
	}
	for range 20 {
		try(head+"Proxy-Authorization: Bearer tok-CANARY-b\r\n\r\n", 200, "r-b")
	}
	if strings.Contains(e.up.bytes()+e.logs.String()+dump(e.tape.recs), "tok-CANARY") {
		t.Error("a token is at the upstream, in the log or in the record")
	}
}

// Trailers can route, frame and authenticate nothing, whether they were announced
// or not; the others arrive.
func TestTrailersThatMeanMore_F061(t *testing.T) {
	forbidden := []string{"Alt-Svc", "Set-Cookie", "Connection", "Proxy-Authenticate", "Location", "Www-Authenticate", "Upgrade"}
	for _, announced := range []bool{true, false} {
		h := func(w http.ResponseWriter, _ *http.Request) {
			names := []string{"X-Stays"}
			if announced {
				names = append(names, forbidden...)
			}
			w.Header()["Trailer"] = names
			io.WriteString(w, "body")
			w.(http.Flusher).Flush()
			w.Header().Set("X-Stays", "1")
			for _, name := range forbidden {
				w.Header().Set(http.TrailerPrefix+name, "x")
			}
		}
		onWays(t, h, nil, func(t *testing.T, w way, e *env) {
			if w.h2 {
				return // the raw bytes of HTTP/1 show them best; one function serves both
			}
			target := "/"
			if w.name == "absolute form" {
				target = "http://plain.allowed.test/"
			}
			c := e.open(w, "plain.allowed.test")
			send(t, c, "GET "+target+" HTTP/1.1\r\nHost: plain.allowed.test\r\nConnection: close\r\n\r\n")
			b, err := io.ReadAll(c)
			_, end, _ := strings.Cut(string(b), "\r\n0\r\n")
			if err != nil || !strings.Contains(end, "X-Stays: 1") {
				t.Errorf("announced %v: %q %v", announced, b, err)
			}
			for _, name := range forbidden {
				if strings.Contains(end, name+":") {
					t.Errorf("announced %v: %s in %q", announced, name, end)
				}
			}
			if !strings.Contains(e.up.bytes(), "GET /") {
				t.Error("control: the upstream was not asked")
			}
		})
	}
}
