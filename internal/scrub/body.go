package scrub

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

const (
	readSize = 8 << 10 // bytes that are read at once for a caller with a small buffer
	roomy    = 2 << 10 // bytes beyond what is held from which a caller's buffer is used itself
)

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
	return s.Messages(resp, nil)
}

// Messages is Body for a stream of messages, of which whole ones are never held
// back.
func (s *Scrubber) Messages(resp *http.Response, ends *Ends) (body io.ReadCloser, n *atomic.Int64, err error) {
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
	return &reader{s: s, src: src, closer: resp.Body, resp: resp, n: n, ends: ends}, n, nil
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

// reader masks a stream. It reads into the caller's buffer where that has room, and
// keeps only what is not decided yet.
type reader struct {
	s      *Scrubber
	src    io.Reader
	closer io.Closer
	resp   *http.Response
	n      *atomic.Int64
	ends   *Ends // nil: a stream without messages

	held  []byte // original bytes that may be the start of a secret
	carry int    // that many bytes from the start of held belong to a secret that began before
	prev  bool   // the byte before held was masked
	marks marks  // room of the last decision
	out   []byte // masked, not yet delivered, in own
	own   []byte // for callers with a small buffer
	err   error  // of src, to be returned when everything is delivered
}

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if len(r.out) > 0 {
			n := copy(p, r.out)
			r.out = r.out[n:]
			return n, nil
		}
		if r.err != nil {
			return 0, r.err
		}
		if len(p) >= len(r.held)+roomy {
			if n := r.fill(p); n > 0 {
				return n, nil
			}
			continue
		}
		if need := len(r.held) + readSize; len(r.own) < need {
			r.own = make([]byte, need)
		}
		r.out = r.own[:r.fill(r.own)]
	}
}

// fill reads once into b, masks what can be decided and returns its length. What
// cannot is put back in held, and nothing of it is left in b.
func (r *reader) fill(b []byte) int {
	have := copy(b, r.held)
	n, err := r.src.Read(b[have:])
	whole := 0 // as much of b as ends with a message
	if k := r.ends.feed(b[have : have+n]); k > 0 {
		whole = have + k
	}
	have += n
	if err == io.EOF {
		r.n.Add(r.s.Header(r.resp.Trailer)) // complete only now
	}
	r.err = err
	end := 0
	if n > 0 || err == io.EOF { // what is undecided at another error is never delivered
		end = r.decide(b[:have], whole, err == io.EOF)
	}
	r.held = append(r.held[:0], b[end:have]...)
	clear(b[end:have])
	return end
}

// decide masks the start of b that can be decided, at least whole, and returns its
// length.
func (r *reader) decide(b []byte, whole int, last bool) (end int) {
	end = len(b)
	m := r.marks[:0]
	if r.carry > 0 {
		m = m.add(0, min(r.carry, len(b)))
	}
	m = r.s.body.find(b, m)
	if !last {
		end = max(r.s.body.partial(b), whole)
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
	r.n.Add(m.apply(b, end, &r.prev))
	r.carry, r.marks = next, m
	return end
}

// Close closes the original body.
func (r *reader) Close() error { return r.closer.Close() }
