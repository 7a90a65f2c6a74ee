package proxy

import (
	"bytes"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
)

// framer reads HTTP/1 from a client and hands on only bytes whose framing it has
// checked more strictly than net/http does (RFC 9112): CRLF line ends, one
// Content-Length or one "chunked", never both, no folding, bounded heads, chunk
// lines and trailers. So that net/http, the upstream and the policy can only
// agree on where a message ends. A whole head is held back until it is good.
//
// It is used by one reader at a time, as net/http does.
type framer struct {
	src        io.Reader
	maxHead    int
	maxHeaders int

	buf     []byte // buf[r:ok] may be handed on, buf[ok:w] is unjudged
	r, ok   int
	w       int
	phase   framing
	need    int64      // bytes left of a body or chunk
	trailer int        // bytes of the trailer section so far
	passed  int64      // heads that were handed on
	mu      sync.Mutex // heads: a handler takes one while the next is read ahead
	heads   []head
	err     error // sticky
	left    atomic.Bool
	bad     head // what was readable of the head that err is about
}

type framing int

const (
	inHead framing = iota
	inBody
	inChunkSize
	inChunk
	inChunkEnd
	inTrailer
	inRaw // not HTTP any more, as far as the framer is concerned
)

// framingError refuses a request while it is being read.
type framingError struct {
	tooLarge bool
	detail   string
}

func (e *framingError) Error() string { return "framing: " + e.detail }

func badFraming(detail string) error { return &framingError{detail: detail} }

const (
	maxChunkLine = 256 // one chunk-size line with its extensions, bytes
	maxTrailers  = 16 << 10
)

// Read implements io.Reader.
func (f *framer) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if f.left.Load() {
			return 0, io.ErrUnexpectedEOF
		}
		if f.r < f.ok {
			n := copy(p, f.buf[f.r:f.ok])
			f.r += n
			if f.r == f.w {
				f.r, f.ok, f.w = 0, 0, 0
			}
			return n, nil
		}
		if f.err != nil {
			return 0, f.err
		}
		if f.phase == inRaw || f.phase == inBody || f.phase == inChunk {
			if n, done, err := f.pass(p); done {
				return n, err
			}
			continue
		}
		more, err := f.judge()
		if err != nil {
			f.err = err
			continue
		}
		if more {
			if err := f.fill(); err != nil {
				return 0, err
			}
		}
	}
}

// abandon makes every further Read fail.
func (f *framer) abandon() { f.left.Store(true) }

// pass hands on bytes that need no judgement. done is false when there was
// something buffered, which the caller then copies.
func (f *framer) pass(p []byte) (n int, done bool, err error) {
	if f.w > f.ok {
		take := f.w - f.ok
		if f.phase != inRaw {
			take = int(min(int64(take), f.need))
			f.spend(take)
		}
		f.ok += take
		return 0, false, nil
	}
	if f.phase != inRaw {
		p = p[:min(int64(len(p)), f.need)]
	}
	n, err = f.src.Read(p)
	if f.phase != inRaw {
		f.spend(n)
	}
	return n, true, err
}

func (f *framer) spend(n int) {
	f.need -= int64(n)
	if f.need > 0 {
		return
	}
	if f.phase == inBody {
		f.phase = inHead
	} else {
		f.phase = inChunkEnd
	}
}

// fill reads more unjudged bytes.
func (f *framer) fill() error {
	if f.r > 0 && f.r == f.ok {
		copy(f.buf, f.buf[f.r:f.w])
		f.w -= f.r
		f.r, f.ok = 0, 0
	}
	if f.w == len(f.buf) {
		f.buf = append(f.buf, make([]byte, max(4096, len(f.buf)))...)
	}
	n, err := f.src.Read(f.buf[f.w:])
	f.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// judge looks at the unjudged bytes; more asks for further ones.
func (f *framer) judge() (more bool, err error) {
	in := f.buf[f.ok:f.w]
	switch f.phase {
	case inHead:
		return f.judgeHead(in)
	case inChunkEnd:
		if len(in) < 2 {
			return true, nil
		}
		if in[0] != '\r' || in[1] != '\n' {
			return false, badFraming("chunk data does not end where its size says")
		}
		f.ok += 2
		f.phase = inChunkSize
		return false, nil
	case inChunkSize:
		line, n, err := wholeLine(in, maxChunkLine)
		if err != nil || n == 0 {
			return err == nil, err
		}
		size, err := chunkSize(line)
		if err != nil {
			return false, err
		}
		f.ok += n
		f.need, f.phase = size, inChunk
		if size == 0 {
			f.phase, f.trailer = inTrailer, 0
		}
		return false, nil
	default: // inTrailer
		line, n, err := wholeLine(in, maxTrailers-f.trailer)
		if err != nil || n == 0 {
			return err == nil, err
		}
		if len(line) == 0 {
			f.phase = inHead
		} else if _, _, err := headerLine(line); err != nil {
			return false, err
		}
		f.ok += n
		f.trailer += n
		return false, nil
	}
}

// wholeLine returns the line at the start of in without its CRLF, and its length
// with it; 0 when it is not whole yet.
func wholeLine(in []byte, most int) (line []byte, n int, err error) {
	i := bytes.IndexByte(in, '\n')
	if i < 0 {
		if len(in) > most {
			return nil, 0, &framingError{true, "line too long"}
		}
		return nil, 0, nil
	}
	if i > most {
		return nil, 0, &framingError{true, "line too long"}
	}
	if i == 0 || in[i-1] != '\r' {
		return nil, 0, badFraming("line ends without a carriage return")
	}
	return in[:i-1], i + 1, nil
}

func chunkSize(line []byte) (int64, error) {
	digits, ext, _ := bytes.Cut(line, []byte{';'})
	if len(digits) == 0 || len(digits) > 15 {
		return 0, badFraming("broken chunk size")
	}
	for _, c := range digits {
		if !isHex(c) {
			return 0, badFraming("broken chunk size")
		}
	}
	for _, c := range ext {
		if c < ' ' && c != '\t' || c == 0x7f {
			return 0, badFraming("control character in a chunk extension")
		}
	}
	n, err := strconv.ParseInt(string(digits), 16, 64)
	if err != nil {
		return 0, badFraming("broken chunk size")
	}
	return n, nil
}

func (f *framer) judgeHead(in []byte) (more bool, err error) {
	// RFC 9112 §2.2: an empty line before the request line is ignored.
	if len(in) >= 2 && f.r == f.ok && in[0] == '\r' && in[1] == '\n' {
		f.r += 2
		f.ok += 2
		in = in[2:]
	}
	end := bytes.Index(in, []byte("\r\n\r\n"))
	if end < 0 && len(in) <= f.maxHead {
		if i := bytes.IndexByte(in, '\n'); i >= 0 && (i == 0 || in[i-1] != '\r') {
			return false, badFraming("line ends without a carriage return")
		}
		return true, nil
	}
	if end < 0 || end+4 > f.maxHead {
		f.bad = readable(in)
		return false, &framingError{true, "head too large"}
	}
	h, err := f.parseHead(in[:end])
	if err != nil {
		f.bad = readable(in[:end])
		return false, err
	}
	f.mu.Lock()
	f.heads = append(f.heads, h)
	f.mu.Unlock()
	f.passed++
	f.ok += end + 4
	switch {
	case h.method == "CONNECT" || h.upgrade:
		f.phase = inRaw
	case h.chunked:
		f.phase = inChunkSize
	case h.length > 0:
		f.phase, f.need = inBody, h.length
	}
	return false, nil
}

// takeHead returns the head of the request that the handler has just been given.
func (f *framer) takeHead() head {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.heads) == 0 {
		return head{length: -1}
	}
	h := f.heads[0]
	f.heads = f.heads[1:]
	return h
}
