package runner

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"warder/broker"
	"warder/internal/identity"
)

// StateDir is the folder of run state: RUNS/<id>.jsonl, one file per live run.
type StateDir struct{ dir string }

// runID is what a run id looks like; anything else never becomes a file name.
var runID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^r-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
})

const stateVersion = 1

// stateLine is one line of a state file. The first line describes the run, the
// following ones are the journal of its credentials: accessors and lease ids,
// never a token.
type stateLine struct {
	Version int                  `json:"version,omitempty"`
	Run     string               `json:"run,omitempty"`
	Slot    int                  `json:"slot"`           // of the uid range; -1 when none is used
	UIDs    []uint32             `json:"uids,omitempty"` // host ids that processes of the run have
	Put     *broker.JournalEntry `json:"put,omitempty"`
	Delete  string               `json:"delete,omitempty"` // an accessor
}

// OpenState prepares the folder, 0700.
func OpenState(dir string) (*StateDir, error) {
	runs := filepath.Join(dir, "runs")
	if err := os.MkdirAll(runs, 0o700); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return &StateDir{runs}, nil
}

// State is the locked state file of a live run. It implements broker.Journal.
type State struct {
	f    *os.File
	path string
	slot int

	mu   sync.Mutex
	open map[string]bool // accessors that are not confirmed gone
}

var _ broker.Journal = (*State)(nil)

// begin creates and locks the state file of run id. slots is how many id pairs
// the uid range has (0: none is used); uids returns the host ids of a slot.
func (s *StateDir) begin(id string, slots int, uids func(slot int) []uint32) (*State, error) {
	if !runID().MatchString(id) {
		return nil, fmt.Errorf("state: %q is not a run id", id)
	}
	unlock, err := s.allocLock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	path := filepath.Join(s.dir, id+".jsonl")
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("state: run %s already exists", id)
	}
	st := &State{path: path, slot: -1, open: map[string]bool{}}
	line := stateLine{Version: stateVersion, Run: id, Slot: -1}
	if slots > 0 {
		if st.slot, err = s.freeSlot(slots); err != nil {
			return nil, err
		}
		line.Slot, line.UIDs = st.slot, uids(st.slot)
	} else {
		line.UIDs = []uint32{uint32(os.Getuid())}
	}
	// The file gets its name only when it is locked and complete, so a sweep
	// never sees one in between.
	tmp := filepath.Join(s.dir, "."+id)
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	st.f = f
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = st.append(line)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		_ = f.Close()
		return nil, fmt.Errorf("state: %w", err)
	}
	return st, nil
}

// allocLock serialises the choice of a slot between processes.
func (s *StateDir) allocLock() (func(), error) {
	f, err := os.OpenFile(filepath.Join(s.dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("state: lock: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// freeSlot is the smallest slot that no state file names, live or not yet swept.
func (s *StateDir) freeSlot(slots int) (int, error) {
	used := map[int]bool{}
	files, err := filepath.Glob(filepath.Join(s.dir, "*.jsonl"))
	if err != nil {
		return 0, err
	}
	for _, p := range files {
		if f, err := os.Open(p); err == nil {
			if head, _, err := readState(f); err == nil {
				used[head.Slot] = true
			}
			_ = f.Close()
		}
	}
	for i := range slots {
		if !used[i] {
			return i, nil
		}
	}
	return 0, fmt.Errorf("state: all %d id pairs of sandbox.uid_range are in use", slots)
}

// Journal opens a state file for tokens that belong to this process instead of
// one run. Close it after the broker.
func (s *StateDir) Journal() (*State, error) {
	return s.begin(identity.NewRunID(), 0, nil)
}

// Close is the orderly end of a file made by Journal.
func (st *State) Close() error { return st.end() }

// append writes one line durably.
func (st *State) append(l stateLine) error {
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if _, err := st.f.Write(append(b, '\n')); err != nil {
		return err
	}
	return unix.Fdatasync(int(st.f.Fd()))
}

// Put implements broker.Journal.
func (st *State) Put(_ context.Context, e broker.JournalEntry) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.append(stateLine{Slot: st.slot, Put: &e}); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	st.open[e.Accessor] = true
	return nil
}

// Delete implements broker.Journal.
func (st *State) Delete(_ context.Context, accessor string) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.append(stateLine{Slot: st.slot, Delete: accessor}); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	delete(st.open, accessor)
	return nil
}

// end removes the file, unless the journal still names something that is not
// confirmed gone: then the next start takes it up.
func (st *State) end() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	var err error
	if len(st.open) == 0 {
		err = os.Remove(st.path)
	}
	return errors.Join(err, st.f.Close())
}

// readState returns the head and the open journal entries of a state file. A
// torn last line is left out: what it would have said was not yet relied on.
func readState(r io.Reader) (stateLine, []broker.JournalEntry, error) {
	b, err := io.ReadAll(bufio.NewReader(r))
	if err != nil {
		return stateLine{}, nil, err
	}
	var head stateLine
	entries := map[string]broker.JournalEntry{}
	var order []string
	for i, line := range bytes.Split(b, []byte("\n")) {
		var l stateLine
		if len(line) == 0 || json.Unmarshal(line, &l) != nil {
			continue
		}
		if i == 0 {
			head = l
		}
		if l.Put != nil {
			if _, ok := entries[l.Put.Accessor]; !ok {
				order = append(order, l.Put.Accessor)
			}
			entries[l.Put.Accessor] = *l.Put
		}
		if l.Delete != "" {
			delete(entries, l.Delete)
		}
	}
	if head.Version != stateVersion {
		return head, nil, fmt.Errorf("state: version %d is not %d", head.Version, stateVersion)
	}
	var open []broker.JournalEntry
	for _, a := range order {
		if e, ok := entries[a]; ok {
			open = append(open, e)
		}
	}
	return head, open, nil
}

// Revoker takes back what dead runs left at Vault and returns the accessors now
// confirmed gone (or not revocable any more because their latest expiry passed).
type Revoker func(ctx context.Context, entries []broker.JournalEntry) (done []string, err error)

// SweepReport says what a sweep did.
type SweepReport struct {
	Ended       []string // runs whose leftovers are gone
	Unconfirmed []string // runs whose credentials could not be confirmed revoked
	Live        int
}

// Sweep ends what dead runs left: processes first, then credentials, then
// cgroups and files. It takes only files whose lock it gets.
func (s *StateDir) Sweep(ctx context.Context, revoke Revoker) (SweepReport, error) {
	sw := &sweeper{host: findCgroups("/proc"), revoke: revoke}
	files, err := filepath.Glob(filepath.Join(s.dir, "*.jsonl"))
	if err != nil {
		return sw.rep, fmt.Errorf("sweep: %w", err)
	}
	sw.sweep(ctx, files)
	sw.errs = append(sw.errs, s.sweepBeginnings(ctx, sw))
	return sw.rep, errors.Join(sw.errs...)
}

// sweepBeginnings takes files that never got their name. While the lock is held
// nobody is beginning a run, so their owners are dead.
func (s *StateDir) sweepBeginnings(ctx context.Context, sw *sweeper) error {
	files, err := filepath.Glob(filepath.Join(s.dir, ".r-*"))
	if err != nil || len(files) == 0 {
		return err
	}
	unlock, err := s.allocLock()
	if err != nil {
		return err
	}
	defer unlock()
	sw.sweep(ctx, files)
	return nil
}

type sweeper struct {
	host   *cgroupHost
	revoke Revoker
	rep    SweepReport
	errs   []error
}

func (sw *sweeper) sweep(ctx context.Context, files []string) {
	for _, p := range files {
		if ctx.Err() != nil {
			sw.errs = append(sw.errs, ctx.Err())
			return
		}
		id := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(p), "."), ".jsonl")
		if !runID().MatchString(id) {
			continue
		}
		done, live, err := sweepOne(ctx, p, id, sw.host, sw.revoke)
		switch {
		case live:
			sw.rep.Live++
		case done:
			sw.rep.Ended = append(sw.rep.Ended, id)
		default:
			sw.rep.Unconfirmed = append(sw.rep.Unconfirmed, id)
			sw.errs = append(sw.errs, err)
		}
	}
}

func sweepOne(ctx context.Context, p, id string, host *cgroupHost, revoke Revoker) (done, live bool, err error) {
	f, err := os.OpenFile(p, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, true, nil // it ended by itself meanwhile
	}
	if err != nil {
		return false, false, err
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false, true, nil
	}
	if !sameFile(f, p) {
		return false, true, nil
	}
	head, open, err := readState(f)
	if err != nil && strings.HasPrefix(filepath.Base(p), ".") {
		head, err = stateLine{Run: id}, nil // died before it was complete
	}
	if err != nil {
		return false, false, err
	}
	killTree(id, head.UIDs)
	if err := host.removeCgroups(id, 5*time.Second); err != nil {
		return false, false, err
	}
	if len(open) > 0 {
		st := &State{f: f, path: p, slot: head.Slot, open: map[string]bool{}}
		for _, e := range open {
			st.open[e.Accessor] = true
		}
		var gone []string
		if revoke != nil {
			gone, err = revoke(ctx, open)
		}
		for _, a := range gone {
			if derr := st.Delete(ctx, a); derr != nil {
				return false, false, derr
			}
		}
		if len(st.open) > 0 {
			return false, false, fmt.Errorf("run %s: %d credentials unconfirmed: %w", id, len(st.open), err)
		}
	}
	return true, false, os.Remove(p)
}

func sameFile(f *os.File, p string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Lstat(p)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}
