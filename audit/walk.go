package audit

import (
	"errors"
	"io/fs"
	"strconv"
)

// walked is the end of a stream as its files show it.
type walked struct {
	segments int    // the highest number
	last     int    // the segment that holds the end of the lines
	end      int64  // the end of the lines there
	torn     []byte // what a dying writer left behind them
	nul      bool   // NUL bytes follow them
}

// walk takes every line of the stream in dir through c. An open stream may end in NUL
// bytes and in a tear; a sealed one may not.
func (c *chain) walk(dir string, open bool) (walked, error) {
	numbers, others, err := segments(dir)
	if err != nil {
		return walked{}, err
	}
	for _, e := range others {
		if why := stranger(e); why != "" {
			c.find(VerdictAltered, 0, 0, why)
		}
	}
	w := walked{last: 1}
	buf := make([]byte, 256<<10)
	for _, n := range numbers {
		if n > w.segments+1 {
			c.find(VerdictGap, w.segments+1, c.seq, "segments "+span(uint64(w.segments)+1, uint64(n)-1)+" are missing")
		}
		w.segments = n
		if err := c.walkSegment(dir, n, open, buf, &w); err != nil {
			return w, err
		}
	}
	if w.segments == 0 {
		c.find(VerdictGap, 1, 0, "no segment is left")
	}
	return w, nil
}

func (c *chain) walkSegment(dir string, n int, open bool, buf []byte, w *walked) error {
	f, err := openRegular(segmentPath(dir, n))
	if errors.Is(err, fs.ErrNotExist) {
		c.find(VerdictGap, n, c.seq, "the segment is missing")
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	before := c.records
	c.segment = n
	e, err := c.read(f, open, buf)
	if err != nil {
		return err
	}
	if c.records > before || e.torn != nil {
		if w.torn != nil || w.nul {
			c.find(VerdictAltered, w.last, c.seq, "records follow what only the last segment may end in")
		}
		w.torn, w.nul = e.torn, e.nul && open
		w.last, w.end = n, e.end
	}
	switch {
	case e.bad != "" && !open && e.end > 0:
		c.find(VerdictTruncated, n, c.seq, "the last record is cut off")
	case e.bad != "":
		c.find(VerdictAltered, n, c.seq, e.bad)
	case e.nul && !open:
		c.find(VerdictAltered, n, c.seq, "NUL bytes at the end of a sealed segment")
	}
	return nil
}

// stranger says why a name in a stream's directory does not belong there.
func stranger(e fs.DirEntry) string {
	switch {
	case !e.Type().IsRegular():
		return "not a regular file: " + strconv.Quote(e.Name())
	case e.Name() == checkpointFile:
		return ""
	}
	return "a file that does not belong to a stream: " + strconv.Quote(e.Name())
}
