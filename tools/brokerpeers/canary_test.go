package brokerpeers

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// held is an upstream's side of requests that stand still while their credential is
// in use: what each carried, by the name of the credential.
type held struct {
	mu      sync.Mutex
	values  map[string][]string
	certs   map[string]bool // that came with a client certificate
	release chan struct{}
}

// ServeHTTP keeps what a request carried, and answers once it is released; with
// reset it ends the connection in the middle instead.
func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.Header.Get("X-Cred")
	values := carriedBy(r)
	h.mu.Lock()
	h.values[name] = append(h.values[name], values...)
	h.certs[name] = h.certs[name] || len(r.TLS.PeerCertificates) > 0
	h.mu.Unlock()
	if r.URL.Query().Get("reset") != "" {
		fmt.Fprint(w, strings.Join(values, " "))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	select {
	case <-h.release:
	case <-r.Context().Done():
	}
}

// waiting counts the credentials whose request stands still.
func (h *held) all() map[string][]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string][]string{}
	for name, v := range h.values {
		if len(v) > 0 || h.certs[name] {
			out[name] = append([]string(nil), v...)
		}
	}
	return out
}

// shows reports the form in which a text holds a value; "" when it does not. A code
// of six digits is looked for as a word: it could be a part of any number.
func shows(text, value string) string {
	if len(value) < 8 {
		if regexp.MustCompile(`\b` + regexp.QuoteMeta(value) + `\b`).MatchString(text) {
			return "plain"
		}
		return ""
	}
	quoted, _ := json.Marshal(value)
	forms := map[string]string{
		"plain": value, "url": url.QueryEscape(value), "path": url.PathEscape(value), "json": strings.Trim(string(quoted), `"`),
		"hex": hex.EncodeToString([]byte(value)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(value))),
	}
	for i := range 3 { // less what depends on the neighbours
		for name, enc := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			raw := []byte(value)[i:]
			forms[fmt.Sprint(name, i)] = enc.EncodeToString(raw[:len(raw)/3*3])
		}
	}
	for name, form := range forms {
		if strings.Contains(text, form) {
			return name
		}
	}
	return ""
}

// keyMarks begin every private key of the kind that is made here, and every token of Vault.
var keyMarks = regexp.MustCompile(`PRIVATE KEY|MHcCAQEE|MIGHAgEAMBMGByqGSM49|hvs\.[A-Za-z0-9]{8}`)

// startHolding runs `warder proxy` with all credentials for one client. Each request
// names its credential.
func (l *lab) startHolding(t *testing.T) (addr, admin string, cmd *exec.Cmd, said *output) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(l.dir, "warder.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(l.ca.key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(l.dir, "ca.key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	write(t, filepath.Join(l.dir, "client-token"), "S3CR3T-CANARY-client-0123456789")
	text := strings.Replace(string(raw), "{path: ./policies}", "{path: ./holding}", 1)
	text = strings.Replace(text, "proxy:\n", `proxy:
  listen: 127.0.0.1:0
  admin: 127.0.0.1:0
  ca: {cert_file: ./ca.pem, key_file: ./ca.key}
  clients: [{name: all, token_file: ./client-token}]
`, 1)
	write(t, filepath.Join(l.dir, "holding.yaml"), text)
	if err := os.MkdirAll(filepath.Join(l.dir, "holding"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(l.dir, "holding", "named.rego"), `package warder.egress

# METADATA
# title: The credential that the request names
allow contains {"rule": "named", "credential": input.request.headers["x-cred"][0]} if input.request.path == "/held"
`)
	cmd = l.process(t, "proxy", "--config", filepath.Join(l.dir, "holding.yaml"))
	cmd.Env = append(cmd.Env, "GOTRACEBACK=crash")
	said = &output{}
	pipe, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(pipe)
	for addr == "" || admin == "" {
		line, err := lines.ReadString('\n')
		_, _ = io.WriteString(said, line)
		if err != nil {
			t.Fatalf("the proxy did not start: %s", said)
		}
		if _, a, ok := strings.Cut(strings.TrimSpace(line), "listening on "); ok {
			addr = a
		}
		if _, a, ok := strings.Cut(strings.TrimSpace(line), "admin on "); ok {
			admin = a
		}
	}
	go func() { _, _ = io.Copy(said, lines) }()
	return addr, admin, cmd, said
}

// asker sends requests through the proxy and returns all that comes back.
func (l *lab) asker(t *testing.T, proxy string) func(host, name, query string) string {
	t.Helper()
	return func(host, name, query string) string {
		tr := &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: l.ca.client(),
			Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: proxy, User: url.UserPassword("all", "S3CR3T-CANARY-client-0123456789")}),
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+host+"/held?"+query, strings.NewReader("a=b"))
		if err != nil {
			return err.Error()
		}
		req.Header.Set("X-Cred", name)
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return fmt.Sprint(resp.Status, resp.Header, string(body), err)
	}
}

// testHeld: while a credential of every kind is in use at once, nothing of any of
// them stands in metrics, logs, errors, records, state files, the list of processes,
// or in what the process prints when it crashes.
func (l *lab) testHeld(t *testing.T) { // I2, F077
	for _, form := range []string{"plain", "base64", "url", "json", "hex"} {
		if v := "CONTROL/+CANARY"; shows("x "+reflectForms[form](v)+" x", v) == "" {
			t.Errorf("control: %s is not found", form)
		}
	}
	if shows("n 123456 x", "123456") == "" || shows("1123456", "123456") != "" || !keyMarks.MatchString("-----BEGIN EC PRIVATE KEY-----") {
		t.Error("control: a code or a key is not found")
	}
	h := l.front.held
	proxy, admin, cmd, said := l.startHolding(t)
	ask := l.asker(t, proxy)
	names := map[string]bool{}
	var failed strings.Builder
	for _, c := range credentials() {
		names[c.name] = true
		failed.WriteString(ask(reflectHost, c.name, "reset=1"))   // the upstream fails in the middle
		failed.WriteString(ask("nowhere.peers.test", c.name, "")) // the credential is not bound to it
	}
	var wg sync.WaitGroup
	for name := range names {
		wg.Go(func() { ask(reflectHost, name, "") })
	}
	defer wg.Wait()
	defer close(h.release)
	for end := time.Now().Add(2 * time.Minute); len(h.all()) < len(names); {
		if time.Now().After(end) {
			t.Fatalf("of %d credentials %d are in use: %s\n%s", len(names), len(h.all()), failed.String(), said)
		}
		time.Sleep(20 * time.Millisecond) // polling for requests of other goroutines
	}
	var values []string
	for name, v := range h.all() {
		if mtls := name == "pki" || name == "local-pki"; mtls != (len(v) == 0) || mtls != h.certs[name] {
			t.Errorf("control: %s carried %d values, certificate %v", name, len(v), h.certs[name])
		}
		values = append(values, v...)
	}
	values = append(values, totpKey, hmacKey, s3Secret, staticPassword, queryKey)
	caKey, err := os.ReadFile(filepath.Join(l.dir, "client-ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(caKey)
	values = append(values, string(block.Bytes))

	metrics := get(t, "http://"+admin+"/metrics")
	if listed := processesWith(values); len(listed) != 0 {
		t.Errorf("I2 the list of processes shows a value: %v", listed)
	}
	written := l.written(t)
	if err := cmd.Process.Signal(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for place, p := range map[string]struct{ text, control string }{
		"metrics": {metrics, "warder_requests_total"}, "errors": {failed.String(), `"reason":"credential-binding"`},
		"log and state": {written, "local-totp"}, "what a crash prints": {said.String(), "SIGABRT"},
	} {
		if !strings.Contains(p.text, p.control) {
			t.Errorf("control: %q is not in %s: %.2000s", p.control, place, p.text)
		}
		for i, v := range values {
			if form := shows(p.text, v); form != "" {
				t.Errorf("I2 value %d of %d, of %d bytes, stands in %s (%s)", i, len(values), len(v), place, form)
			}
		}
		if m := keyMarks.FindString(p.text); m != "" {
			t.Errorf("I2 %s holds a key or a token: %.12s", place, m)
		}
	}
	if !strings.Contains(said.String(), "goroutine ") || !strings.Contains(said.String(), "warder/proxy.") {
		t.Error("control: the crash prints no goroutine of the proxy")
	}
	if cores, _ := filepath.Glob(filepath.Join(l.dir, "core*")); len(cores) != 0 {
		t.Errorf("I2 a core file: %v", cores)
	}
	if out, errs, code := l.command(t, "run", "--", "true"); code != 0 { // takes back what the crash left
		t.Error(out, errs)
	}
}

// written is all that stands in the folders that Warder writes to.
func (l *lab) written(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"audit", "state", "cache"} {
		_ = filepath.WalkDir(filepath.Join(l.dir, dir), func(p string, d os.DirEntry, err error) error {
			// Keys of the log's signatures and of local tokens are what they are.
			if err != nil || !d.Type().IsRegular() || strings.Contains(p, "keys") {
				return nil //nolint:nilerr // a file that has just gone
			}
			raw, _ := os.ReadFile(p)
			all.Write(raw)
			all.WriteByte('\n')
			return nil
		})
	}
	return all.String()
}

func get(t *testing.T, address string) string {
	t.Helper()
	resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}}).Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return string(raw)
}
