package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// followEvery is how often Read looks for new records with Filter.Follow.
const followEvery = 200 * time.Millisecond

// Filter selects records for Read. Zero values select everything.
type Filter struct {
	Run    string // a run's id, or the start of one
	Stream string // a stream's id
	Tail   int    // only the latest Tail records, by time; 0: all
	Follow bool   // go on with records as they are written, until the context ends
}

func (f Filter) wants(r *Record) bool {
	return f.Run == "" || r.Run != nil && strings.HasPrefix(r.Run.ID, f.Run)
}

// Read yields the records of dir. Without Tail they come stream by stream, oldest
// stream first, each in order; with Tail the latest ones, by time. A line that is not a
// record is yielded as an error, and reading goes on after it. Read does not verify:
// what it yields is what the file says.
func Read(ctx context.Context, dir string, f Filter) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		r := &reader{ctx: ctx, dir: dir, f: f, at: map[string]position{}}
		if err := r.read(yield); err != nil && !errors.Is(err, errStop) {
			yield(nil, fmt.Errorf("audit: read %s: %w", dir, err))
		}
	}
}

var errStop = errors.New("the caller has enough")

// position is where a stream was read up to.
type position struct {
	segment int
	off     int64
}

type reader struct {
	ctx context.Context
	dir string
	f   Filter
	at  map[string]position
}

func (r *reader) read(yield func(*Record, error) bool) error {
	if _, err := os.Stat(r.dir); err != nil {
		return err
	}
	if err := r.past(yield); err != nil || !r.f.Follow {
		return err
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := r.round(yield); err != nil {
			return err
		}
	}
}

func (r *reader) past(yield func(*Record, error) bool) error {
	if r.f.Tail == 0 {
		return r.round(yield)
	}
	last, err := r.latest()
	if err != nil {
		return err
	}
	for _, rec := range last {
		if !yield(rec, nil) {
			return errStop
		}
	}
	return nil
}

// round yields what was not read yet.
func (r *reader) round(yield func(*Record, error) bool) error {
	names, err := r.streams()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := r.stream(name, yield); err != nil {
			return err
		}
	}
	return nil
}

// streams lists the streams by name, which is by age.
func (r *reader) streams() ([]string, error) {
	if r.f.Stream != "" {
		if filepath.Base(r.f.Stream) != r.f.Stream {
			return nil, errors.New("no such stream")
		}
		return []string{r.f.Stream}, nil
	}
	entries, err := os.ReadDir(filepath.Join(r.dir, streamsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func (r *reader) stream(name string, yield func(*Record, error) bool) error {
	dir := filepath.Join(r.dir, streamsDir, name)
	numbers, _, err := segments(dir)
	if err != nil {
		return err
	}
	pos := r.at[name]
	for _, n := range numbers {
		if n < pos.segment {
			continue
		}
		if n > pos.segment {
			pos = position{segment: n}
		}
		pos.off, err = r.segment(segmentPath(dir, n), pos.off, yield)
		r.at[name] = pos
		if err != nil {
			return err
		}
	}
	return nil
}

// segment yields the records from off on and returns where the lines end.
func (r *reader) segment(name string, off int64, yield func(*Record, error) bool) (int64, error) {
	f, err := openRegular(name)
	if err != nil {
		return off, err
	}
	defer f.Close()
	if _, err := f.Seek(off, io.SeekStart); err != nil {
		return off, err
	}
	l := newLines(f, make([]byte, 64<<10))
	l.off = off
	for {
		at := l.off
		line, ok := l.next()
		if !ok {
			return l.off, l.err
		}
		if bytes.IndexByte(line, 0) >= 0 { // being written right now
			return at, nil
		}
		if err := r.ctx.Err(); err != nil {
			return l.off, err
		}
		if r.f.Run != "" && !bytes.Contains(line, []byte(r.f.Run)) {
			continue
		}
		rec := new(Record)
		if err := json.Unmarshal(line, rec); err != nil {
			if !yield(nil, fmt.Errorf("audit: %s: at byte %d: not a record", name, l.off)) {
				return l.off, errStop
			}
			continue
		}
		rec.line = bytes.Clone(line)
		if r.f.wants(rec) && !yield(rec, nil) {
			return l.off, errStop
		}
	}
}

// latest returns the last records by time, and leaves the positions behind them.
func (r *reader) latest() ([]*Record, error) {
	names, err := r.streams()
	if err != nil {
		return nil, err
	}
	var last []*Record
	for _, name := range names {
		err := r.stream(name, func(rec *Record, err error) bool {
			if err == nil {
				last = append(last, rec)
			}
			if len(last) >= 2*r.f.Tail+1024 {
				last = newest(last, r.f.Tail)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return newest(last, r.f.Tail), nil
}

// newest returns the n latest records, in order of time.
func newest(rs []*Record, n int) []*Record {
	slices.SortStableFunc(rs, func(a, b *Record) int { return strings.Compare(a.Time, b.Time) })
	return rs[max(len(rs)-n, 0):]
}
