package audit

import (
	"bytes"
	"strconv"

	"golang.org/x/mod/sumdb/tlog"
)

// chain follows the lines of one stream, in order.
type chain struct {
	name string
	state
	lost    bool // the line before was not sound: any prev will do
	records uint64
	find    func(kind string, segment int, seq uint64, what string)
	line    func(line []byte, p parsed) // each sound line, in order; may be nil
	leaf    func(tlog.Hash)             // each line's leaf; may be nil
	grown   func()                      // after each line; may be nil
	within  func(p parsed) bool         // whether a line is to be checked; nil: each
	segment int
}

func newChain(name string) *chain {
	return &chain{name: name, state: state{prev: firstPrev}}
}

// take judges one line and goes on after it.
func (c *chain) take(line []byte) {
	p, why := splitLine(line)
	if why == "" && c.within != nil && !c.within(p) {
		c.seq, c.prev, c.lost = p.seq+1, hexHash(p.hash), false
		return
	}
	if c.grown != nil {
		defer c.grown()
	}
	if why == "" {
		why = hashFault(line, p)
	}
	h := tlog.RecordHash(line)
	c.tree.addHash(h)
	if c.leaf != nil {
		c.leaf(h)
	}
	c.records++
	if why != "" {
		c.find(VerdictAltered, c.segment, c.seq, why)
		c.lost = true
		c.seq++
		return
	}
	c.link(p)
	c.seq, c.prev, c.lost = p.seq+1, hexHash(p.hash), false
	if c.line != nil {
		c.line(line, p)
	}
}

// link checks a sound line against the one before.
func (c *chain) link(p parsed) {
	linked := bytes.Equal(p.prev, c.prev[:])
	switch {
	case string(p.stream) != c.name:
		c.find(VerdictAltered, c.segment, p.seq, "a record of another stream: "+Clean(string(p.stream), capWord))
	case p.seq == c.seq && (linked || c.lost):
	case p.seq > c.seq && !linked && !c.lost:
		c.find(VerdictGap, c.segment, c.seq, "records "+span(c.seq, p.seq-1)+" are missing")
	case p.seq == c.seq:
		c.find(VerdictAltered, c.segment, p.seq, "prev is not the hash of the record before")
	default:
		c.find(VerdictAltered, c.segment, p.seq, "out of order: seq "+strconv.FormatUint(c.seq, 10)+" was due")
	}
}

func span(from, to uint64) string {
	if from == to {
		return strconv.FormatUint(from, 10)
	}
	return strconv.FormatUint(from, 10) + " to " + strconv.FormatUint(to, 10)
}
