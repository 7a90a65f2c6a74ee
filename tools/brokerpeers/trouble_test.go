package brokerpeers

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"warder/internal/vaulttest"
)

// slowable is Vault behind a server that can hold answers back.
type slowable struct {
	*httptest.Server
	slow atomic.Bool
}

func newSlowable(t *testing.T, vault string) *slowable {
	t.Helper()
	to, err := url.Parse(vault)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(to)
	forward.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // as if it were not there
	s := &slowable{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.slow.Load() {
			<-r.Context().Done() // longer than anybody waits
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// asking is a run that asks with a credential that every request needs Vault for,
// and prints a line for each answer.
type asking struct {
	cmd   *exec.Cmd
	lines chan string
	err   strings.Builder
}

func (l *lab) startAsking(t *testing.T) *asking {
	t.Helper()
	a := &asking{lines: make(chan string, 10000)}
	a.cmd = l.process(t, "run", "--credential", "totp", "--timeout", "5m", "--", "/bin/sh", "-c",
		`while :; do s=$(curl -s -m 60 -o /tmp/a -w '%{http_code}' https://`+frontHost+`/otp)
echo "$s $(sed -n 's/.*"reason":"\([a-z-]*\)".*/\1/p' /tmp/a)"; sleep 0.1; done`)
	out, err := a.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.cmd.Stderr = &a.err
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(a.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			a.lines <- strings.TrimSpace(sc.Text())
		}
	}()
	return a
}

// until reads answers until n in a row are want; all others must be one of the two
// that a request may get: taken, or refused with the one right code.
func (a *asking) until(t *testing.T, want string, n int) {
	t.Helper()
	deadline := time.After(time.Minute)
	for row := 0; row < n; {
		select {
		case line, ok := <-a.lines:
			if !ok {
				t.Fatalf("the run ended: %s", a.err.String())
			}
			if line != taken && line != refused {
				t.Fatalf("an answer is %q", line)
			}
			if row++; line != want {
				row = 0
			}
		case <-deadline:
			t.Fatalf("never %q", want)
		}
	}
}

const taken, refused = "200", "503 credential-unavailable"

// TestVaultInTroubleInMidRun: whatever happens to Vault, the requests of a run are
// refused with one code, nothing goes out without the credential, and the same run
// goes on when Vault is back.
func TestVaultInTroubleInMidRun(t *testing.T) { // I10
	t.Parallel()
	l := newLab(t)
	l.vault = vaulttest.StartDurable(t)
	v := l.vault
	relay := newSlowable(t, v.Addr)
	v.Setup(t, staticPassword)
	v.Mount(t, "totp", "totp", nil)
	v.Must(t, http.MethodPost, "totp/keys/vpn", map[string]any{"key": totpKey})
	v.Policy(t, "run-peers", `path "totp/code/vpn" { capabilities = ["read"] }`)
	token, login := v.BrokerToken(t)
	write(t, filepath.Join(l.dir, "token"), token)
	l.front = startFront(t, l)
	l.configure(t, relay.URL, "{method: token_file, token_file: ./token}", "2s")
	before := l.accessors(t)
	a := l.startAsking(t)
	a.until(t, taken, 3)
	for _, trouble := range []struct {
		name         string
		begin, cease func()
	}{
		{"sealed", func() { v.Seal(t) }, func() { v.Open(t) }},
		{"killed and restarted", v.Kill, func() { v.Restart(t) }},
		{"slow", func() { relay.slow.Store(true) }, func() { relay.slow.Store(false) }},
		{
			"without the run's policy", func() { v.Policy(t, "run-peers", `path "x" { capabilities = ["read"] }`) },
			func() { v.Policy(t, "run-peers", `path "totp/code/vpn" { capabilities = ["read"] }`) },
		},
	} {
		trouble.begin()
		a.until(t, refused, 3)
		seen := l.front.requests.Load()
		a.until(t, refused, 3)
		if now := l.front.requests.Load(); now != seen {
			t.Errorf("%s: %d requests went out", trouble.name, now-seen)
		}
		trouble.cease()
		a.until(t, taken, 3)
	}
	// Rotated: Vault's own key, and the token that the broker came with.
	v.Must(t, http.MethodPut, "sys/rotate", nil)
	next, _ := v.BrokerToken(t)
	write(t, filepath.Join(l.dir, "token"), next)
	v.Must(t, http.MethodPost, "auth/token/revoke-accessor", map[string]any{"accessor": login})
	a.until(t, taken, 10)

	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range a.lines { // to the end
	}
	_ = a.cmd.Wait()
	left := slices.DeleteFunc(l.accessors(t), func(s string) bool { return slices.Contains(before, s) })
	if len(left) != 1 { // the new token of the broker
		t.Errorf("I7 tokens left: %d\n%s", len(left), a.err.String())
	}
	if out, errs, code := l.command(t, "audit", "verify"); code != 0 || !strings.Contains(out, "complete") {
		t.Errorf("audit verify: %d %s%s", code, out, errs)
	}
}

// accessors are all tokens that Vault knows.
func (l *lab) accessors(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, k := range l.vault.Must(t, "LIST", "auth/token/accessors", nil)["keys"].([]any) {
		out = append(out, fmt.Sprint(k))
	}
	return out
}
