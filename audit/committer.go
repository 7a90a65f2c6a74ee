package audit

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Sizes and times of the committer.
const (
	maxGroup    = 1 << 20 // bytes written with one call
	maxUnsynced = 1 << 20 // bytes that relaxed records may leave to the kernel
	frameBytes  = 512     // what a line is longer than its body, at most

	unsyncedTick    = 200 * time.Millisecond // longest time that relaxed records wait for fdatasync
	beats           = 5                      // of unsyncedTick, from one look at a stream to the next
	checkpointEvery = 60                     // looks between checkpoints of a growing stream
	spaceEvery      = 30                     // looks between those at the free space

	quickDisk = 2 * time.Millisecond // an fdatasync that its waiter may do itself
)

// committer is the only writer of a stream, from Open to Close: whoever holds mu, which is
// its goroutine, or a caller that leads. While the disk syncs one flight of lines, the
// next is made and written, so that a line waits for the rest of one fdatasync and for its
// own.
type committer struct {
	l        *Log
	mu       sync.Mutex
	s        *stream
	group    group
	written  flight        // in the kernel; the next fdatasync is theirs
	syncing  flight        // what the fdatasync under way is for
	arrived  flight        // synced, and not answered for yet
	spare    flight        // empty, for its room
	busy     bool          // an fdatasync is under way
	alone    bool          // a caller leads: the fdatasync is its own to do
	led      bool          // the fdatasync under way is a leader's, who waits for nobody
	outcomes chan error    // of the fdatasync under way; capacity 1
	synced   chan struct{} // outcomes has one that is not a leader's; capacity 1
	slow     atomic.Bool   // the last fdatasync took longer than quickDisk
	room     []*entry      // for the next batch
	batch    []*entry      // taken from the queue, not answered for yet
	timer    *time.Timer
	hasty    bool // timer is set for relaxed records
	beat     int  // since the last tick
	pending  pending
	kept     []*entry // closing records that could not be written yet; their futures are answered
	full     error    // why there is no next segment
	refused  refusal
	low      bool   // little space was said
	signed   uint64 // size of the stream at the last checkpoint
	ranEnd   bool   // a run has ended since: sign at the next tick, unless Close comes first
	ticks    int
	broken   error // a fault of our own: nothing is written any more
	ended    bool
}

// group is the lines that one call writes.
type group struct {
	base    []byte // room of buf, from the start of a block on
	shift   int    // where buf starts in base, and in a block of the file
	buf     []byte
	relaxed int
	urgent  bool // a relaxed one is waited for
	cargo
}

// refusal counts the records that were refused since the last one that was not.
type refusal struct {
	records  int
	from, to time.Time
	why      error
}

func newCommitter(l *Log, s *stream) *committer {
	return &committer{l: l, s: s, outcomes: make(chan error, 1), synced: make(chan struct{}, 1), timer: time.NewTimer(beats * unsyncedTick), pending: newPending()}
}

func (c *committer) run() {
	defer close(c.l.done)
	defer c.timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checkSpace()
	for !c.ended {
		if c.l.settle(c.busy) {
			c.l.signal()
		}
		c.mu.Unlock()
		var do func(*committer)
		select {
		case <-c.synced:
			do = (*committer).landedOf
		case <-c.l.wake:
			runtime.Gosched() // whom the last group woke may come along at once
			do = (*committer).takeIn
		case <-c.timer.C:
			do = (*committer).beaten
		}
		c.mu.Lock()
		c.guarded(do)
		c.hasten()
	}
}

// takeIn works on what has come.
func (c *committer) takeIn() {
	c.batch = c.l.take(c.room)
	c.room = nil
	c.work(c.batch)
	clear(c.batch)
	c.room, c.batch = c.batch, nil
}

// hasten has relaxed records synced in time.
func (c *committer) hasten() {
	if len(c.written.entries) > 0 && !c.hasty {
		c.hasty = true
		c.timer.Reset(unsyncedTick)
	}
}

// beaten is the timer's doing.
func (c *committer) beaten() {
	if c.broken == nil {
		c.lookAround()
	}
	c.timer.Reset(beats * unsyncedTick)
	c.takeIn()
}

// lookAround syncs what is relaxed, and looks at the stream when it is time.
func (c *committer) lookAround() {
	if !c.hasty {
		c.beat = beats
	}
	c.hasty = false
	if c.beat++; c.beat >= beats {
		c.beat = 0
		c.tick()
	} else {
		_ = c.flushAll() // who waits for it is told
	}
}

// work commits records and does tasks in the order they came.
func (c *committer) work(batch []*entry) {
	if c.broken != nil {
		c.refuseAll(batch)
		return
	}
	from := 0
	for i, e := range batch {
		if e.task == nil {
			continue
		}
		c.commit(batch[from:i])
		_ = c.flushAll() // who waits for it is told
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
		if !c.s.room(n, false) && !c.rotate() {
			if c.s.dirty {
				c.refuse(batch[i:], c.full)
				return
			}
			if !c.settles(e) {
				c.refuse([]*entry{e}, c.full)
				continue
			}
		}
		c.stage(e)
	}
	if c.full != nil {
		c.l.setFault(c.wrap(c.full))
	}
	switch {
	case c.owes():
		if c.flushAll() == nil {
			c.confess()
		}
	case !c.busy || c.group.urgent: // else the group goes when the disk is ready for it
		_ = c.flush() // who waits for it is told
	}
}

// settles says whether e may use the reserve, and is kept when the disk fails.
func (c *committer) settles(e *entry) bool {
	if c.pending.settles(e.rec) {
		return true
	}
	if e.rec.Event != EventRequest || e.rec.Request == nil || e.rec.Stage == StageReserved {
		return false
	}
	for _, some := range [][]*entry{c.syncing.entries, c.written.entries, c.group.entries} {
		for _, g := range some { // reserved a moment ago
			if g.rec.Request != nil && g.rec.Request.ID == e.rec.Request.ID {
				return true
			}
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
	g.sizes = append(g.sizes, int32(len(g.buf)-start))
	g.entries = append(g.entries, e)
	if e.relaxed {
		g.relaxed++
	}
	g.urgent = g.urgent || e.urgent
}

// flush hands the group to the kernel and sees to its fdatasync. After an error the
// group is not in the log.
func (c *committer) flush() error {
	g := &c.group
	if len(g.entries) == 0 {
		return nil
	}
	defer g.reset()
	if g.relaxed > 0 && !c.s.keeps {
		if err := c.drain(); err != nil {
			return err
		}
		c.s.keeps = true
	}
	relaxed := g.relaxed == len(g.entries)
	err := c.s.write(g.buf, relaxed)
	if err != nil {
		if err := c.drain(); err != nil { // it stands before the group
			return err
		}
	}
	if errors.Is(err, errReplaced) {
		if err = c.mend(); err == nil {
			err = c.s.write(g.buf, relaxed)
		}
	}
	if err != nil {
		c.unstage(&g.cargo)
		c.refuse(g.entries, err)
		return err
	}
	c.board()
	if !relaxed {
		c.s.blankAhead(len(g.buf))
	}
	c.launchIfDue()
	return nil
}

// finish answers for lines that are on the disk.
func (c *committer) finish(l *cargo) {
	for _, e := range l.entries {
		e.answer(nil)
	}
	c.advance(l)
	c.l.setFault(c.wrap(c.full))
}

// unstage takes the last lines out of the chain again.
func (c *committer) unstage(l *cargo) {
	c.s.seq, c.s.prev = c.s.seq-uint64(len(l.entries)), l.prev
}

// advance takes lines for written.
func (c *committer) advance(l *cargo) {
	var weight int64
	for i, e := range l.entries {
		c.s.tree.addHash(l.leaves[i])
		c.pending.note(e.rec)
		c.ranEnd = c.ranEnd || e.rec.Event == EventRunEnd
		weight += e.unweigh()
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
	if len(g.base) > 2*maxGroup {
		g.base = nil
	}
	g.buf, g.relaxed, g.urgent = g.buf[:0], 0, false
	g.cargo.reset()
}
