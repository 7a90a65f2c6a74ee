package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// RunInfo is one run that has a state file.
type RunInfo struct {
	ID          string    `json:"run_id"`
	Live        bool      `json:"live"`
	Started     time.Time `json:"started"`
	Credentials int       `json:"credentials"` // accessors not confirmed revoked
}

// removeWait bounds how long Remove waits for the owner of a live run to end it.
const removeWait = 30 * time.Second

// List returns the runs that have a state file: live ones, and dead ones that
// no start has swept yet. Files of processes without a run are among them.
func (s *StateDir) List() ([]RunInfo, error) {
	files, err := filepath.Glob(filepath.Join(s.dir, "*.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	out := []RunInfo{}
	for _, p := range files {
		info, err := readInfo(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it just ended
		}
		if err != nil {
			return nil, fmt.Errorf("state: %w", err)
		}
		out = append(out, info)
	}
	return out, nil
}

func readInfo(p string) (RunInfo, error) {
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		return RunInfo{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return RunInfo{}, err
	}
	_, open, err := readState(f)
	if err != nil {
		return RunInfo{}, err
	}
	info := RunInfo{ID: strings.TrimSuffix(filepath.Base(p), ".jsonl"), Started: fi.ModTime(), Credentials: len(open)}
	if born, ok := birth(info.ID); ok {
		info.Started = born
	}
	info.Live = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
	return info, nil
}

// birth is the time in a UUIDv7 (RFC 9562, 48 bits of Unix milliseconds).
func birth(id string) (time.Time, bool) {
	hex := strings.ReplaceAll(strings.TrimPrefix(id, "r-"), "-", "")
	if len(hex) != 32 {
		return time.Time{}, false
	}
	var ms int64
	if _, err := fmt.Sscanf(hex[:12], "%012x", &ms); err != nil {
		return time.Time{}, false
	}
	return time.UnixMilli(ms).UTC(), true
}

// ErrNoRun says that no run has this id.
var ErrNoRun = errors.New("no such run")

// Remove ends run id: a live one by killing its sandbox, after which its owner
// takes the credentials back and writes its end; a dead one by sweeping it.
func (s *StateDir) Remove(ctx context.Context, id string, revoke Revoker) error {
	if !runID().MatchString(id) {
		return fmt.Errorf("%q is not a run id: %w", id, ErrNoRun)
	}
	p := filepath.Join(s.dir, id+".jsonl")
	f, err := os.Open(p)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", id, ErrNoRun)
	}
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	head, _, err := readState(f)
	_ = f.Close()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	for ctx.Err() == nil {
		done, live, err := sweepOne(ctx, p, id, findCgroups("/proc"), revoke)
		switch {
		case done:
			return nil
		case !live:
			return err
		}
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			return nil // its owner ended it
		}
		killTree(id, head.UIDs)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond): // its owner cleans up
		}
	}
	return fmt.Errorf("%s: its owner did not end it in %s; hint: kill the warder process that owns it", id, removeWait)
}
