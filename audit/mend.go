package audit

import (
	"context"
	"errors"
	"fmt"
)

// mend makes the stream fit for the next write after one that failed.
func (c *committer) mend() error {
	if !c.s.dirty {
		return nil
	}
	if err := c.drain(); err != nil {
		return err
	}
	return c.s.heal()
}

// wrap is how callers see a failure of the disk.
func (c *committer) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("audit: stream %s: %w", c.s.name, err)
}

// refuse answers entries that are not in the log. Those that close something are kept
// for the next time.
func (c *committer) refuse(entries []*entry, err error) {
	err = c.wrap(err)
	c.l.setFault(err)
	for _, e := range entries {
		e.answer(err)
		if c.pending.settles(e.rec) {
			c.kept = append(c.kept, e)
			continue
		}
		c.l.sem.Release(e.unweigh())
		if c.refused.records == 0 {
			c.refused.from, c.refused.why = e.at, err
		}
		c.refused.records++
		c.refused.to = e.at
	}
}

// rotate goes on in a new segment. When there is none to be had, the reason is in full.
func (c *committer) rotate() bool {
	if c.full != nil {
		return false
	}
	err := c.syncRelaxed()
	if err == nil {
		err = c.s.newSegment()
	}
	if err != nil {
		c.full = fmt.Errorf("no next segment: %w", err)
		return false
	}
	if err := c.s.checkpoint(); err != nil {
		c.l.o.warn("stream %s: no checkpoint: %v", c.s.name, err)
	}
	c.checkSpace()
	return true
}

// syncRelaxed makes what relaxed records left to the kernel durable.
func (c *committer) syncRelaxed() error {
	if err := c.drain(); err != nil {
		return err
	}
	return c.mend()
}

// owes says whether there is something to confess.
func (c *committer) owes() bool { return c.s.restored || c.refused.records > 0 }

// confess writes what befell the log, now that it can be written.
func (c *committer) confess() {
	if c.full != nil {
		return
	}
	if c.s.restored && c.anomaly("the open segment was removed or replaced by somebody; it was put back whole") {
		c.s.restored = false
	}
	if r := c.refused; r.records > 0 {
		text := fmt.Sprintf("%d records were refused between %s and %s: %v", r.records, stamp(r.from), stamp(r.to), r.why)
		c.refused = refusal{}
		if !c.anomaly(text) {
			c.refused = r
		}
	}
}

func (c *committer) anomaly(text string) bool {
	c.l.o.warn("stream %s: %s", c.s.name, text)
	return c.record(&Record{Event: EventAnomaly, Detail: text}) == nil
}

// record writes a record of the committer's own.
func (c *committer) record(r *Record) error {
	e := &entry{rec: r, at: c.l.o.Clock()}
	if err := e.fill(); err != nil {
		return err
	}
	c.stage(e)
	return c.flushAll()
}

// tick does what is due without a record: sync, mend, look at files and space, sign.
func (c *committer) tick() {
	c.ticks++
	if c.flushAll() != nil {
		return // it is said
	}
	if err := c.syncRelaxed(); err != nil {
		c.l.setFault(c.wrap(err))
		return
	}
	if err := errors.Join(c.s.inPlace(), c.s.sameDir()); err != nil {
		c.s.dirty = true
		if err := c.mend(); err != nil {
			c.l.setFault(c.wrap(err))
			return
		}
	}
	c.commit(nil)
	if c.flushAll() != nil {
		return // it is said
	}
	if c.full != nil && !c.s.room(frameBytes, false) {
		c.full = nil
		c.rotate()
	}
	if len(c.kept) == 0 {
		c.l.setFault(c.wrap(c.full))
		c.confess()
	}
	if c.ticks%spaceEvery == 0 {
		c.checkSpace()
	}
	if (c.ranEnd || c.ticks%checkpointEvery == 0) && c.s.tree.size > c.signed {
		if err := c.checkpoint(); err != nil {
			c.l.o.warn("stream %s: no checkpoint: %v", c.s.name, err)
		}
	}
}

// checkSpace says once when little space is left, and when there is enough again.
func (c *committer) checkSpace() {
	free, err := c.l.o.FS.Free(c.s.dir)
	if err != nil {
		return // the next write says more
	}
	least := uint64(4 * c.l.o.SegmentSize)
	if low := free < least; low != c.low {
		c.low = low
		if low {
			c.l.o.warn("%d MiB are left in %s; requests are refused when the disk is full", free>>20, c.l.o.Dir)
		}
	}
}

// checkpoint signs for everything so far.
func (c *committer) checkpoint() error {
	if c.broken != nil {
		return c.broken
	}
	if err := c.syncRelaxed(); err != nil {
		return err
	}
	if err := c.s.checkpoint(); err != nil {
		return err
	}
	c.signed, c.ranEnd = c.s.tree.size, false
	return nil
}

// close ends the stream. Its lock is given back in any case.
func (c *committer) close(ctx context.Context) error {
	c.ended = true
	if c.broken != nil {
		return errors.Join(c.broken, c.s.close())
	}
	err := c.writeOwed()
	if err == nil {
		err = c.seal(ctx)
	}
	return errors.Join(err, c.s.close())
}

// writeOwed writes everything that is owed.
func (c *committer) writeOwed() error {
	c.commit(nil)
	if err := c.flush(); err != nil {
		return err
	}
	if err := c.syncRelaxed(); err != nil {
		return err
	}
	if len(c.kept) > 0 {
		return c.l.Healthy()
	}
	for _, r := range c.pending.closing("the log was closed before the outcome was known") {
		if err := c.record(r); err != nil {
			return err
		}
	}
	return nil
}

func (c *committer) seal(ctx context.Context) error {
	if err := c.s.trim(); err != nil {
		return err
	}
	r, err := lockRegistry(ctx, &c.l.o)
	if err != nil {
		return err
	}
	return errors.Join(c.s.register(r, regSeal, nil), r.close())
}
