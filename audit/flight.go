package audit

import "golang.org/x/mod/sumdb/tlog"

// cargo is lines of the chain that nobody was told of yet.
type cargo struct {
	entries []*entry
	leaves  []tlog.Hash // made while the lines are in the processor's caches
	prev    hexHash     // the chain's hash before them
}

// reset forgets the lines and keeps the room.
func (l *cargo) reset() {
	clear(l.entries)
	l.entries, l.leaves = l.entries[:0], l.leaves[:0]
}

// flight is groups on their way to the disk. Those that are written, or being synced,
// are durable records alone: with relaxed ones, each group is settled before the next.
type flight struct {
	bytes int64
	cargo
}

// board puts the group, which is written, with what the next fdatasync is for.
func (c *committer) board() {
	g, w := &c.group, &c.written
	c.s.flying += int64(len(g.buf))
	w.bytes += int64(len(g.buf))
	if len(w.entries) == 0 {
		w.cargo, g.cargo = g.cargo, w.cargo
		return
	}
	w.entries = append(w.entries, g.entries...)
	w.leaves = append(w.leaves, g.leaves...)
}

// launch starts the fdatasync of what is written.
func (c *committer) launch() {
	c.syncing, c.written, c.spare = c.written, c.spare, flight{}
	c.busy = true
	seg := c.s.seg
	go func() { c.synced <- seg.Datasync() }()
}

// landed takes in the outcome of the fdatasync under way, and sends what has come
// meanwhile on before it wakes anybody: the disk is what there is to wait for.
func (c *committer) landed(err error) {
	if c.land(err) != nil {
		return
	}
	if len(c.group.entries) > 0 {
		_ = c.flush() // who waits for it is told
	}
	if !c.busy && len(c.written.entries) > 0 {
		c.launch()
	}
	c.deliver()
}

// land takes the outcome of the fdatasync under way into the state. After an error
// nothing that came after it is in the log either: the kernel may have dropped pages and
// will not say so again.
func (c *committer) land(err error) error {
	c.deliver()
	c.busy = false
	done := c.syncing
	c.syncing = flight{}
	if err != nil {
		c.s.dirty, c.s.flying = true, 0
		c.unstage(&done.cargo, len(c.written.entries)+len(c.group.entries))
		for _, entries := range [][]*entry{done.entries, c.written.entries, c.group.entries} {
			c.refuse(entries, err)
		}
		c.written.reset()
		c.written.bytes = 0
		c.group.reset()
		return err
	}
	c.s.durable += done.bytes
	c.s.flying -= done.bytes
	c.arrived = done
	return nil
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
	f.reset()
	f.bytes = 0
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
		if err := c.land(<-c.synced); err != nil {
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
