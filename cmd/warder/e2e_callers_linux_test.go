package main

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/audit"
)

// TestE2EATaskCannotGrantItselfAnything_F080: the one name that answers inside
// tells, and takes nothing; who a request is from is not what it says.
func TestE2EATaskCannotGrantItselfAnything_F080(t *testing.T) { // I3
	l := newLab(t)
	other := "r-01936b3e-0000-7000-8000-000000000000"
	r, o := l.json(`for m in POST PUT PATCH DELETE; do for p in / /approve /grants /revoke /policy; do
curl -sS -m 30 -o /dev/null -w '%{http_code} ' -X $m -d '{"run":"` + other + `","approve":true}' http://warder.internal$p; done; done
curl -sS -m 30 -H 'X-Warder-Run: ` + other + `' http://warder.internal/
for h in 127.0.0.1 169.254.169.254 localhost; do curl -sS -m 30 -o /dev/null -w ' %{http_code}' http://$h:3128/; done
curl -sS -m 30 -o /dev/null -w ' %{http_code}\n' https://api.allowed.test/admin`)
	if o.code != 0 || strings.Contains(r.Stdout, " 200") || strings.HasPrefix(r.Stdout, "200") || !strings.Contains(r.Stdout, `"run":"`+r.RunID+`"`) {
		t.Errorf("exit %d: %s%s%s", o.code, r.Stdout, r.Stderr, o.stderr)
	}
	if n := len(l.up.seen()); n != 0 {
		t.Errorf("%d requests went out", n)
	}
	l.mustHold(l.sh("curl -sS -m 30 --fail https://api.allowed.test/v1/x"), 0, "answer to GET") // control: what is allowed works
	for _, rec := range l.records(func(r *audit.Record) bool { return r.Run != nil }) {
		if rec.Run.ID == other {
			t.Error("a record is of the run that was named")
		}
	}
}

// TestE2EATokenOpensOnlyItsOwn_F081: a caller of `warder proxy` is who its token
// says, whatever name or header it sends, and gets what that client may have.
func TestE2EATokenOpensOnlyItsOwn_F081(t *testing.T) { // I9
	l, addr, _, stop := proxyLab(t, `clients: [{name: ci, token_file: ./token}, {name: bare, token_file: ./token2, credentials: []}]`)
	forged := []string{"-H", "X-Forwarded-For: 127.0.0.1", "--proxy-header", "X-Forwarded-For: 127.0.0.1", "-H", "X-Warder-Client: ci", "--proxy-header", "X-Warder-Client: ci"}
	for _, c := range []struct{ name, user, token, want string }{
		{"ci", "ci", "S3CR3T-CANARY-proxy-client-token", "STATUS 200 200"},
		{"ci's token by another name", "bare", "S3CR3T-CANARY-proxy-client-token", "STATUS 200 200"},
		{"bare", "bare", "S3CR3T-CANARY-proxy-client-token-2", "STATUS 403 200"},
		{"bare's token by another name", "ci", "S3CR3T-CANARY-proxy-client-token-2", "STATUS 403 200"},
		{"no token", "ci", "", "STATUS 000 407"},
		{"a part of the token", "ci", "S3CR3T-CANARY-proxy-client-toke", "STATUS 000 407"},
	} {
		for _, more := range [][]string{nil, forged} {
			args := append([]string{"--proxy-user", c.user + ":" + c.token}, more...)
			if out := l.curl(addr, append(args, "https://api.allowed.test/v1/x")...); !strings.Contains(out, c.want) {
				t.Errorf("%s: %s", c.name, out)
			}
		}
	}
	if n := len(l.up.seen()); n != 4 {
		t.Errorf("the API saw %d requests, not 4", n)
	}
	stop()                      // what has ended is written behind
	runs := map[string]string{} // run → reason
	for _, r := range l.records(func(r *audit.Record) bool {
		return requestsOf(r) && r.Stage == audit.StageCompleted && r.Reason != "unauthenticated"
	}) {
		if had, ok := runs[r.Run.ID]; ok && had != r.Reason {
			t.Errorf("one run was both served and refused: %q, %q", had, r.Reason)
		}
		runs[r.Run.ID] = r.Reason
	}
	if len(runs) != 2 {
		t.Errorf("runs in the log: %v", runs)
	}
	if n := len(l.records(func(r *audit.Record) bool { return r.Reason == "unauthenticated" })); n != 4 {
		t.Errorf("%d refusals of strangers in the log", n)
	}
}

// TestE2EAHeaderIsAskedOfTheRequestAlone_F083: a rule about headers is not asked
// of the CONNECT, which has none, and sees what the client sent, before anything
// is injected.
func TestE2EAHeaderIsAskedOfTheRequestAlone_F083(t *testing.T) {
	l, addr, _, _ := proxyLabWith(t, "", func(l *lab) string {
		l.write("policies/api.rego", `package warder.egress

# METADATA
# title: With a header
allow contains {"rule": "api-read", "credential": "api"} if input.request.headers["x-must"]

deny contains {"rule": "no-own-credential"} if input.request.headers.authorization
`)
		return "{path: ./policies}"
	})
	for _, c := range []struct{ header, want string }{
		{"X-Must: yes", "STATUS 200 200"}, {"X-May: yes", "STATUS 403 200"},
	} {
		if out := l.curl(addr, "-H", c.header, "https://api.allowed.test/v1/x"); !strings.Contains(out, c.want) {
			t.Errorf("%s: %s", c.header, out)
		}
	}
	if out := l.curl(addr, "-H", "X-Must: yes", "-H", "Authorization: mine", "https://api.allowed.test/v1/x"); !strings.Contains(out, `"rule":"no-own-credential"`) {
		t.Errorf("the rule does not see the client's own header: %s", out)
	}
	if got := l.up.seen(); len(got) != 1 || got[0].authorization != "Bearer "+canary {
		t.Errorf("the API saw %d requests", len(got))
	}
}

// TestE2EGoodCallersAreNotLimitedByBadOnes_F087: what a caller is refused for, or
// served, does not count against another, nor against itself.
func TestE2EGoodCallersAreNotLimitedByBadOnes_F087(t *testing.T) { // I9
	l, addr, _, _ := proxyLab(t, `clients: [{name: ci, token_file: ./token}]`)
	raw, err := os.ReadFile(filepath.Join(l.dir, "proxy-ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(raw)
	// Each request comes by a connection and a CONNECT of its own.
	ask := func(n int, token string) (served, strangers int) {
		t.Helper()
		tr := &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: addr, User: url.UserPassword("ci", token)}),
		}
		for range n {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.allowed.test/v1/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := tr.RoundTrip(req)
			switch {
			case err == nil && resp.StatusCode == http.StatusOK:
				served++
			case err != nil && strings.Contains(err.Error(), "Proxy Authentication Required"):
				strangers++
			default:
				t.Errorf("%v %v", resp, err)
			}
			if err == nil {
				resp.Body.Close()
			}
		}
		return served, strangers
	}
	const good = "S3CR3T-CANARY-proxy-client-token"
	if served, _ := ask(200, good); served != 200 {
		t.Errorf("%d of 200 good requests were served", served)
	}
	if _, strangers := ask(20, "wrong"); strangers != 20 {
		t.Errorf("%d of 20 bad ones were refused as strangers", strangers)
	}
	if served, _ := ask(20, good); served != 20 {
		t.Errorf("%d of 20 good ones were served after the bad", served)
	}
}
