package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"warder/internal/identity"
)

// pending holds what a stream still owes: reservations without an outcome, and runs
// without an end.
type pending struct {
	requests map[string]*Record // by request id
	runs     map[string]*Record // by run id
}

func newPending() pending {
	return pending{requests: map[string]*Record{}, runs: map[string]*Record{}}
}

// note takes in a record that is in the log.
func (p pending) note(r *Record) {
	switch {
	case r.Event == EventRequest && r.Request != nil && r.Stage == StageReserved:
		p.requests[r.Request.ID] = r
	case r.Event == EventRequest && r.Request != nil:
		delete(p.requests, r.Request.ID)
	case r.Event == EventRunStart && r.Run != nil:
		p.runs[r.Run.ID] = r
	case r.Event == EventRunEnd && r.Run != nil:
		delete(p.runs, r.Run.ID)
	}
}

// settles says whether r closes something that is open. Such a line is never given up.
func (p pending) settles(r *Record) bool {
	switch {
	case r.Event == EventRunEnd:
		return true
	case r.Event == EventRequest && r.Request != nil && r.Stage != StageReserved:
		return p.requests[r.Request.ID] != nil
	}
	return false
}

// closing returns the records that close what is open.
func (p pending) closing(why string) []*Record {
	var out []*Record
	for _, id := range slices.Sorted(maps.Keys(p.requests)) {
		r := p.requests[id]
		out = append(out, &Record{
			Event: EventRequest, Stage: StageInterrupted, Run: r.Run, Request: r.Request, Dst: r.Dst, Mode: r.Mode,
			Verdict: r.Verdict, Reason: r.Reason, Rule: r.Rule, Would: r.Would, Policy: r.Policy, Detail: why,
		})
	}
	for _, id := range slices.Sorted(maps.Keys(p.runs)) {
		out = append(out, &Record{
			Event: EventRunEnd, Run: p.runs[id].Run, Detail: why, RunEnd: &RunEnd{Cause: StageInterrupted},
		})
	}
	return out
}

// owes says, from the bytes of a sound line, whether pending could need it.
func owes(line []byte) bool {
	_, after, _ := bytes.Cut(line, []byte(`,"event":"`))
	return bytes.HasPrefix(after, []byte(EventRequest+`"`)) || bytes.HasPrefix(after, []byte(`run.`))
}

// claimDead locks every open stream whose writer is gone. The registry is locked.
func claimDead(o *Options, r *registry) []*stream {
	var dead []*stream
	for _, name := range r.live() {
		if filepath.Base(name) != name {
			continue
		}
		s := &stream{o: o, name: name, dir: filepath.Join(o.Dir, streamsDir, name)}
		switch err := s.take(); {
		case err == nil:
			dead = append(dead, s)
		case !errors.Is(err, errLocked):
			o.warn("stream %s: cannot be recovered: %v", name, err)
		}
	}
	return dead
}

// recoverStream closes a dead stream: it cuts a torn end off, writes the closing lines
// of what was open, and seals it. A stream with any other damage is left as it is.
func recoverStream(ctx context.Context, s *stream) error {
	owed, lost, err := s.replay()
	if err != nil {
		return err
	}
	records := owed.closing("the writer died before the outcome was known")
	var lines []byte
	for _, r := range records {
		body, err := encodeBody(r)
		if err != nil {
			return err
		}
		start := len(lines)
		lines = appendLine(lines, s.frame(identity.AppendID(nil), s.o.Clock()), &s.prev, body)
		s.seq++
		s.tree.add(lines[start : len(lines)-1])
	}
	if err := writeFull(s.seg, lines, s.durable); err != nil {
		return err
	}
	s.durable += int64(len(lines))
	if err := s.trim(); err != nil {
		return err
	}
	r, err := lockRegistry(ctx, s.o)
	if err != nil {
		return err
	}
	err = s.register(r, regRecover, lost)
	if err = errors.Join(err, r.close()); err != nil {
		return err
	}
	s.o.warn("stream %s: recovered: %d records, %d closed as interrupted, %d unfinished bytes cut off",
		s.name, s.tree.size, len(records), lost.len())
	return nil
}

func (c *cut) len() int64 {
	if c == nil {
		return 0
	}
	return c.Bytes
}

// frame is the frame of the stream's next line.
func (s *stream) frame(id []byte, at time.Time) frame {
	return frame{id: id, at: at, stream: s.name, seq: s.seq}
}

// replay reads the stream up to its end, opens its last segment and cuts a tear off.
func (s *stream) replay() (pending, *cut, error) {
	owed := newPending()
	c := newChain(s.name)
	var damage error
	c.find = func(kind string, segment int, seq uint64, what string) {
		if damage == nil {
			damage = fmt.Errorf("%s: segment %d, record %d: %s", kind, segment, seq, what)
		}
	}
	c.line = func(line []byte, _ parsed) {
		if !owes(line) {
			return
		}
		r := new(Record)
		if err := json.Unmarshal(line, r); err != nil {
			c.find(VerdictAltered, c.segment, c.seq, "not a record")
			return
		}
		owed.note(r)
	}
	w, err := c.walk(s.dir, true)
	if err == nil {
		err = damage
	}
	if err == nil {
		err = s.pledged(c)
	}
	if err != nil {
		return owed, nil, fmt.Errorf("left as it is: %w; hint: warder audit verify", err)
	}
	s.state = c.state
	return owed, tornCut(w.torn), s.reopen(w)
}

func tornCut(b []byte) *cut {
	if len(b) == 0 {
		return nil
	}
	return &cut{int64(len(b)), hexSum(b)}
}

// pledged checks the stream against its checkpoint, so that a cut is not sealed over.
func (s *stream) pledged(c *chain) error {
	text, err := readSmall(s.o.FS, filepath.Join(s.dir, checkpointFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	body, _, _ := bytes.Cut([]byte(text), []byte("\n\n"))
	cp, err := parseCheckpoint(string(body) + "\n")
	if err != nil {
		return err
	}
	if cp.size > c.tree.size {
		return fmt.Errorf("%s: the checkpoint is over %d records, of which %d are here", VerdictTruncated, cp.size, c.tree.size)
	}
	return nil
}

// reopen goes on writing where the lines end.
func (s *stream) reopen(w walked) error {
	for n := w.segments; n > w.last; n-- { // made ready, never written
		if err := s.o.FS.Remove(s.path(n)); err != nil {
			return err
		}
	}
	f, err := s.o.FS.OpenFile(s.path(w.last), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	s.seg, s.segNo, s.durable = f, w.last, w.end
	if err := f.Truncate(w.end); err != nil {
		return err
	}
	return f.Datasync()
}

// dropStrays removes what writers that are gone left in the folder of files on their
// way. The registry is locked, so no stream is being sealed.
func dropStrays(o *Options, r *registry) error {
	dir := filepath.Join(o.Dir, tempDir)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		stream, _, _ := strings.Cut(e.Name(), ".")
		if slices.Contains(r.live(), stream) {
			continue
		}
		if err := o.FS.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return err
}
