package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"warder/internal/identity"
)

// rig is one open log in a directory of its own.
type rig struct {
	*Log
	dir  string
	run  *identity.Run
	mu   sync.Mutex
	said []string
}

func (g *rig) warn(s string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said = append(g.said, s)
}

func (g *rig) warnings() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.said...)
}

// start opens a log; o.Dir may be preset.
func start(t *testing.T, o Options) *rig {
	t.Helper()
	g, err := tryStart(t, o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func tryStart(t *testing.T, o Options) (*rig, error) {
	t.Helper()
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "audit")
	}
	g := &rig{dir: o.Dir, run: &identity.Run{ID: identity.NewRunID()}}
	o.Warn = g.warn
	l, err := Open(t.Context(), o)
	g.Log = l
	return g, err
}

func (g *rig) reserved(id string) *Record {
	return &Record{
		Event: EventRequest, Stage: StageReserved, Run: g.run, Verdict: "allow", Rule: "github-read",
		Mode: "intercepted", Request: &Request{ID: id, Method: "GET", Scheme: "https", Host: "api.allowed.test", Port: 443, Path: "/repos/acme/x/issues"},
		Policy: &Policy{Revision: "rev-1", Digest: "sha256:aa", DecisionID: "d-" + id, Mode: "enforce"},
	}
}

func (g *rig) completed(id string) *Record {
	r := g.reserved(id)
	r.Stage = StageCompleted
	r.Response = &Response{Status: 200, Bytes: 12}
	return r
}

// must appends and waits.
func (g *rig) must(t *testing.T, rs ...*Record) {
	t.Helper()
	for _, r := range rs {
		if err := g.Append(t.Context(), r).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func (g *rig) requests(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		id := fmt.Sprintf("q%d", i)
		g.must(t, g.reserved(id), g.completed(id))
	}
}

func (g *rig) close(t *testing.T) {
	t.Helper()
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// die ends the writer as a kill would: no seal, no closing lines, locks gone.
func (g *rig) die(t *testing.T) {
	t.Helper()
	err := g.ask(t.Context(), true, func() error {
		g.c.ended = true
		return g.c.s.close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (g *rig) stream() string { return g.c.s.name }
func (g *rig) segment(n int) string {
	return segmentPath(filepath.Join(g.dir, streamsDir, g.stream()), n)
}

func verify(t *testing.T, dir string) Report {
	t.Helper()
	rep, err := Verify(t.Context(), dir, VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func wantVerdict(t *testing.T, dir, verdict string) Report {
	t.Helper()
	rep := verify(t, dir)
	if rep.Verdict != verdict {
		t.Fatalf("verdict is %s, want %s: %+v", rep.Verdict, verdict, rep.Findings)
	}
	return rep
}

func records(t *testing.T, dir string, f Filter) []*Record {
	t.Helper()
	var out []*Record
	for r, err := range Read(context.Background(), dir, f) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(to, keysDir, signingKey), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return to
}

// faulty is the real file system with faults: hook is asked before every call.
type faulty struct {
	osFS
	mu    sync.Mutex
	calls []string
	hook  func(n int, op, name string) error
}

// errShort as a fault makes a write write half of its bytes and succeed.
var errShort = errors.New("short write, without an error")

func (f *faulty) ask(op, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, op+" "+filepath.Base(name))
	if f.hook == nil {
		return nil
	}
	return f.hook(len(f.calls)-1, op, name)
}

func (f *faulty) set(hook func(n int, op, name string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *faulty) MkdirAll(name string, perm fs.FileMode) error {
	if err := f.ask("mkdir", name); err != nil {
		return err
	}
	return f.osFS.MkdirAll(name, perm)
}

func (f *faulty) OpenFile(name string, flag int, perm fs.FileMode) (Handle, error) {
	if err := f.ask("open", name); err != nil {
		return nil, err
	}
	h, err := f.osFS.OpenFile(name, flag, perm)
	return f.wrap(h, name), err
}

func (f *faulty) OpenDir(name string) (Handle, error) {
	if err := f.ask("opendir", name); err != nil {
		return nil, err
	}
	h, err := f.osFS.OpenDir(name)
	return f.wrap(h, name), err
}

func (f *faulty) wrap(h Handle, name string) Handle {
	if h == nil {
		return nil
	}
	return &faultyHandle{h, f, name}
}

func (f *faulty) Rename(from, to string) error {
	if err := f.ask("rename", to); err != nil {
		return err
	}
	return f.osFS.Rename(from, to)
}

func (f *faulty) Remove(name string) error {
	if err := f.ask("remove", name); err != nil {
		return err
	}
	return f.osFS.Remove(name)
}

func (f *faulty) Lstat(name string) (fs.FileInfo, error) {
	if err := f.ask("lstat", name); err != nil {
		return nil, err
	}
	return f.osFS.Lstat(name)
}

func (f *faulty) Identify(name string) (FileID, error) {
	if err := f.ask("statx", name); err != nil {
		return FileID{}, err
	}
	return f.osFS.Identify(name)
}

type faultyHandle struct {
	Handle
	f    *faulty
	name string
}

func (h *faultyHandle) WriteAt(b []byte, off int64) (int, error) {
	switch err := h.f.ask("write", h.name); {
	case errors.Is(err, errShort):
		return h.Handle.WriteAt(b[:len(b)/2], off)
	case err != nil:
		n, _ := h.Handle.WriteAt(b[:len(b)/3], off) // as a full disk does
		return n, err
	}
	return h.Handle.WriteAt(b, off)
}

func (h *faultyHandle) ReadAt(b []byte, off int64) (int, error) {
	if err := h.f.ask("read", h.name); err != nil {
		return 0, err
	}
	return h.Handle.ReadAt(b, off)
}

func (h *faultyHandle) Truncate(size int64) error {
	if err := h.f.ask("truncate", h.name); err != nil {
		return err
	}
	return h.Handle.Truncate(size)
}

func (h *faultyHandle) Allocate(size int64) error {
	if err := h.f.ask("allocate", h.name); err != nil {
		return err
	}
	return h.Handle.Allocate(size)
}

func (h *faultyHandle) Blank(off, n int64) error {
	if err := h.f.ask("blank", h.name); err != nil {
		return err
	}
	return h.Handle.Blank(off, n)
}

func (h *faultyHandle) Datasync() error {
	if err := h.f.ask("fdatasync", h.name); err != nil {
		return err
	}
	return nil // no test here takes the power away, and the disk's time is long
}

func (h *faultyHandle) Stat() (fs.FileInfo, error) {
	if err := h.f.ask("fstat", h.name); err != nil {
		return nil, err
	}
	return h.Handle.Stat()
}

func (h *faultyHandle) Lock() error {
	if err := h.f.ask("flock", h.name); err != nil {
		return err
	}
	return h.Handle.Lock()
}

// tickNow does what the committer does by the clock.
func (g *rig) tickNow(t *testing.T) {
	t.Helper()
	if err := g.ask(t.Context(), false, func() error { g.c.tick(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// lineTime is the time of lines made without a log.
var lineTime = time.Date(2026, 11, 29, 17, 0, 0, 1, time.UTC)

// lineOf makes a first line with any sequence number.
func lineOf(seq uint64) []byte {
	prev := firstPrev
	return appendLine(nil, frame{id: []byte("i"), at: lineTime, stream: "s", seq: seq}, &prev, []byte(`"event":"drop"`))
}
