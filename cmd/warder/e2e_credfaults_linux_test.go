package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/audit"
)

// standInLab has a credential with a stand-in in API_KEY, by Basic at /basic, and
// everything else of the API allowed without one.
func standInLab(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	l.write("policies/api.rego", `package warder.egress

# METADATA
# title: The place of the credential
allow contains {"rule": "with", "credential": "api"} if startswith(input.request.path, "/place/")

# METADATA
# title: All else
allow contains {"rule": "without"} if startswith(input.request.path, "/without")
`)
	l.configure(`
credentials:
  api:
    source: {local: {file: ./secret}}
    inject: {basic: {username: agent}}
    hosts: [api.allowed.test]
    stand_in: {API_KEY: "sk_{random:32}"}
`)
	return l
}

// stays checks that no request that the API received holds the value.
func (l *lab) stays() {
	l.t.Helper()
	for _, r := range l.up.seen() {
		if strings.Contains(r.target+r.body+fmt.Sprint(r.header), canary) {
			l.t.Errorf("the API was sent the value in %s %s", r.method, r.target)
		}
	}
}

// TestE2EEncodedStandIns_F072: a client that encodes what it was given gets the
// credential where it belongs, and a refusal where it does not.
func TestE2EEncodedStandIns_F072(t *testing.T) { // I2, I3
	l := standInLab(t)
	const say = ` -o /tmp/a -w '%{http_code} ' https://api.allowed.test`
	r, o := l.json(`pct=$(printf %s "$API_KEY" | od -An -tx1 | tr -d ' \n' | sed 's/../%&/g')
c='curl -sS -m 30'
$c -u "agent:$API_KEY"` + say + `/place/a
$c -u "agent:$API_KEY"` + say + `/without/a
$c -d "token=$pct" ` + say + `/without/b
$c ` + say + `/without/c?key=$pct
$c ` + say + `/without/$pct
$c -H "X-Key: $pct"` + say + `/without/d`)
	if codes := strings.Fields(r.Stdout); o.code != 0 || len(codes) != 6 || codes[0] != "200" || strings.Join(codes[1:], " ") != "403 403 403 403 403" {
		t.Fatalf("exit %d: %s%s%s", o.code, r.Stdout, r.Stderr, o.stderr)
	}
	if got := l.up.seen(); len(got) != 1 || !strings.HasPrefix(got[0].authorization, "Basic ") || strings.Contains(got[0].authorization, "sk_") {
		t.Errorf("the API saw %d requests", len(got))
	}
	if n := len(l.records(func(r *audit.Record) bool { return r.Reason == "stand-in-leak" })); n != 5 {
		t.Errorf("%d records of a stand-in in a wrong place", n)
	}
	l.mustBeComplete()
}

// TestE2EBodiesAreNeverSwapped_F073: what a task writes somewhere is what it wrote,
// also where the credential goes, so the value is never stored where it can be
// read again.
func TestE2EBodiesAreNeverSwapped_F073(t *testing.T) { // I2
	l := standInLab(t)
	r, o := l.json(`printf '{"comment":"%s"}' "$API_KEY" >/tmp/b
curl -sS -m 30 -o /dev/null -H 'Content-Type: application/json' -d @/tmp/b -w '%{http_code} ' https://api.allowed.test/place/comment
printf %s "$API_KEY"`)
	f := strings.Fields(r.Stdout)
	if o.code != 0 || len(f) != 2 || f[0] != "200" {
		t.Fatalf("exit %d: %s%s%s", o.code, r.Stdout, r.Stderr, o.stderr)
	}
	got := l.up.seen()
	if len(got) != 1 || got[0].body != `{"comment":"`+f[1]+`"}` || !strings.HasPrefix(got[0].authorization, "Basic ") {
		t.Fatalf("the API saw %+v", got)
	}
	l.stays()
	recs := l.records(func(r *audit.Record) bool { return requestsOf(r) && r.Stage == audit.StageCompleted })
	if len(recs) != 1 || recs[0].Request.StandIns != 1 {
		t.Errorf("the record does not count the stand-in: %+v", recs)
	}
}

// TestE2EWhatIsWrittenHoldsNoSecret_F078: neither ours nor one that the client
// brought in a query, a cookie, a referrer or the authority.
func TestE2EWhatIsWrittenHoldsNoSecret_F078(t *testing.T) { // I2
	l := newLab(t)
	l.configure(`
credentials:
  api:
    source: {local: {file: ./secret}}
    inject: {query: key}
    hosts: [api.allowed.test]
`)
	const theirs = "CLIENTS-OWN-CANARY-0123456789"
	l.write("task.sh", `c='curl -sS -m 30 -o /dev/null'
$c -H 'Cookie: s=`+theirs+`' -H 'Referer: https://x.test/?t=`+theirs+`' "https://api.allowed.test/v1/x?access_token=`+theirs+`&key=mine" -w '%{http_code} '
$c -u 'u:`+theirs+`' 'http://api.allowed.test/v1/x?t=`+theirs+`' -w '%{http_code} '
$c 'https://denied.test/v1/x?t=`+theirs+`' -w '%{http_code} '`)
	r, o := l.json("sh task.sh", "--input", "task.sh")
	if f := strings.Fields(r.Stdout); o.code != 0 || strings.Join(f, " ") != "200 403 403" {
		t.Fatalf("exit %d: %s%s%s", o.code, r.Stdout, r.Stderr, o.stderr)
	}
	if got := l.up.seen(); len(got) != 1 || !strings.HasSuffix(got[0].target, "key="+canary) || !strings.Contains(got[0].target, theirs) {
		t.Fatalf("control: the API saw %d requests", len(got))
	}
	l.noCanaryOnDisk()
	files := 0
	for _, dir := range []string{"audit", "state", "cache"} {
		_ = filepath.WalkDir(filepath.Join(l.dir, dir), func(p string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			files++
			raw, err := os.ReadFile(p)
			if err != nil || strings.Contains(string(raw), theirs) {
				t.Errorf("the client's own secret stands in %s (%v)", p, err)
			}
			return nil
		})
	}
	if files == 0 || strings.Contains(o.stderr, theirs) || strings.Contains(o.stderr, canary) {
		t.Errorf("%d files; stderr: %s", files, o.stderr)
	}
}

// TestE2ERefusalsTellNothingOfTheHost_F079: the same few words whatever failed.
func TestE2ERefusalsTellNothingOfTheHost_F079(t *testing.T) { // I2
	l := newLab(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := closed.Addr().String()
	closed.Close()
	l.write("policies/api.rego", `package warder.egress

# METADATA
# title: Everything
allow contains {"rule": "all", "credential": "api"} if input.request.path != "/broken"

# METADATA
# title: A rule that fails
deny contains {"rule": "broken"} if {
	input.request.path == "/broken"
	to_number(input.request.host) > 1
}
`)
	l.write("warder.yaml", fmt.Sprintf(`version: 1
policy: {path: ./policies}
proxy:
  upstream:
    ca_files: [./ca.pem]
    hosts: {refused.test: %[2]q, wrongname.test: %[1]q, api.allowed.test: %[1]q, internal.test: "10.9.9.9"}
    allow_addresses: [%[1]q, %[2]q]
audit: {dir: ./audit}
credentials:
  api:
    source: {local: {file: ./not-there}}
    inject: {query: key}
    hosts: [api.allowed.test]
  two:
    source: {local: {file: ./secret}}
    inject: {query: key}
    hosts: [refused.test, wrongname.test, nowhere.invalid]
`, l.up.addr, dead))
	rego := func(name string) {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(l.dir, "policies/api.rego"))
		if err != nil {
			t.Fatal(err)
		}
		l.write("policies/api.rego", strings.NewReplacer(`"credential": "api"`, `"credential": "`+name+`"`, `"credential": "two"`, `"credential": "`+name+`"`).Replace(string(b)))
	}
	for _, c := range []struct{ credential, url, reason string }{
		{"two", "https://refused.test/x", "upstream-refused"},
		{"two", "https://wrongname.test/x", "upstream-tls"},
		{"two", "https://nowhere.invalid/x", "upstream-dns"},
		{"api", "https://api.allowed.test/x", "credential-unavailable"},
		{"api", "https://api.allowed.test/broken", "policy-error"},
		{"two", "https://internal.test/x", "credential-binding"},
	} {
		rego(c.credential)
		r, o := l.json(`curl -sS -m 60 '` + c.url + `?secret=CLIENTS-OWN-CANARY'`)
		if o.code != 0 || !strings.Contains(r.Stdout, `"reason":"`+c.reason+`"`) || !strings.Contains(r.Stdout, `"decision_id":"`) {
			t.Errorf("%s: exit %d: %s%s%s", c.url, o.code, r.Stdout, r.Stderr, o.stderr)
		}
		for _, leak := range []string{"127.0.0.1", "10.9.9.9", l.dir, "not-there", "x509", "dial", "lookup", "rego", "to_number", "CANARY", "secret="} {
			if strings.Contains(r.Stdout, leak) {
				t.Errorf("%s: the sandbox is told %q: %s", c.url, leak, r.Stdout)
			}
		}
	}
}
