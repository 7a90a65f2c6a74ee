package proxy

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// sendingEnd is what an HTTP/1 connection knows of the end of its client's sending
// side. A client may end it once its request is out and still want the answer
// (RFC 9112 §9.6: a half-closed connection), while net/http takes the end for a
// client that has gone, and gives up what it asked for.
//
// So the end is held back while a request that arrived whole is not answered. One
// that has gone altogether looks the same on TCP: where nothing reaches it for the
// idle limit it counts as gone. Within TLS the two differ: there the end of the
// transport itself is a client that has gone.
type sendingEnd struct {
	came  atomic.Bool
	moved atomic.Int64 // when something was last written to the client, Unix ns

	mu       sync.Mutex
	deadline time.Time
	closed   bool
	wake     chan struct{} // nil: nobody waits
}

// holds reports that err is not to be told yet: the end, or a broken request that
// was sent before the answer to a good one.
func (c *clientConn) holds(err error) bool {
	var broken *framingError
	return (errors.Is(err, io.EOF) || errors.As(err, &broken)) && c.fr.phase == inHead && c.fr.passed > c.answers.Load()
}

// hold returns when the server no longer waits for the answer; with end when it has
// waited for too long.
func (c *clientConn) hold(end error) error {
	s := &c.end
	s.moved.Store(time.Now().UnixNano())
	s.came.Store(true)
	var gone chan struct{}
	limit := c.p.limits.IdleTimeout
	if c.arr.tls {
		gone, limit = make(chan struct{}), 0
		go transportEnd(c.raw, gone)
	}
	for {
		wake, wait, err := s.next(limit)
		if errors.Is(err, io.EOF) {
			return end
		}
		if err != nil {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-wake:
		case <-timer.C:
		case <-gone:
			timer.Stop()
			return end
		}
		timer.Stop()
	}
}

// next says how long to wait for what; no limit is 0.
func (s *sendingEnd) next(limit time.Duration) (wake chan struct{}, wait time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = time.Hour
	if limit > 0 {
		wait = time.Until(time.Unix(0, s.moved.Load()).Add(limit))
	}
	switch {
	case s.closed:
		return nil, 0, net.ErrClosed
	case !s.deadline.IsZero() && time.Until(s.deadline) <= 0:
		return nil, 0, os.ErrDeadlineExceeded
	case wait <= 0:
		return nil, 0, io.EOF
	}
	if !s.deadline.IsZero() {
		wait = min(wait, time.Until(s.deadline))
	}
	if s.wake == nil {
		s.wake = make(chan struct{})
	}
	return s.wake, wait, nil
}

// transportEnd waits until nothing can come any more from below TLS. What comes
// after TLS has ended is of no interest.
func transportEnd(raw net.Conn, gone chan<- struct{}) {
	var b [64]byte
	for {
		if _, err := raw.Read(b[:]); err != nil {
			if !isTimeout(err) { // that is the server, which has stopped waiting
				close(gone)
			}
			return
		}
	}
}

func (s *sendingEnd) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// SetReadDeadline implements net.Conn; net/http ends a read that waits with it.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	err := c.Conn.SetReadDeadline(t)
	c.end.change(func() { c.end.deadline = t })
	return err
}

// SetDeadline implements net.Conn.
func (c *clientConn) SetDeadline(t time.Time) error {
	err := c.Conn.SetDeadline(t)
	c.end.change(func() { c.end.deadline = t })
	return err
}

// Close implements net.Conn.
func (c *clientConn) Close() error {
	c.end.change(func() { c.end.closed = true })
	return c.Conn.Close()
}
