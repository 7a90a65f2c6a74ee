package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"warder/audit"
)

// resolver is a DNS server on loopback that notes every name it is asked for
// and answers with one address.
type resolver struct {
	addr  string
	mu    sync.Mutex
	asked []string
}

func startResolver(t *testing.T, answer [4]byte) *resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pc.Close() })
	r := &resolver{addr: pc.LocalAddr().String()}
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			r.mu.Lock()
			r.asked = append(r.asked, strings.TrimSuffix(q.Name.String(), "."))
			r.mu.Unlock()
			m.Header = dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}
			m.Additionals = nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: answer}}}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = pc.WriteTo(out, from)
			}
		}
	}()
	return r
}

func (r *resolver) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.asked...)
}

// TestE2EDeniedIsAnsweredAndGoesNowhere: the documented denial, one record, no
// look-up, no dial; the recorders see the allowed name.
func TestE2EDeniedIsAnsweredAndGoesNowhere(t *testing.T) { // I1, I6, F108
	l := newLab(t)
	dns := startResolver(t, [4]byte{127, 0, 0, 1})
	_, port, err := net.SplitHostPort(l.up.addr)
	if err != nil {
		t.Fatal(err)
	}
	// The API listens where DNS says, on its real port.
	l.write("warder.yaml", fmt.Sprintf(`version: 1
policy: {path: ./policies}
proxy: {upstream: {ca_files: [./ca.pem], resolver: "%s", allow_addresses: ["api.allowed.test=127.0.0.1:%s"]}}
audit: {dir: ./audit}
`, dns.addr, port))
	l.write("policies/api.rego", `package warder.egress

allow contains {"rule": "read"} if {
	input.request.host == "api.allowed.test"
	input.request.method == "GET"
}

deny contains {"rule": "no-secrets", "message": "secrets are private", "hint": "ask security"} if startswith(input.request.path, "/secrets")
`)
	api := "https://api.allowed.test:" + port
	curl := `curl -sS -m 20 -w '\nSTATUS %{http_code} %{content_type}\n' `
	for name, c := range map[string]struct{ cmd, reason, rule, hint string }{
		"no rule":                 {curl + "https://evil.test/x", "no-rule", "", ""},
		"no rule, clear text":     {curl + "http://evil.test/x", "no-rule", "", ""},
		"no rule for the method":  {curl + "-X DELETE " + api + "/v1", "no-rule", "", ""},
		"denied":                  {curl + api + "/secrets/1", "denied", "no-secrets", "ask security"},
		"no rule, explicit proxy": {curl + "-x http://10.0.2.2:3128 https://evil.test/x", "no-rule", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(l.records(requestsOf))
			o := l.sh(c.cmd)
			body, status, _ := strings.Cut(o.stdout, "\nSTATUS ")
			var p struct {
				Type, Title, Reason, Detail, Hint, Run string
				Rule                                   *string
				Status                                 int
				DecisionID                             string `json:"decision_id"`
			}
			if err := json.Unmarshal([]byte(body), &p); err != nil || status != "403 application/problem+json\n" {
				t.Fatalf("%v\n%s%s", err, o.stdout, o.stderr)
			}
			rule := ""
			if p.Rule != nil {
				rule = *p.Rule
			}
			if p.Type != "about:blank" || p.Status != 403 || p.Reason != c.reason || rule != c.rule || p.DecisionID == "" || !strings.HasPrefix(p.Run, "r-") || (c.hint != "" && p.Hint != c.hint) {
				t.Errorf("denial: %s", body)
			}
			recs := l.records(requestsOf)[before:]
			if len(recs) != 1 || recs[0].Stage != audit.StageCompleted || recs[0].Verdict != "deny" || recs[0].Reason != c.reason || recs[0].Policy.DecisionID != p.DecisionID {
				t.Errorf("records: %+v", recs)
			}
		})
	}
	if n := dns.names(); len(n) != 0 || l.up.connections() != 0 {
		t.Errorf("looked up %v, dialled %d times", n, l.up.connections())
	}
	// Positive control.
	l.mustHold(l.sh("curl -sS --fail "+api+"/v1"), 0, "answer to GET /v1")
	if n := dns.names(); len(n) == 0 || n[0] != "api.allowed.test" || l.up.connections() != 1 {
		t.Errorf("control: looked up %v, dialled %d times", n, l.up.connections())
	}
	l.mustBeComplete()
}

// TestE2EAPolicyThatIsNoPolicyAllowsNothing covers every way in which a policy
// can fail to say yes.
func TestE2EAPolicyThatIsNoPolicyAllowsNothing(t *testing.T) { // I4, I10, F015, F146
	good := labRego
	for name, c := range map[string]struct {
		files  map[string]string // nil: no folder
		code   int
		reason string // in the denial, when the run goes on
		text   string // in the message
	}{
		"missing":                      {nil, 125, "", "policies"},
		"empty":                        {map[string]string{}, 125, "", "policies"},
		"syntax error":                 {map[string]string{"a.rego": "package warder.egress\n\nallow contains {{ if true\n"}, 125, "", "a.rego:3"},
		"a typo in the input":          {map[string]string{"a.rego": "package warder.egress\n\nallow contains {\"rule\": \"x\"} if input.request.hots == \"api.allowed.test\"\n"}, 125, "", "a.rego:3"},
		"http.send":                    {map[string]string{"a.rego": "package warder.egress\n\nallow contains {\"rule\": \"x\"} if http.send({\"method\": \"GET\", \"url\": \"http://x\"}).status_code == 200\n"}, 125, "", "a.rego:3"},
		"another package":              {map[string]string{"a.rego": "package other\n\nallow := true\n"}, -1, "no-rule", ""},
		"undefined":                    {map[string]string{"a.rego": "package warder.egress\n\nallow contains {\"rule\": \"x\"} if input.request.path == \"/other\"\n"}, 0, "no-rule", ""},
		"allow is true":                {map[string]string{"a.rego": "package warder.egress\n\nallow := true\n"}, -1, "policy-error", ""},
		"an entry is a string":         {map[string]string{"a.rego": "package warder.egress\n\nallow contains \"x\"\n"}, -1, "policy-error", ""},
		"an unknown entry key":         {map[string]string{"a.rego": good, "b.rego": "package warder.egress\n\nallow contains {\"rule\": \"x\", \"allways\": true}\n"}, -1, "policy-error", ""},
		"an entry without rule":        {map[string]string{"a.rego": good, "b.rego": "package warder.egress\n\ndeny contains {\"message\": \"x\"} if input.request.path == \"/none\"\n\nallow contains {\"credential\": \"api\"}\n"}, -1, "policy-error", ""},
		"a failing built-in in a deny": {map[string]string{"a.rego": good, "b.rego": "package warder.egress\n\ndeny contains {\"rule\": \"x\"} if to_number(input.request.path) == 1\n"}, 0, "policy-error", ""},
		"division by zero in a deny":   {map[string]string{"a.rego": good, "b.rego": "package warder.egress\n\ndeny contains {\"rule\": \"x\"} if 1 / (count(input.request.host) - 16) == 1\n"}, 0, "policy-error", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			if err := os.RemoveAll(filepath.Join(l.dir, "policies")); err != nil {
				t.Fatal(err)
			}
			if c.files != nil {
				if err := os.Mkdir(filepath.Join(l.dir, "policies"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for n, text := range c.files {
				l.write("policies/"+n, text)
			}
			o := l.sh("curl -sS -m 20 https://api.allowed.test/v1/items")
			// What is provably wrong may be refused at load or on the first request.
			refused := o.code == 125 && (c.code == 125 || c.code == -1)
			denied := o.code == 0 && c.code != 125 && strings.Contains(o.stdout, `"reason":"`+c.reason+`"`)
			if !refused && !denied || !strings.Contains(o.stderr, c.text) {
				t.Errorf("exit %d\nstdout: %s\nstderr: %s", o.code, o.stdout, o.stderr)
			}
			if n := len(l.up.seen()); n != 0 {
				t.Errorf("%d requests went out", n)
			}
		})
	}
	l := newLab(t) // positive control
	l.mustHold(l.sh("curl -sS --fail https://api.allowed.test/v1/items"), 0, "answer to GET")
}

func TestE2ENoConfigurationDeniesEverything(t *testing.T) { // I4, F085
	l := newLab(t)
	if err := os.Remove(filepath.Join(l.dir, "warder.yaml")); err != nil {
		t.Fatal(err)
	}
	// A file in the working directory is an untrusted checkout's, not ours.
	l.write("warder.yml", "version: 1\n")
	cmd := l.command(t.Context(), "run", "--", "/bin/sh", "-c", "curl -sS -m 20 https://api.allowed.test/v1/items")
	cmd.Env = append(cmd.Env, "WARDER_CONFIG=", "XDG_CONFIG_HOME="+filepath.Join(l.dir, "nothing"), "XDG_STATE_HOME="+filepath.Join(l.dir, "state"))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), `"reason":"no-rule"`) || strings.Count(errs.String(), "\n") != 1 || !strings.Contains(errs.String(), "no configuration") {
		t.Errorf("%v\nstdout: %s\nstderr: %s", err, out, errs.String())
	}
}

func TestE2EConfigurationFaultsNameTheirPlace(t *testing.T) {
	for name, c := range map[string]struct{ yaml, text string }{
		"unknown key":     {"version: 1\npolicy:\n  pth: ./policies\n", "warder.yaml:3:3"},
		"duplicate key":   {"version: 1\npolicy: {path: ./policies}\npolicy: {path: ./other}\n", "warder.yaml:3:1"},
		"second document": {"version: 1\n---\nversion: 1\n", "warder.yaml:2"},
		"empty":           {"", "warder.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.write("warder.yaml", c.yaml)
			l.mustHold(l.sh("true"), 125, c.text)
			l.mustHold(l.warder("config", "check"), 1, c.text)
		})
	}
	l := newLab(t)
	l.mustHold(l.warder("config", "check"), 0, "")
}

func TestE2EPolicyVerbs(t *testing.T) {
	l := newLab(t)
	l.mustHold(l.warder("policy", "check"), 0, "")
	l.mustHold(l.warder("policy", "test"), 2, "") // no test was found
	l.write("policies/api_test.rego", `package warder.egress_test

import data.warder.egress

test_read if {
	count(egress.allow) == 1 with input as {"request": {"host": "api.allowed.test", "method": "GET", "path": "/v1/x"}}
}
`)
	l.mustHold(l.warder("policy", "test"), 0, "")
	l.write("policies/broken.rego", "package warder.egress\n\nallow contains\n")
	l.mustHold(l.warder("policy", "check"), 1, "broken.rego:")
}
