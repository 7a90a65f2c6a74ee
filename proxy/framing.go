package proxy

import (
	"bytes"
	"io"
	"strconv"
	"strings"
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

// head is what the handler needs to know of a head beyond net/http's Request.
type head struct {
	method, target string // only in framer.bad
	host           string // the Host field as received
	hosts          int
	upgrade        bool
	chunked        bool
	length         int64 // -1: no Content-Length
}

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

// parseHead judges a head without its empty line.
func (f *framer) parseHead(in []byte) (head, error) {
	h := head{length: -1}
	line, rest, more := bytes.Cut(in, []byte("\r\n"))
	old, err := h.requestLine(line)
	if err != nil {
		return h, err
	}
	var connUpgrade, upgrade, te bool
	for lines := 0; more; lines++ {
		if lines == f.maxHeaders {
			return h, &framingError{true, "too many header lines"}
		}
		line, rest, more = bytes.Cut(rest, []byte("\r\n"))
		name, value, err := headerLine(line)
		if err != nil {
			return h, err
		}
		switch len(name) {
		case 4:
			if isName(name, "host") {
				h.host = string(value)
				h.hosts++
			}
		case 7:
			upgrade = upgrade || isName(name, "upgrade") && hasToken(string(value), "websocket")
		case 10:
			connUpgrade = connUpgrade || isName(name, "connection") && hasToken(string(value), "upgrade")
		case 14:
			if isName(name, "content-length") {
				if err := h.contentLength(value); err != nil {
					return h, err
				}
			}
		case 17:
			if isName(name, "transfer-encoding") {
				if te || !isName(value, "chunked") {
					return h, badFraming("transfer coding other than one chunked")
				}
				te, h.chunked = true, true
			}
		}
	}
	return h, h.consistent(old, connUpgrade && upgrade)
}

// requestLine reads METHOD SP target SP HTTP/1.x; old is HTTP/1.0.
func (h *head) requestLine(line []byte) (old bool, err error) {
	method, rest, ok1 := bytes.Cut(line, []byte{' '})
	tgt, version, ok2 := bytes.Cut(rest, []byte{' '})
	if !ok1 || !ok2 || len(tgt) == 0 || !isToken(method) {
		return false, badFraming("broken request line")
	}
	for _, c := range tgt {
		if c <= ' ' || c >= 0x7f {
			return false, badFraming("request target holds a character that must be percent-encoded")
		}
	}
	if string(method) == "CONNECT" {
		h.method = "CONNECT"
	}
	switch string(version) {
	case "HTTP/1.1":
	case "HTTP/1.0":
		old = true
	default:
		return false, badFraming("not HTTP/1.1 or HTTP/1.0")
	}
	return old, nil
}

func (h *head) contentLength(value []byte) error {
	if h.length >= 0 {
		return badFraming("two Content-Length fields")
	}
	if len(value) == 0 || len(value) > 18 {
		return badFraming("broken Content-Length")
	}
	for _, c := range value {
		if c < '0' || c > '9' {
			return badFraming("broken Content-Length")
		}
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return badFraming("broken Content-Length")
	}
	h.length = n
	return nil
}

func (h *head) consistent(old, upgrade bool) error {
	switch {
	case h.hosts > 1:
		return badFraming("two Host fields")
	case h.hosts == 0 && !old && h.method != "CONNECT":
		return badFraming("no Host field")
	case h.chunked && h.length >= 0:
		return badFraming("both Content-Length and Transfer-Encoding")
	case h.chunked && old:
		return badFraming("Transfer-Encoding in HTTP/1.0")
	case upgrade && (h.chunked || h.length > 0):
		return badFraming("upgrade request with a body")
	}
	h.upgrade = upgrade && !old
	return nil
}

// headerLine splits "name: value" and trims the value's white space.
func headerLine(line []byte) (name, value []byte, err error) {
	name, value, ok := bytes.Cut(line, []byte{':'})
	if !ok || !isToken(name) {
		return nil, nil, badFraming("broken header line")
	}
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, nil, badFraming("control character in a header value")
		}
	}
	return name, bytes.Trim(value, " \t"), nil
}

func isToken(s []byte) bool {
	for _, c := range s {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return len(s) > 0
}

// isName compares ASCII without regard to case; want is lower case.
func isName(name []byte, want string) bool {
	if len(name) != len(want) {
		return false
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != want[i] {
			return false
		}
	}
	return true
}

// hasToken reports that the comma-separated list holds token (RFC 9110 §5.6.1).
func hasToken(list, token string) bool {
	for part := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(strings.Trim(part, " \t"), token) {
			return true
		}
	}
	return false
}

// readable saves what a record can show of a refused head.
func readable(in []byte) head {
	var h head
	line, rest, _ := bytes.Cut(in, []byte{'\n'})
	parts := strings.SplitN(strings.TrimRight(string(line[:min(len(line), 4096)]), "\r"), " ", 3)
	if len(parts) > 1 {
		h.method, h.target = parts[0], parts[1]
	}
	for len(rest) > 0 && h.host == "" {
		line, rest, _ = bytes.Cut(rest, []byte{'\n'})
		if name, value, err := headerLine(bytes.TrimRight(line, "\r")); err == nil && isName(name, "host") {
			h.host = string(value[:min(len(value), 256)])
		}
	}
	return h
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
