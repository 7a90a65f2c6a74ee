package brokerpeers

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const reflectHost = "reflect.peers.test"

// reflectForms are the ways in which the upstream sends back what it was sent.
var reflectForms = map[string]func(v string) string{
	"plain":  func(v string) string { return v },
	"base64": func(v string) string { return base64.StdEncoding.EncodeToString([]byte("x" + v)) },
	"url":    url.QueryEscape,
	"json":   func(v string) string { b, _ := json.Marshal(v); return string(b) },
	"hex":    func(v string) string { return hex.EncodeToString([]byte(v)) },
}

// carriedBy are the values that a request carries in any slot.
func carriedBy(r *http.Request) []string {
	var out []string
	for _, name := range []string{"X-Code", "X-Signature"} {
		out = append(out, r.Header.Get(name))
	}
	if user, pass, ok := r.BasicAuth(); ok {
		out = append(out, pass)
		if user != "static" { // what the configuration says is no secret
			out = append(out, user)
		}
	}
	auth := r.Header.Get("Authorization")
	if _, sig, ok := strings.Cut(auth, "Signature="); ok {
		id, _, _ := strings.Cut(strings.TrimPrefix(auth, "AWS4-HMAC-SHA256 Credential="), "/")
		out = append(out, sig, id)
	}
	_ = r.ParseForm()
	for _, name := range []string{"key", "jwt"} {
		out = append(out, r.Form.Get(name))
	}
	var set []string
	for _, v := range out {
		if v != "" {
			set = append(set, v)
		}
	}
	return set
}

// serveReflection sends back what it was sent: in a header, in the body as the
// query asks, in two pieces, in gzip, and in a trailer.
func (f *front) serveReflection(w http.ResponseWriter, r *http.Request) {
	values := carriedBy(r)
	var listed []string
	if r.URL.Query().Get("form") == "plain" { // once a run, while it lives
		listed = processesWith(values)
	}
	f.mu.Lock()
	f.reflected, f.listed = append(f.reflected, values...), append(f.listed, listed...)
	f.mu.Unlock()
	text := strings.Join(values, " ")
	form := r.URL.Query().Get("form")
	w.Header().Set("X-Reflected", text)
	w.Header().Set("Trailer", "X-Late")
	defer w.Header().Set("X-Late", text)
	fl := w.(http.Flusher)
	switch form {
	case "split":
		for i := range text {
			fmt.Fprint(w, text[i:i+1])
			fl.Flush()
		}
	case "gzip":
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		fmt.Fprint(z, text)
		_ = z.Close()
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(b.Bytes())
	default:
		for _, v := range values {
			fmt.Fprintln(w, reflectForms[form](v))
		}
	}
	fl.Flush()
}

// processesWith are the processes of this host that show one of the values in their
// arguments or environment. What the lab itself puts there does not count: the
// caller's variable for the credential that is taken from it, and the gateway's key.
func processesWith(values []string) []string {
	var out []string
	for _, name := range []string{"cmdline", "environ"} {
		files, _ := filepath.Glob("/proc/[0-9]*/" + name)
		for _, p := range files {
			raw, _ := os.ReadFile(p)
			gateway := strings.Contains(string(raw), "ROOT_SECRET_KEY=")
			for _, v := range values {
				own := v == staticPassword || v == s3Access || v == s3Secret && gateway
				if len(v) >= 8 && !own && strings.Contains(string(raw), v) {
					out = append(out, p)
				}
			}
		}
	}
	return out
}

// testReflection: an upstream that a credential is bound to and that sends it back
// in every form; nothing of it arrives inside. The same forms of a value that is
// nobody's arrive, or the search would prove nothing.
func (l *lab) testReflection(t *testing.T) {
	var script strings.Builder
	for _, form := range []string{"plain", "base64", "url", "json", "hex", "split", "gzip"} {
		fmt.Fprintf(&script, "curl -sS -m 60 -i --compressed -d a=b $BARE 'https://%s/reflect?form=%s'\n", reflectHost, form)
	}
	bare := l.run(t, "kv2", "BARE=\"-H X-Bare:1 -H X-Code:CONTROL/+CANARY\"\n"+script.String())
	controls := []string{"X-Reflected: CONTROL/+CANARY", "X-Late: CONTROL/+CANARY"}
	for _, form := range reflectForms {
		controls = append(controls, form("CONTROL/+CANARY"))
	}
	for _, want := range controls {
		if !strings.Contains(strings.ReplaceAll(bare.Stdout, "x-", "X-"), want) && !strings.Contains(strings.ToLower(bare.Stdout), strings.ToLower(want)) {
			t.Errorf("control: %q does not come back: %s", want, bare.Stdout)
		}
	}
	planted := exec.CommandContext(t.Context(), "sleep", "600")
	planted.Env = []string{"PLANTED=CONTROL-LISTED"}
	if err := planted.Start(); err != nil {
		t.Fatal(err)
	}
	if len(processesWith([]string{"CONTROL-LISTED"})) != 1 {
		t.Error("control: a value in a process's environment is not found")
	}
	l.front.mu.Lock()
	l.front.reflected, l.front.listed = nil, nil
	l.front.mu.Unlock()
	defer func() {
		if len(l.front.listed) != 0 {
			t.Errorf("I2 the host's list of processes shows a value: %v", l.front.listed)
		}
	}()
	for _, c := range credentials() {
		if !c.reflects() {
			continue
		}
		r := l.run(t, c.name, script.String())
		l.front.mu.Lock()
		values := l.front.reflected
		l.front.reflected = nil
		l.front.mu.Unlock()
		if n := strings.Count(r.Stdout, " 200 "); n != 7 || len(values) < 7 {
			t.Errorf("%s: %d answers of 7, %d values were sent back: %s", c.name, n, len(values), r.raw)
		}
		for _, v := range values {
			for name, form := range reflectForms {
				want := form(v)
				if name == "json" {
					want = strings.Trim(want, `"`)
				}
				if name == "base64" {
					want = want[2 : len(want)-4] // what does not depend on its neighbours
				}
				if len(v) < 8 { // a code of six digits is looked for in fields alone
					want = "x-reflected: " + v
				}
				if strings.Contains(r.Stdout, want) || len(v) < 8 && strings.Contains(strings.ToLower(r.Stdout), want) {
					t.Errorf("I2 %s came back in the form %s", c.name, name)
				}
			}
		}
	}
}
