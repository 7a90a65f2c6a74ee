package audit

import (
	"errors"
	"runtime"
	"time"
)

// Sizes and times of the committer.
const (
	maxGroup    = 1 << 20 // bytes written with one call
	maxUnsynced = 1 << 20 // bytes that relaxed records may leave to the kernel
	frameBytes  = 512     // what a line is longer than its body, at most

	idleTick        = time.Second            // between looks at an idle stream
	unsyncedTick    = 200 * time.Millisecond // longest time that relaxed records wait for fdatasync
	checkpointEvery = 60                     // idle ticks between checkpoints of a growing stream
	spaceEvery      = 30                     // idle ticks between looks at the free space
)

// committer is the only writer of a stream: one goroutine, from Open to Close.
type committer struct {
	l       *Log
	s       *stream
	group   group
	pending pending
	kept    []*entry // closing records that could not be written yet; their futures are answered
	full    error    // why there is no next segment
	refused refusal
	low     bool   // little space was said
	signed  uint64 // size of the stream at the last checkpoint
	ranEnd  bool   // a run has ended since: sign at the next tick, unless Close comes first
	ticks   int
	ended   bool
}

// group is the lines that one call writes.
type group struct {
	entries []*entry
	buf     []byte
	ends    []int
	relaxed int
	prev    string // the chain's hash before the group
}

// refusal counts the records that were refused since the last one that was not.
type refusal struct {
	records  int
	from, to string
	why      error
}

func newCommitter(l *Log, s *stream) *committer {
	return &committer{l: l, s: s, pending: newPending()}
}

func (c *committer) run() {
	defer close(c.l.done)
	c.checkSpace()
	timer := time.NewTimer(idleTick)
	defer timer.Stop()
	for !c.ended {
		select {
		case <-c.l.wake:
		case <-timer.C:
			c.tick()
		}
		runtime.Gosched() // whom the last group woke may come along at once
		c.work(c.l.take())
		if len(c.s.unsynced) > 0 {
			timer.Reset(unsyncedTick)
		} else {
			timer.Reset(idleTick)
		}
	}
}

// work commits records and does tasks in the order they came.
func (c *committer) work(batch []*entry) {
	from := 0
	for i, e := range batch {
		if e.task == nil {
			continue
		}
		c.commit(batch[from:i])
		from = i + 1
		e.answer(e.task())
	}
	c.commit(batch[from:])
}

// commit writes a batch, in as few groups as it takes, after what is kept.
func (c *committer) commit(batch []*entry) {
	if len(batch)+len(c.kept) == 0 {
		return
	}
	kept := c.kept
	c.kept = nil
	batch = append(kept[:len(kept):len(kept)], batch...)
	if err := c.mend(); err != nil {
		c.refuse(batch, err)
		return
	}
	c.full = nil
	for i, e := range batch {
		n := len(e.body) + frameBytes
		if len(c.group.buf) > 0 && (len(c.group.buf)+n > maxGroup || !c.s.room(len(c.group.buf)+n, false)) {
			if err := c.flush(); err != nil {
				c.refuse(batch[i:], err)
				return
			}
		}
		if !c.s.room(n, false) && !c.rotate() && !c.settles(e) {
			c.refuse([]*entry{e}, c.full)
			continue
		}
		c.stage(e)
	}
	if err := c.flush(); err != nil {
		return
	}
	c.l.setFault(c.wrap(c.full))
	c.confess()
}

// settles says whether e may use the reserve, and is kept when the disk fails.
func (c *committer) settles(e *entry) bool {
	if c.pending.settles(e.rec) {
		return true
	}
	for _, g := range c.group.entries { // reserved in the same group
		if e.rec.Request != nil && g.rec.Request != nil && g.rec.Request.ID == e.rec.Request.ID {
			return e.rec.Event == EventRequest && e.rec.Stage != StageReserved
		}
	}
	return false
}

// stage adds e's line to the group.
func (c *committer) stage(e *entry) {
	g := &c.group
	if len(g.entries) == 0 {
		g.prev = c.s.prev
	}
	f := frame{id: e.id, time: e.time, stream: c.s.name, seq: c.s.seq, prev: c.s.prev}
	g.buf, c.s.prev = appendLine(g.buf, f, e.body)
	c.s.seq++
	g.ends = append(g.ends, len(g.buf))
	g.entries = append(g.entries, e)
	if e.relaxed {
		g.relaxed++
	}
}

// flush writes the group, and syncs it unless all of it is relaxed. After an error the
// group is not in the chain, but for one whose relaxed records were answered for.
func (c *committer) flush() error {
	g := &c.group
	if len(g.entries) == 0 {
		return nil
	}
	defer g.reset()
	err := c.s.write(g.buf)
	if errors.Is(err, errReplaced) {
		if err = c.mend(); err == nil {
			err = c.s.write(g.buf)
		}
	}
	if err != nil {
		c.unstage()
		c.refuse(g.entries, err)
		return err
	}
	if g.relaxed > 0 { // answered for, so it stays
		c.s.unsynced = append(c.s.unsynced, g.buf...)
		c.advance()
		for _, e := range g.entries {
			if e.relaxed {
				e.answer(nil)
			}
		}
		if g.relaxed == len(g.entries) && len(c.s.unsynced) <= maxUnsynced {
			return nil
		}
	}
	if err := c.s.sync(); err != nil {
		if g.relaxed > 0 {
			c.l.setFault(c.wrap(err))
			for _, e := range g.entries {
				e.answer(c.wrap(err))
			}
			return err
		}
		c.unstage()
		c.refuse(g.entries, err)
		return err
	}
	for _, e := range g.entries {
		e.answer(nil)
	}
	c.s.settle()
	if g.relaxed == 0 {
		c.s.durable += int64(len(g.buf))
		c.advance()
	}
	return nil
}

// unstage takes the group out of the chain again.
func (c *committer) unstage() {
	c.s.seq, c.s.prev = c.s.seq-uint64(len(c.group.entries)), c.group.prev
}

// advance takes the group's lines for written.
func (c *committer) advance() {
	g := &c.group
	from := 0
	for i, e := range g.entries {
		c.s.tree.add(g.buf[from : g.ends[i]-1])
		from = g.ends[i]
		c.pending.note(e.rec)
		c.ranEnd = c.ranEnd || e.rec.Event == EventRunEnd
		c.l.sem.Release(e.weight)
		e.weight = 0
		e.staged()
	}
}

func (g *group) reset() {
	clear(g.entries)
	if cap(g.buf) > 2*maxGroup {
		g.buf = nil
	}
	g.entries, g.buf, g.ends, g.relaxed = g.entries[:0], g.buf[:0], g.ends[:0], 0
}
