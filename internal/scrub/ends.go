package scrub

import "encoding/binary"

// Ends finds where messages end in a stream that is cut into them. Nothing is held
// back at such an end: whoever gets the message may have to answer before another
// comes. A secret cannot lie across it either, because the next message's head is
// in between. It belongs to one stream.
type Ends struct {
	head func(h []byte) (payload uint64, whole bool) // reads a message's head
	seen []byte                                      // of a head that is not whole yet
	left uint64                                      // bytes of payload to come
}

// WebSocketEnds are the ends of frames (RFC 6455 §5.2).
func WebSocketEnds() *Ends {
	return &Ends{head: func(h []byte) (uint64, bool) {
		if len(h) < 2 {
			return 0, false
		}
		size, n := 2, uint64(h[1]&0x7f)
		switch n {
		case 126:
			size += 2
		case 127:
			size += 8
		}
		extended := size
		if h[1]&0x80 != 0 {
			size += 4 // the masking key
		}
		if len(h) < size {
			return 0, false
		}
		switch n {
		case 126:
			n = uint64(binary.BigEndian.Uint16(h[2:extended]))
		case 127:
			n = binary.BigEndian.Uint64(h[2:extended])
		}
		return n, true
	}}
}

// GRPCEnds are the ends of length-prefixed messages ("gRPC over HTTP2").
func GRPCEnds() *Ends {
	return &Ends{head: func(h []byte) (uint64, bool) {
		if len(h) < 5 {
			return 0, false
		}
		return uint64(binary.BigEndian.Uint32(h[1:5])), true
	}}
}

// feed takes the next bytes and returns the offset behind the last message that
// ends in them; 0 when none does. A nil Ends finds none.
func (e *Ends) feed(p []byte) (last int) {
	if e == nil {
		return 0
	}
	for i := 0; i < len(p); {
		if e.left > 0 {
			n := min(uint64(len(p)-i), e.left)
			i += int(n)
			if e.left -= n; e.left == 0 {
				last = i
			}
			continue
		}
		e.seen = append(e.seen, p[i])
		i++
		if n, whole := e.head(e.seen); whole {
			e.seen, e.left = e.seen[:0], n
			if n == 0 {
				last = i
			}
		}
	}
	return last
}
