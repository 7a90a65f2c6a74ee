package broker

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/internal/config"
	"warder/internal/identity"
	"warder/internal/vaulttest"
)

const githubCanary = "S3CR3T-CANARY-github-v1"

// journal is a Journal in memory; onPut may look at and refuse each entry.
type journal struct {
	mu      sync.Mutex
	entries map[string]JournalEntry
	onPut   func(JournalEntry) error
}

func (j *journal) Put(_ context.Context, e JournalEntry) error {
	j.mu.Lock()
	hook := j.onPut
	j.mu.Unlock()
	if hook != nil {
		if err := hook(e); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.entries == nil {
		j.entries = map[string]JournalEntry{}
	}
	j.entries[e.Accessor] = e
	return nil
}

func (j *journal) Delete(_ context.Context, accessor string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.entries, accessor)
	return nil
}

func (j *journal) list() []JournalEntry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Values(j.entries))
}

// clock is moved by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// log keeps what is logged, to be searched for secrets.
type log struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is a broker with everything that it was given.
type rig struct {
	*Broker
	journal *journal // of the broker; runs have their own
	clock   *clock
	log     *log
	events  *[]string
	opts    Options
}

func secretFile(t testing.TB, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func tokenFile(t *testing.T, address, token string) *config.Vault {
	t.Helper()
	return &config.Vault{
		Address: address, TokenRole: vaulttest.TokenRole,
		Auth: config.Auth{Method: "token_file", TokenFile: secretFile(t, token)},
	}
}

func githubCred() config.Credential {
	c := valid()
	c.Source = config.Source{Vault: fromKV()}
	return c
}

func newRig(t *testing.T, v *config.Vault, creds map[string]config.Credential, edit ...func(*Options)) *rig {
	t.Helper()
	r := &rig{journal: &journal{}, clock: newClock(), log: &log{}, events: &[]string{}}
	var mu sync.Mutex
	r.opts = Options{
		Vault: v, Credentials: creds, StateDir: t.TempDir(), Journal: r.journal, Clock: r.clock.Now,
		Getenv: func(string) (string, bool) { return "", false },
		Log:    slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		OnLease: func(event, run string, o Outcome) {
			mu.Lock()
			defer mu.Unlock()
			*r.events = append(*r.events, strings.TrimPrefix(event, "lease.")+" "+o.Kind+" "+o.Status)
		},
	}
	for _, e := range edit {
		e(&r.opts)
	}
	b, err := New(r.opts)
	if err != nil {
		t.Fatal(err)
	}
	r.Broker = b
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = b.Close(ctx)
		if strings.Contains(r.log.String(), "CANARY") {
			t.Error("the log holds a secret")
		}
	})
	return r
}

func (r *rig) begin(t *testing.T) (*Session, *journal) {
	t.Helper()
	j := &journal{}
	s, err := r.Begin(identity.Run{ID: identity.NewRunID()}, nil, j)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		s.End(ctx)
	})
	return s, j
}

var issues = Target{RequestID: "q1", Scheme: "https", Host: "api.github.com", Port: 443, Method: "GET", Path: "/repos/acme/x/issues"}

func grant(t *testing.T, s *Session, name string) *Grant {
	t.Helper()
	g, err := s.Grant(t.Context(), name, issues)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// injected is what a server would see of the grant.
func injected(t *testing.T, g *Grant) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "https://api.github.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Inject(req); err != nil {
		t.Fatal(err)
	}
	return req.Header.Get("Authorization")
}

// refused wants an *Error with the reason; its text may name paths, never a value.
func refused(t *testing.T, err error, reason string) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Reason != reason {
		t.Fatalf("want %s, got %v", reason, err)
	}
	if strings.Contains(err.Error(), "CANARY") {
		t.Fatal("the error holds a secret")
	}
	return e
}

func end(t *testing.T, s *Session) []Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return s.End(ctx)
}

var testRun = identity.Run{ID: "r-1"}
