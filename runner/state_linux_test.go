package runner

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/broker"
	"warder/internal/identity"

	"a.warder/early"
)

func newStateDir(t *testing.T) *StateDir {
	t.Helper()
	s, err := OpenState(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func pairsFrom(base uint32) func(int) []uint32 {
	return func(slot int) []uint32 { return []uint32{base + uint32(slot)*2, base + uint32(slot)*2 + 1} }
}

// die closes the file as the death of its process would: the lock goes, the file stays.
func die(t *testing.T, st *State) {
	t.Helper()
	if err := st.f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStateFileIsPrivateAndGoesWithItsRun(t *testing.T) {
	s := newStateDir(t)
	st, err := s.begin(identity.NewRunID(), 10, pairsFrom(200000))
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(st.path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	if err := st.end(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "*.jsonl")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStateRefusesIDsThatAreNoRunIDs_F132(t *testing.T) { // F132
	s := newStateDir(t)
	for _, id := range []string{"", "x", "../x", "r-../../../../etc/passwd", "r-01a228da-70c1-79c9-b8f5-52c3dbd1145e/..", "R-01a228da-70c1-79c9-b8f5-52c3dbd1145e"} {
		if _, err := s.begin(id, 0, nil); err == nil {
			t.Errorf("%q was accepted", id)
		}
	}
	id := identity.NewRunID()
	if _, err := s.begin(id, 0, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.begin(id, 0, nil); err == nil {
		t.Error("a second run with a live id was accepted")
	}
}

func TestIDPairsAreDistinctWhileRunsLive(t *testing.T) {
	s := newStateDir(t)
	var mu sync.Mutex
	seen := map[int]int{}
	var wg sync.WaitGroup
	for range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			st, err := s.begin(identity.NewRunID(), 64, pairsFrom(200000))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			seen[st.slot]++
		}()
	}
	wg.Wait()
	if len(seen) != 20 {
		t.Errorf("20 live runs share %d slots", len(seen))
	}
	small := newStateDir(t)
	for i := range 3 {
		_, err := small.begin(identity.NewRunID(), 2, pairsFrom(200000))
		if (err != nil) != (i == 2) {
			t.Errorf("run %d of a range of two pairs: %v", i, err)
		}
	}
}

func TestSweepTakesOnlyTheDead(t *testing.T) {
	s := newStateDir(t)
	live, err := s.begin(identity.NewRunID(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := s.begin(identity.NewRunID(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	entry := broker.JournalEntry{Run: "r", Address: "http://127.0.0.1:1", TokenRole: "agent-run", Accessor: "acc-1", NotAfter: time.Now().Add(time.Hour)}
	gone := broker.JournalEntry{Run: "r", Accessor: "acc-0"}
	ctx := context.Background()
	for _, e := range []error{dead.Put(ctx, gone), dead.Put(ctx, entry), dead.Delete(ctx, "acc-0")} {
		if e != nil {
			t.Fatal(e)
		}
	}
	die(t, dead)
	var asked []string
	refuse := func(_ context.Context, es []broker.JournalEntry) ([]string, error) {
		for _, e := range es {
			asked = append(asked, e.Accessor)
		}
		return nil, errors.New("vault is away")
	}
	rep, err := s.Sweep(ctx, refuse)
	if err == nil || len(rep.Unconfirmed) != 1 || rep.Live != 1 || !slices.Equal(asked, []string{"acc-1"}) {
		t.Errorf("first sweep: %+v, %v, asked %v", rep, err, asked)
	}
	if _, err := os.Stat(dead.path); err != nil {
		t.Errorf("an unconfirmed run was forgotten: %v", err)
	}
	rep, err = s.Sweep(ctx, func(_ context.Context, es []broker.JournalEntry) ([]string, error) {
		return []string{es[0].Accessor}, nil
	})
	if err != nil || len(rep.Ended) != 1 || rep.Live != 1 {
		t.Errorf("second sweep: %+v, %v", rep, err)
	}
	if _, err := os.Stat(dead.path); err == nil {
		t.Error("the dead run's file is still there")
	}
	if _, err := os.Stat(live.path); err != nil {
		t.Errorf("the live run's file: %v", err)
	}
}

func TestSweepRemovesATornBeginning(t *testing.T) {
	s := newStateDir(t)
	id := identity.NewRunID()
	if err := os.WriteFile(filepath.Join(s.dir, "."+id), []byte(`{"versi`), 0o600); err != nil {
		t.Fatal(err)
	}
	if rep, err := s.Sweep(context.Background(), nil); err != nil || len(rep.Ended) != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "*r-*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestTornJournalLineIsLeftOut(t *testing.T) {
	head := `{"version":1,"run":"r-x","slot":3}` + "\n"
	put := `{"slot":3,"put":{"run":"r-x","address":"a","token_role":"t","accessor":"acc-1","not_after":"2026-01-01T00:00:00Z"}}` + "\n"
	h, open, err := readState(strings.NewReader(head + put + `{"slot":3,"delete":"ac`))
	if err != nil || h.Slot != 3 || len(open) != 1 {
		t.Errorf("%+v %+v %v", h, open, err)
	}
	if _, _, err := readState(strings.NewReader(`{"version":2}`)); err == nil {
		t.Error("another version was read")
	}
}

// TestKillTreeEndsOnlyTheRunsProcesses starts processes that look like a
// helper's, with this run's id and with another's.
func TestKillTreeEndsOnlyTheRunsProcesses(t *testing.T) {
	id, other := identity.NewRunID(), identity.NewRunID()
	start := func(argv0, id string) *exec.Cmd {
		cmd := exec.Command("/bin/sh")
		cmd.Args = []string{argv0, "-c", "sleep 60 & wait", id}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	mine, neighbour, stranger := start(early.Helper, id), start(early.Helper, other), start("someone", id)
	killTree(id, []uint32{uint32(os.Getuid())})
	if err := mine.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the run's own process: %v", err)
	}
	for name, c := range map[string]*exec.Cmd{"another run's": neighbour, "not ours": stranger} {
		if err := c.Process.Signal(os.Signal(sigZero)); err != nil {
			t.Errorf("%s process was hit: %v", name, err)
		}
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

// TestSweepNeverHindersABeginning: a sweep beside many starts makes none fail.
func TestSweepNeverHindersABeginning(t *testing.T) { // I9
	s := newStateDir(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := s.Sweep(context.Background(), nil); err != nil {
						t.Errorf("sweep: %v", err)
						return
					}
				}
			}
		}()
	}
	for range 300 {
		st, err := s.begin(identity.NewRunID(), 64, pairsFrom(200000))
		if err != nil {
			t.Errorf("begin: %v", err)
			break
		}
		if err := st.end(); err != nil {
			t.Errorf("end: %v", err)
			break
		}
	}
	close(stop)
	wg.Wait()
}
