package audit

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
)

// Folders of what records refer to by content. They hold no records.
const (
	inputsDir   = "inputs"
	policiesDir = "policies"
)

// Bounds of what waits to be written behind.
const (
	maxKeepQueue = 4 << 20 // bytes of inputs
	maxKeepKnown = 4096    // names that are known to be in the store
)

const digestPrefix = "sha256:"

// inputStore writes decision inputs behind: one goroutine, from Open to close. What finds
// no room in the queue, or on the disk, is counted and told, and holds nobody up.
type inputStore struct {
	fs   FS
	dir  string
	temp string
	tell func(dropped int, why error)
	done chan struct{} // closed when the goroutine has ended
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	queue   []keptInput
	bytes   int             // of queue
	known   map[string]bool // names in the store or on their way there
	made    bool            // the folder exists
	dropped int             // since the last tell
	why     error           // of the first of them
	closed  bool
}

type keptInput struct {
	name    string
	content []byte
}

var errKeepFull = errors.New("they came faster than the disk takes them")

func newInputStore(o *Options, stream string, tell func(int, error)) *inputStore {
	s := &inputStore{
		fs: o.FS, dir: filepath.Join(o.Dir, inputsDir), temp: filepath.Join(o.Dir, tempDir, stream+".input"), tell: tell,
		done: make(chan struct{}), wake: make(chan struct{}, 1), known: map[string]bool{},
	}
	go s.run()
	return s
}

// KeepInput stores a decision's input under its content's digest ("sha256:" and hex),
// which records name as input_ref. It never waits: the input is written behind, and when
// too many wait it is dropped, which the log tells. content must not be changed afterwards.
func (l *Log) KeepInput(ref string, content []byte) { l.inputs.keep(ref, content) }

func (s *inputStore) keep(ref string, content []byte) {
	name, ok := strings.CutPrefix(ref, digestPrefix)
	if !ok || hexSum(content) != name {
		return // not what it says it is; nobody could use it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.known[name] || s.closed:
		return
	case s.bytes+len(content) > maxKeepQueue:
		s.drop(errKeepFull)
		return
	case len(s.known) >= maxKeepKnown:
		clear(s.known)
	}
	s.known[name] = true
	s.bytes += len(content)
	s.queue = append(s.queue, keptInput{name, content})
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// drop counts an input that is not kept; mu is held.
func (s *inputStore) drop(why error) {
	if s.dropped++; s.why == nil {
		s.why = why
	}
}

func (s *inputStore) run() {
	defer close(s.done)
	for {
		<-s.wake
		for {
			s.mu.Lock()
			batch := s.queue
			s.queue = nil
			closed := s.closed
			s.mu.Unlock()
			if len(batch) == 0 {
				s.confess()
				if closed {
					return
				}
				break
			}
			for _, in := range batch {
				err := s.write(in)
				s.mu.Lock()
				if s.bytes -= len(in.content); err != nil {
					s.drop(err)
					delete(s.known, in.name)
				}
				s.mu.Unlock()
			}
		}
	}
}

// confess tells what was dropped since the last time.
func (s *inputStore) confess() {
	s.mu.Lock()
	n, why := s.dropped, s.why
	s.dropped, s.why = 0, nil
	s.mu.Unlock()
	if n > 0 {
		s.tell(n, why)
	}
}

// write puts one input in place as a whole, unless it is there.
func (s *inputStore) write(in keptInput) error {
	name := filepath.Join(s.dir, in.name)
	if !s.made {
		if err := s.fs.MkdirAll(s.dir, 0o700); err != nil {
			return err
		}
		s.made = true
	}
	if _, err := s.fs.Lstat(name); err == nil {
		return nil
	}
	if err := s.fs.Remove(s.temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := s.fs.OpenFile(s.temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = writeFull(f, in.content, 0)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return s.fs.Rename(s.temp, name)
}

// close writes what waits, until ctx ends.
func (s *inputStore) close(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	select {
	case <-s.done:
	case <-ctx.Done():
	}
}

// tellDropped writes an anomaly for inputs that are not in the store.
func (l *Log) tellDropped(n int, why error) {
	text := fmt.Sprintf("%s not kept in %s/: %v", Count(uint64(n), "decision input"), inputsDir, why)
	l.o.warn("%s", text)
	l.Append(context.Background(), &Record{Event: EventAnomaly, Detail: text})
}

// ReadInput returns the stored input that ref ("sha256:" and hex) names. The content is
// checked against its name.
func ReadInput(dir, ref string) ([]byte, error) {
	name, ok := strings.CutPrefix(ref, digestPrefix)
	if b, err := hex.DecodeString(name); !ok || err != nil || len(b)*2 != hashHex {
		return nil, fmt.Errorf("audit: input %s: not sha256: and 64 hexadecimal digits", Clean(ref, capWord))
	}
	f, err := openRegular(filepath.Join(dir, inputsDir, name))
	if err != nil {
		return nil, fmt.Errorf("audit: input %s: %w", ref, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("audit: input %s: %w", ref, err)
	}
	b := make([]byte, min(st.Size(), maxKeepQueue))
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("audit: input %s: %w", ref, err)
	}
	if hexSum(b) != name {
		return nil, fmt.Errorf("audit: input %s: its content is not what its name says", ref)
	}
	return b, nil
}

// KeepPolicy stores a policy's files, by their slash-separated relative paths, in
// DIR/policies/<hex of digest>/, so that the text that decided can be read later. A
// digest that is there already is left as it is.
func (l *Log) KeepPolicy(digest string, files map[string][]byte) error {
	if err := l.keepPolicy(digest, files); err != nil {
		return fmt.Errorf("audit: keep policy %s: %w", Clean(digest, capWord), err)
	}
	return nil
}

func (l *Log) keepPolicy(digest string, files map[string][]byte) error {
	name, ok := strings.CutPrefix(digest, digestPrefix)
	if b, err := hex.DecodeString(name); !ok || err != nil || len(b)*2 != hashHex {
		return errors.New("not sha256: and 64 hexadecimal digits")
	}
	final := filepath.Join(l.o.Dir, policiesDir, name)
	if _, err := l.o.FS.Lstat(final); err == nil {
		return nil
	}
	temp := filepath.Join(l.o.Dir, policiesDir, "."+name+"."+l.c.s.name)
	err := l.writePolicy(temp, files)
	if err == nil {
		err = l.o.FS.Rename(temp, final)
	}
	if err != nil {
		_ = os.RemoveAll(temp) // the first error is the one to tell
		if _, there := l.o.FS.Lstat(final); there == nil {
			return nil // another process was first
		}
	}
	return err
}

func (l *Log) writePolicy(dir string, files map[string][]byte) error {
	for file, content := range files {
		if !filepath.IsLocal(filepath.FromSlash(file)) || path.Clean(file) != file {
			return fmt.Errorf("%q leads out of the folder", file)
		}
		name := filepath.Join(dir, filepath.FromSlash(file))
		if err := l.o.FS.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		if err := writeNew(l.o.FS, name, string(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}
