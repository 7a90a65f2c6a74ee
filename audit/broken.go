package audit

import (
	"fmt"
	"runtime/debug"
)

// guarded works on the stream. A panic in it, which is a fault of ours, ends neither the
// process nor the request in whose goroutine it happens.
func (c *committer) guarded(do func(*committer)) {
	defer func() {
		if v := recover(); v != nil {
			c.breakDown(fmt.Errorf("audit: stream %s: a fault of the writer: %T", c.s.name, v), debug.Stack())
		}
	}()
	do(c)
}

// breakDown is the end of writing: what is in memory may not be what the file holds.
// Everything on its way is refused, and all that comes, until a next start recovers the
// file as it stands.
func (c *committer) breakDown(err error, stack []byte) {
	if c.broken == nil {
		c.broken = err
		c.l.setFault(err)
		c.l.o.warn("%v; nothing is let through until a new start\n%s", err, stack)
	}
	c.busy, c.led, c.alone = false, false, false
	for _, f := range []*cargo{&c.arrived.cargo, &c.syncing.cargo, &c.written.cargo, &c.group.cargo} {
		c.refuseAll(f.entries)
		*f = cargo{}
	}
	c.refuseAll(c.kept)
	c.refuseAll(c.batch)
	c.kept, c.batch = nil, nil
}

// refuseAll answers for entries of a stream that is broken. Tasks are done: they know.
func (c *committer) refuseAll(entries []*entry) {
	for _, e := range entries {
		if e == nil {
			continue
		}
		err := c.broken
		if e.task != nil {
			err = e.task()
		}
		e.answer(err)
		c.l.sem.Release(e.unweigh())
	}
}

// unweigh returns what the entry takes of the queue's room, in bytes; once.
func (e *entry) unweigh() int64 {
	w := e.weight
	e.weight = 0
	return w
}
