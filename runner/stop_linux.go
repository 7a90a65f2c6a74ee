package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"warder/broker"
)

// stopKept is how long a stop is kept: far longer than any run that it is about.
const stopKept = 30 * 24 * time.Hour

// credentialName is what the name of a credential looks like; anything else never
// becomes a file name.
var credentialName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`) })

// A stop ends the use of credentials by runs that began before it. It is a file
// of the state folder, so that it reaches every process that has the folder, and
// its modification time is the time of the stop. Later runs are not affected.

func (s *StateDir) stops() string { return filepath.Join(filepath.Dir(s.dir), "stops") }

// stopName is the file of a stop: of one run, of one credential, or of all ("", "").
func stopName(run, credential string) (string, error) {
	switch {
	case run == "" && credential == "":
		return "all", nil
	case credential == "" && runID().MatchString(run):
		return "run-" + run, nil
	case run == "" && credentialName().MatchString(credential):
		return "credential-" + credential, nil
	}
	return "", fmt.Errorf("stop: %q, %q: neither a run nor a credential", run, credential)
}

// Stop ends the use of a run's credentials, of one credential by all runs, or of
// everything (both empty). It has an effect on the next request.
func (s *StateDir) Stop(run, credential string) error {
	name, err := stopName(run, credential)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.stops(), 0o700); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	old, err := os.ReadDir(s.stops())
	if err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	for _, de := range old {
		if fi, err := de.Info(); err == nil && time.Since(fi.ModTime()) > stopKept {
			_ = os.Remove(filepath.Join(s.stops(), de.Name()))
		}
	}
	path := filepath.Join(s.stops(), name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	// The kernel's own stamp is as old as its last tick.
	if now := time.Now(); os.Chtimes(path, now, now) != nil {
		return fmt.Errorf("stop: %s: its time cannot be set", path)
	}
	return nil
}

// Stopped reports whether a run that began at since may use a credential no more.
// What cannot be read counts as a stop.
func (s *StateDir) Stopped(run, credential string, since time.Time) bool {
	dir := s.stops()
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	for _, name := range []string{"all", "run-" + run, "credential-" + credential} {
		fi, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil || !fi.ModTime().Before(since):
			return true
		}
	}
	return false
}

// Journals returns what the state files of a run, or of all ("" ), name as not yet
// revoked: accessors and leases of tokens of runs. The files stay as they are; a
// live run's owner writes there.
func (s *StateDir) Journals(run string) ([]broker.JournalEntry, error) {
	pattern := "r-*.jsonl"
	if run != "" {
		if !runID().MatchString(run) {
			return nil, fmt.Errorf("%q is not a run id: %w", run, ErrNoRun)
		}
		pattern = run + ".jsonl"
	}
	files, err := filepath.Glob(filepath.Join(s.dir, pattern))
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	if run != "" && len(files) == 0 {
		return nil, fmt.Errorf("%s: %w", run, ErrNoRun)
	}
	var out []broker.JournalEntry
	for _, p := range files {
		f, err := os.Open(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it just ended
		}
		if err != nil {
			return nil, fmt.Errorf("state: %w", err)
		}
		_, open, err := readState(f)
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		for _, e := range open {
			if !e.Login {
				out = append(out, e)
			}
		}
	}
	return out, nil
}
