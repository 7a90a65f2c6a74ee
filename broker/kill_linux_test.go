package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
	"warder/internal/vaulttest"
)

// fileJournal is a journal that survives its process: one line a change.
type fileJournal struct{ path string }

type fileEntry struct {
	Put    *JournalEntry
	Delete string
}

func (j fileJournal) add(e fileEntry) error {
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewEncoder(f).Encode(e)
}

func (j fileJournal) Put(_ context.Context, e JournalEntry) error { return j.add(fileEntry{Put: &e}) }

func (j fileJournal) Delete(_ context.Context, accessor string) error {
	return j.add(fileEntry{Delete: accessor})
}

// left is what the journal still names.
func (j fileJournal) left(t *testing.T) []JournalEntry {
	t.Helper()
	f, err := os.Open(j.path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []JournalEntry
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var e fileEntry
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		gone := e.Delete
		if e.Put != nil {
			gone = e.Put.Accessor
		}
		out = slices.DeleteFunc(out, func(o JournalEntry) bool { return o.Accessor == gone })
		if e.Put != nil {
			out = append(out, *e.Put)
		}
	}
	return out
}

// deadlyRelay stands before Vault and kills a process at one call of it: before
// Vault hears of the call, or when Vault has done it and the answer is due.
type deadlyRelay struct {
	*httptest.Server
	mu     sync.Mutex
	pid    int
	call   string // "METHOD prefix-of-path"
	after  bool
	killed chan struct{}
}

func newDeadlyRelay(t *testing.T, vault string) *deadlyRelay {
	t.Helper()
	to, err := url.Parse(vault)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(to)
	d := &deadlyRelay{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.mu.Lock()
		hit := d.call != "" && strings.HasPrefix(r.Method+" "+strings.TrimPrefix(r.URL.Path, "/v1/"), d.call)
		pid, after, killed := d.pid, d.after, d.killed
		if hit {
			d.call = ""
		}
		d.mu.Unlock()
		if !hit {
			forward.ServeHTTP(w, r)
			return
		}
		if after {
			forward.ServeHTTP(httptest.NewRecorder(), r)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		close(killed)
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(d.Close)
	return d
}

// aim kills the next process that calls; "" nobody.
func (d *deadlyRelay) aim(pid int, call string, after bool) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pid, d.call, d.after, d.killed = pid, call, after, make(chan struct{})
	return d.killed
}

func killRig(address, role, secretID string, j Journal) Options {
	return Options{
		Vault: &config.Vault{Address: address, TokenRole: vaulttest.TokenRole, Auth: config.Auth{Method: "approle", RoleIDFile: role, SecretIDFile: secretID}},
		Credentials: map[string]config.Credential{"mq": func() config.Credential {
			c := valid()
			c.Source = config.Source{Vault: &config.VaultSource{Read: "rabbit/creds/ro", Field: "password", Policies: []string{"run-base", "run-rabbit"}}}
			return c
		}()},
		Journal: j, Clock: time.Now,
	}
}

// TestKilledChild is the process that dies: one login, one run, one lease, and the
// end of all three. It does nothing unless its parent started it.
func TestKilledChild(t *testing.T) {
	env := func(name string) string { return os.Getenv("BROKER_KILL_" + name) }
	if env("ADDRESS") == "" {
		return
	}
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until the relay is aimed
	j := fileJournal{env("JOURNAL")}
	o := killRig(env("ADDRESS"), env("ROLE"), env("SECRET"), j)
	if env("TOKEN") != "" {
		o.Vault.Auth = config.Auth{Method: "token_file", TokenFile: env("TOKEN")}
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := b.Begin(identity.Run{ID: "r-killed"}, nil, j)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Grant(t.Context(), "mq", issues); err != nil {
		t.Fatal(err)
	}
	if env("STATE") == "in use" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	s.End(t.Context())
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// killStates are the states of a lease's life, in order, and the call of Vault at
// which the process dies in it. "after" is: Vault has done it and nobody heard.
var killStates = []struct {
	name, call string
	after      bool
	control    bool // something of ours is left to be taken back
}{
	{"login kept", "POST auth/token/create/", false, true},
	{"token made, answer not heard", "POST auth/token/create/", true, true},
	{"token kept, about to be extended", "POST auth/token/renew-accessor", false, true},
	{"token extended, answer not heard", "POST auth/token/renew-accessor", true, true},
	{"token kept", "GET rabbit/creds/", false, true},
	{"lease made, answer not heard", "GET rabbit/creds/", true, true},
	{"in use", "", false, true},
	{"lease about to be revoked", "POST sys/leases/revoke/", false, true},
	{"lease revoked, answer not heard", "POST sys/leases/revoke/", true, true},
	{"token about to be revoked", "POST auth/token/revoke-accessor", false, true},
	{"token revoked, answer not heard", "POST auth/token/revoke-accessor", true, true},
	{"login about to be revoked", "POST auth/token/revoke-self", false, true},
	{"login revoked, answer not heard", "POST auth/token/revoke-self", true, false},
}

// TestF142KillNineInEachStateOfALease: whatever the moment, after one start
// Vault's own lists of accessors and leases have nothing of ours, and the target
// system no user.
func TestF142KillNineInEachStateOfALease(t *testing.T) { // I7, I8
	s := startVault(t)
	g := newTarget(t)
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(t, http.MethodPost, "rabbit/roles/ro", map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	s.Policy(t, "run-rabbit", `path "rabbit/creds/ro" { capabilities = ["read"] }`)
	roleID, secretID := s.AppRole(t)
	role, secretFileName := secretFile(t, roleID), secretFile(t, secretID)
	relay := newDeadlyRelay(t, s.Addr)
	before := accessors(t, s)
	for _, c := range killStates {
		t.Run(c.name, func(t *testing.T) {
			j := fileJournal{filepath.Join(t.TempDir(), "journal")}
			dieAt(t, relay, c.name, c.call, c.after, []string{
				"BROKER_KILL_ADDRESS=" + relay.URL, "BROKER_KILL_ROLE=" + role, "BROKER_KILL_SECRET=" + secretFileName,
				"BROKER_KILL_JOURNAL=" + j.path, "BROKER_KILL_STATE=" + c.name,
			})
			if left := len(accessors(t, s)) > len(before); left != c.control {
				t.Errorf("control: something is left: %v", left)
			}
			next, err := New(killRig(relay.URL, role, secretFileName, &journal{}))
			if err != nil {
				t.Fatal(err)
			}
			entries := j.left(t)
			done, err := next.Recover(t.Context(), entries)
			if err != nil || len(done) != len(entries) {
				t.Fatalf("recovered %d of %d: %v", len(done), len(entries), err)
			}
			if err := next.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if now := accessors(t, s); !slices.Equal(now, before) {
				t.Errorf("accessors of ours in Vault: %d", len(now)-len(before))
			}
			if status, out := s.Do(t, s.Root, "LIST", "sys/leases/lookup/rabbit/creds/ro", nil); status != http.StatusNotFound {
				t.Errorf("leases in Vault: %v", out["data"])
			}
			if users := g.names(); len(users) != 0 {
				t.Errorf("users in the target system: %v", users)
			}
		})
	}
}

// dieAt runs TestKilledChild until it is killed.
func dieAt(t *testing.T, relay *deadlyRelay, state, call string, after bool, env []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestKilledChild$")
	cmd.Env = append(os.Environ(), env...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := relay.aim(cmd.Process.Pid, call, after)
	fmt.Fprintln(in, "go")
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed in the state %q: %v\n%s", state, cmd.ProcessState, out.String())
	}
	if call != "" {
		<-killed // the handler is through with Vault
	}
	relay.aim(0, "", false)
}

// TestTheDeadMansSwitch: what no start can know of, a login whose answer was never
// heard, and what nobody takes back, ends with the period of the login's token.
func TestTheDeadMansSwitch(t *testing.T) { // I7
	t.Parallel()
	s := startVault(t)
	g := newTarget(t)
	s.Mount(t, "rabbit", "rabbitmq", nil)
	s.Must(t, http.MethodPost, "rabbit/config/connection", map[string]any{"connection_uri": g.URL, "username": "admin", "password": "x", "verify_connection": false})
	s.Must(t, http.MethodPost, "rabbit/roles/ro", map[string]any{"vhosts": `{"/":{"configure":"","write":"","read":".*"}}`})
	s.Policy(t, "run-rabbit", `path "rabbit/creds/ro" { capabilities = ["read"] }`)
	roleID, secretID := s.AppRole(t)
	s.Must(t, http.MethodPost, "auth/approle/role/broker", map[string]any{"token_policies": "broker", "token_period": "2s", "token_no_default_policy": true})
	role, secretFileName := secretFile(t, roleID), secretFile(t, secretID)
	relay := newDeadlyRelay(t, s.Addr)
	before := accessors(t, s)
	for state, call := range map[string]string{"login made, answer not heard": "POST auth/approle/login", "in use": ""} {
		dieAt(t, relay, state, call, true, []string{
			"BROKER_KILL_ADDRESS=" + relay.URL, "BROKER_KILL_ROLE=" + role, "BROKER_KILL_SECRET=" + secretFileName,
			"BROKER_KILL_JOURNAL=" + filepath.Join(t.TempDir(), "journal"), "BROKER_KILL_STATE=" + state,
		})
	}
	if len(accessors(t, s)) <= len(before) || len(g.names()) != 1 {
		t.Error("control: nothing was left")
	}
	for end := time.Now().Add(time.Minute); !slices.Equal(accessors(t, s), before) || len(g.names()) > 0; {
		if time.Now().After(end) {
			t.Fatalf("left: %d accessors, %d users", len(accessors(t, s))-len(before), len(g.names()))
		}
		time.Sleep(100 * time.Millisecond) // polling Vault, which ends them by itself
	}
}
