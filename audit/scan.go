package audit

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxTear is more than a writer ever has under way: what a loss of power may damage
// at the end of an open stream, in bytes. See maxGroup and maxUnsynced.
const maxTear = 4 << 20

// sector is the unit in which a disk loses data, in bytes.
const sector = 512

// parsed is what the chain needs of a line. The slices are the line's own.
type parsed struct {
	id, time, stream []byte
	seq              uint64
	prev, hash       []byte
}

const (
	lineHead  = `{"schema":"` + Schema + `","id":"`
	lineTail  = `,"prev":"` + zeroHash + `","hash":"` + zeroHash + `"}`
	prevStart = len(`,"prev":"`)
	hashStart = prevStart + hashHex + len(`","hash":"`)
	hashCut   = prevStart + hashHex + 1
)

// parseLine splits a line, without its newline, by position, and checks its hash. The
// text says what is wrong with it, "" when it is sound.
func parseLine(line []byte) (parsed, string) {
	p, why := splitLine(line)
	if why == "" {
		why = hashFault(line, p)
	}
	return p, why
}

func hashFault(line []byte, p parsed) string {
	if hexSum(line[:len(line)-len(lineTail)+hashCut]) != string(p.hash) {
		return "its hash is not that of its bytes"
	}
	return ""
}

// splitLine is parseLine without the hash.
func splitLine(line []byte) (parsed, string) {
	var p parsed
	rest, ok := bytes.CutPrefix(line, []byte(lineHead))
	if !ok || len(line) < len(lineTail) {
		return p, "not a record of " + Schema
	}
	var seq []byte
	var ok1, ok2, ok3, ok4 bool
	p.id, rest, ok1 = bytes.Cut(rest, []byte(`","time":"`))
	p.time, rest, ok2 = bytes.Cut(rest, []byte(`","seq":`))
	seq, rest, ok3 = bytes.Cut(rest, []byte(`,"stream":"`))
	p.stream, _, ok4 = bytes.Cut(rest, []byte(`",`))
	n, err := strconv.ParseUint(string(seq), 10, 64)
	if !ok1 || !ok2 || !ok3 || !ok4 || err != nil {
		return p, "the first keys are not those of a record"
	}
	p.seq = n
	tail := line[len(line)-len(lineTail):]
	p.prev = tail[prevStart : prevStart+hashHex]
	p.hash = tail[hashStart : hashStart+hashHex]
	if string(tail[:prevStart]) != lineTail[:prevStart] || string(tail[prevStart+hashHex:hashStart]) != `","hash":"` ||
		string(tail[hashStart+hashHex:]) != `"}` {
		return p, "prev and hash are not the last keys"
	}
	return p, ""
}

// lines reads a segment line by line, in bounded memory.
type lines struct {
	r    io.Reader
	buf  []byte
	from int
	to   int
	off  int64 // of buf[from] in the file
	eof  bool
	err  error
}

func newLines(r io.Reader, buf []byte) *lines { return &lines{r: r, buf: buf} }

// next returns a line without its newline. At the end, at a NUL where a line would
// start, or where no line ends within MaxLine bytes, ok is false; off is the place.
func (l *lines) next() (line []byte, ok bool) {
	for scanned := 0; ; {
		have := l.buf[l.from:l.to]
		if len(have) > 0 && have[0] == 0 {
			return nil, false
		}
		if i := bytes.IndexByte(have[scanned:], '\n'); i >= 0 {
			line = have[:scanned+i]
			l.from += len(line) + 1
			l.off += int64(len(line)) + 1
			return line, true
		}
		scanned = len(have)
		if l.eof || scanned >= MaxLine {
			return nil, false
		}
		l.fill()
	}
}

func (l *lines) fill() {
	if l.from > 0 {
		l.to = copy(l.buf, l.buf[l.from:l.to])
		l.from = 0
	}
	if l.to == len(l.buf) {
		l.buf = append(l.buf, make([]byte, len(l.buf))...)
	}
	n, err := l.r.Read(l.buf[l.to:])
	l.to += n
	if err != nil {
		l.eof = true
		if !errors.Is(err, io.EOF) {
			l.err = err
		}
	}
}

// ending says how a segment ends.
type ending struct {
	end   int64  // of the lines
	nul   bool   // only NUL bytes follow
	torn  []byte // what follows, but for NUL bytes at its end, was under way when the writer died
	bad   string // why what follows is neither
	whole bool   // a sound line follows: it was written since
}

const notRecord = "bytes that are no record"

// read takes every line of a segment. In an open stream it stops at a tear.
func (c *chain) read(f *os.File, open bool, buf []byte) (ending, error) {
	l := newLines(f, buf)
	damaged := false // what follows damage is no tear, and is not looked at as one
	for {
		at := l.off
		line, ok := l.next()
		if l.err != nil {
			return ending{}, l.err
		}
		if ok && (!open || damaged || bytes.IndexByte(line, 0) < 0) {
			c.take(line)
			continue
		}
		e := ending{end: at, bad: notRecord}
		if !damaged {
			var err error
			if e, err = c.tail(f, at, open); err != nil {
				return e, err
			}
		}
		switch {
		case e.whole: // its writer has finished it meanwhile
			if _, err := f.Seek(at, io.SeekStart); err != nil {
				return e, err
			}
			*l = lines{r: f, buf: l.buf, off: at}
			continue
		case e.bad == "":
			return e, nil
		}
		damaged = true
		if ok {
			c.take(line)
			continue
		}
		if !c.resume(f, l, at) {
			return e, nil
		}
		c.find(VerdictAltered, c.segment, c.seq, e.bad)
		c.lost = true
	}
}

// resume goes on after the next newline behind damage, when there is one.
func (c *chain) resume(f *os.File, l *lines, at int64) bool {
	buf := make([]byte, 64<<10)
	for off := at; ; {
		n, err := f.ReadAt(buf, off)
		if i := bytes.IndexByte(buf[:n], '\n'); i >= 0 {
			next := off + int64(i) + 1
			if _, err := f.Seek(next, io.SeekStart); err != nil {
				return false
			}
			*l = lines{r: f, buf: l.buf, off: next}
			return true
		}
		if err != nil || n == 0 {
			return false
		}
		off += int64(n)
	}
}

// tail judges what stands at off, where no sound line does. In an open stream a write
// may be under way, of which a reader sees any part: what is not right is read again.
func (c *chain) tail(f *os.File, off int64, open bool) (ending, error) {
	for try := 0; ; try++ {
		e, err := c.tailNow(f, off, open)
		if err != nil || e.bad == "" || !open || try == settleTries {
			return e, err
		}
		time.Sleep(settleTime) // for the writer, which is another process
	}
}

// A write of a writer that lives is over within settleTries times settleTime.
const (
	settleTries = 20
	settleTime  = time.Millisecond
)

func (c *chain) tailNow(f *os.File, off int64, open bool) (ending, error) {
	e := ending{end: off}
	data, size, err := readTail(f, off)
	switch {
	case err != nil:
		return e, err
	case size == 0: // nothing
	case len(data) == 0:
		e.nul = true
	case open && startsSound(data):
		e.whole = true
	case open && len(data) <= maxTear && torn(data, off):
		e.torn = data
	default:
		e.bad = notRecord
	}
	return e, nil
}

// startsSound says whether data starts with a whole line that is sound by itself.
func startsSound(data []byte) bool {
	line, _, ok := bytes.Cut(data, []byte("\n"))
	if !ok || len(line) >= MaxLine || bytes.IndexByte(line, 0) >= 0 { // it would not be read as a line again
		return false
	}
	_, why := parseLine(line)
	return why == ""
}

// readTail returns the bytes from off to the end without the NUL bytes at their end;
// of a longer tail than maxTear, one byte more than that. size counts them all.
func readTail(f *os.File, off int64) (data []byte, size int64, err error) {
	data, err = io.ReadAll(io.NewSectionReader(f, off, maxTear+1))
	if err != nil {
		return nil, 0, err
	}
	size = int64(len(data))
	if len(data) <= maxTear {
		return bytes.TrimRight(data, "\x00"), size, nil
	}
	buf := make([]byte, 256<<10)
	for pos := off + size; ; {
		n, err := f.ReadAt(buf, pos)
		if len(bytes.TrimRight(buf[:n], "\x00")) > 0 {
			return data, size, nil
		}
		pos += int64(n)
		if err != nil {
			break
		}
	}
	return bytes.TrimRight(data, "\x00"), size, nil
}

// torn says whether data, from off on, is what a dying writer or disk leaves: the start
// of a line and no more, or a hole of NUL bytes on the borders of sectors.
func torn(data []byte, off int64) bool {
	hole := bytes.IndexByte(data, 0)
	if hole < 0 {
		head := data[:min(len(data), len(lineHead))]
		return bytes.IndexByte(data, '\n') < 0 && strings.HasPrefix(lineHead, string(head))
	}
	if i := bytes.IndexByte(data, '\n'); i >= 0 && i < hole {
		return false // the first line is damaged, and not by the hole
	}
	end := hole
	for data[end] == 0 {
		end++
	}
	starts := hole == 0 || (off+int64(hole))%sector == 0
	return starts && (off+int64(end))%sector == 0
}

// segments lists a stream's directory: its segments' numbers in order, and the names
// that belong to none.
func segments(dir string) (numbers []int, others []fs.DirEntry, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		n, ok := segmentNumber(e.Name())
		if !ok || !e.Type().IsRegular() {
			others = append(others, e)
			continue
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	return numbers, others, nil
}

func segmentNumber(name string) (int, bool) {
	digits, ok := strings.CutSuffix(name, segmentExt)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil && n > 0 && strconv.Itoa(n) == digits
}

// openRegular opens a file for reading that is no link, device or pipe.
func openRegular(name string) (*os.File, error) {
	st, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	return os.OpenFile(name, os.O_RDONLY|noFollow, 0)
}

func segmentPath(dir string, n int) string { return filepath.Join(dir, strconv.Itoa(n)+segmentExt) }
