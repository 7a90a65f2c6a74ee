package audit

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/mod/sumdb/tlog"
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
	base    []byte // room of buf, from the start of a block on
	shift   int    // where buf starts in base, and in a block of the file
	buf     []byte
	leaves  []tlog.Hash // of the lines, made while they are in the processor's caches
	relaxed int
	prev    hexHash // the chain's hash before the group
}

// refusal counts the records that were refused since the last one that was not.
type refusal struct {
	records  int
	from, to time.Time
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
	var room []*entry // for the next batch
	for !c.ended {
		select {
		case <-c.l.wake:
		case <-timer.C:
			c.tick()
		}
		runtime.Gosched() // whom the last group woke may come along at once
		batch := c.l.take(room)
		c.work(batch)
		clear(batch)
		room = batch
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
	if len(c.kept) > 0 {
		batch = append(c.kept, batch...)
		c.kept = nil
	}
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
		g.shift = int(c.s.end() % blockSize)
		g.buf = g.base[min(g.shift, len(g.base)):][:0]
	}
	if n := frameBytes + len(e.body); cap(g.buf)-len(g.buf) < n {
		g.grow(n)
	}
	start := len(g.buf)
	g.buf = appendLine(g.buf, c.s.frame(e.id, e.at), &c.s.prev, e.body)
	c.s.seq++
	g.leaves = append(g.leaves, c.s.tree.hashLeaf(g.buf[start:len(g.buf)-1]))
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
	var weight int64
	for i, e := range g.entries {
		c.s.tree.addHash(g.leaves[i])
		c.pending.note(e.rec)
		c.ranEnd = c.ranEnd || e.rec.Event == EventRunEnd
		weight += e.weight
		e.weight = 0
		e.staged()
	}
	c.l.sem.Release(weight)
}

// grow makes room for n more bytes. Their place in memory and in the file stay apart by
// whole blocks, which is what writing past the page cache takes.
func (g *group) grow(n int) {
	size := max(2*len(g.base), g.shift+len(g.buf)+n, 64<<10)
	base := make([]byte, (size+blockSize-1)/blockSize*blockSize)
	g.buf = base[g.shift:][:copy(base[g.shift:], g.buf)]
	g.base = base
}

func (g *group) reset() {
	clear(g.entries)
	if len(g.base) > 2*maxGroup {
		g.base = nil
	}
	g.entries, g.buf, g.leaves, g.relaxed = g.entries[:0], g.buf[:0], g.leaves[:0], 0
}
