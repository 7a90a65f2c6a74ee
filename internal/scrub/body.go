package scrub

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

// readSize is how much is read at once, in bytes.
const readSize = 32 << 10

// Body returns the body of resp with secrets masked, and a counter of the masked
// places that is final when the body has been read to its end. A coded body
// (gzip, deflate, br, zstd) is delivered decoded; Content-Encoding,
// Content-Length and digests go and a strong ETag becomes a weak one. Trailers
// are masked when the end is reached, the status text at once.
//
// A coding that is not known, or coded ranges, are an error: then nothing of the
// body may be passed on. A coding that turns out to be broken fails in Read.
// A nil Scrubber changes nothing.
func (s *Scrubber) Body(resp *http.Response) (body io.ReadCloser, n *atomic.Int64, err error) {
	n = new(atomic.Int64)
	if s == nil {
		return resp.Body, n, nil
	}
	if status, k := s.text(resp.Status); k > 0 {
		resp.Status = status
		n.Add(k)
	}
	codings, err := codingsOf(resp.Header)
	if err != nil {
		return nil, n, err
	}
	if bodyless(resp) {
		if len(codings) > 0 {
			recode(resp)
		}
		return resp.Body, n, nil
	}
	src := io.Reader(resp.Body)
	if len(codings) > 0 {
		if resp.StatusCode == http.StatusPartialContent {
			return nil, n, errCodedRange
		}
		for _, c := range slices.Backward(codings) {
			src = &lazyDecoder{coding: c, src: src}
		}
		recode(resp)
	}
	return &reader{s: s, src: src, closer: resp.Body, resp: resp, n: n}, n, nil
}

// bodyless reports an answer that has no content whatever its header says (RFC
// 9110, section 6.4.1).
func bodyless(resp *http.Response) bool {
	head := resp.Request != nil && resp.Request.Method == http.MethodHead
	return head || resp.Body == nil || resp.Body == http.NoBody || resp.ContentLength == 0 ||
		resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified
}

// recode adjusts the header to a body that is delivered without its coding.
func recode(resp *http.Response) {
	for _, k := range []string{"Content-Encoding", "Content-Length", "Content-Digest", "Content-Md5", "Digest", "Repr-Digest"} {
		resp.Header.Del(k)
	}
	if resp.ContentLength > 0 {
		resp.ContentLength = -1
	}
	resp.Uncompressed = true
	if tag := resp.Header.Get("Etag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		resp.Header.Set("Etag", "W/"+tag)
	}
}

// reader masks a stream. buf holds original bytes: what is kept back first, then
// what has just been read.
type reader struct {
	s      *Scrubber
	src    io.Reader
	closer io.Closer
	resp   *http.Response
	n      *atomic.Int64

	buf   []byte
	carry int    // that many bytes at the start of buf belong to a secret that began before
	prev  bool   // the byte before buf was masked
	out   []byte // masked, not yet delivered
	ready []byte // backing store of out
	err   error  // of src, to be returned when everything is delivered
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.out) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// fill reads once and decides as much as can be decided.
func (r *reader) fill() {
	held := len(r.buf)
	r.buf = slices.Grow(r.buf, readSize)
	n, err := r.src.Read(r.buf[held : held+readSize])
	r.buf = r.buf[:held+n]
	if err == io.EOF {
		r.n.Add(r.s.Header(r.resp.Trailer)) // complete only now
	}
	r.err = err
	if n > 0 || err == io.EOF {
		r.decide(err == io.EOF) // what is undecided at another error is never delivered
	}
}

// decide moves the decided start of buf, masked, to out.
func (r *reader) decide(last bool) {
	end := len(r.buf)
	var m marks
	if r.carry > 0 {
		m = append(m, [2]int{0, min(r.carry, len(r.buf))})
	}
	for _, n := range r.s.body {
		m.find(r.buf, n)
		if !last {
			end = min(end, n.partial(r.buf))
		}
	}
	next := 0
	if end == 0 {
		next = r.carry
	}
	for _, k := range m {
		if k[0] < end {
			next = max(next, k[1]-end)
		}
	}
	r.ready = append(r.ready[:0], r.buf[:end]...)
	r.n.Add(m.apply(r.ready, end, &r.prev))
	r.out = r.ready
	r.carry = next
	r.buf = r.buf[:copy(r.buf, r.buf[end:])]
}

// Close closes the original body.
func (r *reader) Close() error { return r.closer.Close() }
