package audit

import (
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// cargo is lines of the chain that nobody was told of yet.
type cargo struct {
	entries []*entry
	leaves  []tlog.Hash // made while the lines are in the processor's caches
	sizes   []int32     // of the lines, in bytes
	prev    hexHash     // the chain's hash before them
}

// add appends more, which comes right after.
func (l *cargo) add(more *cargo) {
	if len(l.entries) == 0 {
		l.prev = more.prev
	}
	l.entries = append(l.entries, more.entries...)
	l.leaves = append(l.leaves, more.leaves...)
	l.sizes = append(l.sizes, more.sizes...)
}

// split cuts before entry k; the second part's prev is right for k = 0 only.
func (l *cargo) split(k int) (cargo, cargo) {
	return cargo{l.entries[:k], l.leaves[:k], l.sizes[:k], l.prev}, cargo{l.entries[k:], l.leaves[k:], l.sizes[k:], l.prev}
}

func (l *cargo) bytes() (n int64) {
	for _, size := range l.sizes {
		n += int64(size)
	}
	return n
}

// reset forgets the lines and keeps the room.
func (l *cargo) reset() {
	clear(l.entries)
	l.entries, l.leaves, l.sizes = l.entries[:0], l.leaves[:0], l.sizes[:0]
}

// flight is groups on their way to the disk.
type flight struct {
	bytes   int64
	relaxed int // entries that are answered for
	cargo
}

func (f *flight) empty() {
	f.reset()
	f.bytes, f.relaxed = 0, 0
}

// board puts the group, which is written, with what the next fdatasync is for, and
// answers for its relaxed records.
func (c *committer) board() {
	g, w := &c.group, &c.written
	c.s.wrote(g.buf)
	w.bytes += int64(len(g.buf))
	if g.relaxed > 0 {
		w.relaxed += g.relaxed
		for _, e := range g.entries {
			if e.relaxed {
				e.answer(nil)
			}
		}
		c.l.setFault(c.wrap(c.full))
	}
	if len(w.entries) == 0 {
		w.cargo, g.cargo = g.cargo, w.cargo
		return
	}
	w.add(&g.cargo)
}

// launchIfDue starts the fdatasync of what is written, when the disk is free and
// somebody waits for it, or when it is much.
func (c *committer) launchIfDue() {
	if w := &c.written; !c.busy && (w.relaxed < len(w.entries) || w.bytes > maxUnsynced) {
		c.launch()
	}
}

func (c *committer) launch() {
	c.syncing, c.written, c.spare = c.written, c.spare, flight{}
	c.busy = true
	if c.alone {
		return // it is done when there is nothing else to do
	}
	seg := c.s.seg
	go func() {
		c.outcomes <- c.datasync(seg)
		select {
		case c.synced <- struct{}{}:
		default: // of one that somebody has waited for
		}
	}()
}

// datasync remembers whether the disk is quick.
func (c *committer) datasync(seg Handle) error {
	began := time.Now()
	err := seg.Datasync()
	c.slow.Store(time.Since(began) > quickDisk)
	return err
}

// outcome waits for the fdatasync under way.
func (c *committer) outcome() error {
	if c.alone {
		return c.datasync(c.s.seg)
	}
	c.led = false
	return <-c.outcomes
}

// landedOf is landed of the fdatasync that synced tells of, unless somebody needed to
// know sooner.
func (c *committer) landedOf() {
	if !c.busy || c.led {
		return
	}
	select {
	case err := <-c.outcomes:
		c.landed(err)
	default: // it is of one before
	}
}

// lead is the committer's work in the caller's goroutine, which waits for a record: no
// other need be woken, neither to write nor to tell of the end. A slow disk it leaves to
// others, unless what it waits for is relaxed. It does nothing, and says so, unless it is
// the only one at it.
func (c *committer) lead(relaxed bool) (led bool) {
	slow := c.slow.Load()
	if slow && !relaxed || !c.mu.TryLock() {
		return false
	}
	defer c.mu.Unlock()
	if c.busy || c.ended || c.broken != nil {
		return false
	}
	c.alone = !slow
	c.guarded((*committer).takeIn)
	c.alone = false
	if c.busy && !slow {
		c.l.settle(true)
		c.led = true
		seg := c.s.seg
		c.mu.Unlock() // meanwhile the next group is made by others
		c.outcomes <- c.datasync(seg)
		c.mu.Lock()
		c.guarded((*committer).landedOwn)
	}
	if c.l.settle(c.busy) {
		c.l.signal()
	}
	c.hasten()
	return true
}

// landedOwn is landed of the leader's fdatasync, unless somebody needed to know sooner.
func (c *committer) landedOwn() {
	if c.led {
		c.landed(c.outcome())
	}
}

// landed takes in the outcome of the fdatasync under way, and sends what has come
// meanwhile on before it wakes anybody: the disk is what there is to wait for.
func (c *committer) landed(err error) {
	if c.land(err) != nil {
		return
	}
	c.takeIn()
	_ = c.flush() // who waits for it is told
	c.launchIfDue()
	c.deliver()
}

// land takes the outcome of the fdatasync under way into the state.
func (c *committer) land(err error) error {
	c.deliver()
	c.busy = false
	done := c.syncing
	c.syncing = flight{}
	if err != nil {
		c.crash(&done, err)
		return err
	}
	c.s.synced(done.bytes)
	c.arrived = done
	return nil
}

// crash is the end of what was written when an fdatasync failed: nothing of it may be
// taken for durable, since the kernel may have dropped pages and will not say so again.
// It stays in the log up to the last record that was answered for, to be written once
// more; what comes after that is refused.
func (c *committer) crash(done *flight, err error) {
	c.s.dirty = true
	all := done.cargo
	all.add(&c.written.cargo)
	k := 0 // entries that stay
	for i, e := range all.entries {
		if e.relaxed {
			k = i + 1
		}
	}
	all.add(&c.group.cargo) // it is not written: nobody was told of any of it
	stay, lost := all.split(k)
	if k > 0 {
		c.l.setFault(c.wrap(err))
		for _, e := range stay.entries {
			e.answer(c.wrap(err))
		}
		c.advance(&stay)
		lost.prev = c.s.lost(stay.bytes())
	} else {
		c.s.lost(0)
	}
	c.unstage(&lost)
	c.refuse(lost.entries, err)
	c.written.empty()
	c.group.reset()
}

// deliver answers for the flight that has arrived, before anything else is decided by
// what the log holds.
func (c *committer) deliver() {
	f := c.arrived
	if len(f.entries) == 0 {
		return
	}
	c.arrived = flight{}
	c.finish(&f.cargo)
	f.empty()
	c.spare = f
}

// drain waits until nothing is under way; the group stays. After an error it is refused
// with what it came after.
func (c *committer) drain() error {
	c.deliver()
	for c.busy || len(c.written.entries) > 0 {
		if !c.busy {
			c.launch()
		}
		if err := c.land(c.outcome()); err != nil {
			return err
		}
		c.deliver()
	}
	return nil
}

// flushAll makes everything that came durable, unless it is relaxed.
func (c *committer) flushAll() error {
	if err := c.flush(); err != nil {
		return err
	}
	return c.drain()
}
