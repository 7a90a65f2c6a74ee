package proxy

import (
	"net"
	"sync"
)

// places counts the connections of a listener: each client may have so many, and so
// many may be there whose client is not known yet. When there are more of those, the
// one that has been there longest has to go, so that nobody is kept out by others
// who say nothing.
type places struct {
	most int

	mu      sync.Mutex
	came    uint64
	unknown map[net.Conn]uint64 // when they came, counted
	client  map[net.Conn]Client
	of      map[Client]int // connections of each client
}

func newPlaces(most int) *places {
	return &places{most: most, unknown: make(map[net.Conn]uint64), client: make(map[net.Conn]Client), of: make(map[Client]int)}
}

// arrive takes in a connection.
func (p *places) arrive(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.came++
	p.unknown[c] = p.came
	if len(p.unknown) <= p.most {
		return
	}
	var oldest net.Conn
	first := p.came
	for o, came := range p.unknown {
		if came < first {
			oldest, first = o, came
		}
	}
	delete(p.unknown, oldest)
	_ = oldest.Close()
}

// settle gives a connection to its client, and is false when that has enough.
func (p *places) settle(c net.Conn, client Client) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, settled := p.client[c]
	if settled && was == client {
		return true
	}
	if p.of[client] >= p.most {
		return false
	}
	p.leave(c)
	p.client[c] = client
	p.of[client]++
	return true
}

// unsettle takes a connection back from a client that is not known any more.
func (p *places) unsettle(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, settled := p.client[c]; settled {
		p.leave(c)
		p.came++
		p.unknown[c] = p.came
	}
}

// turnOut closes what a client has open, also what waits for its next request.
func (p *places) turnOut(client Client) {
	var open []net.Conn
	p.mu.Lock()
	for c, of := range p.client {
		if of == client {
			open = append(open, c)
		}
	}
	p.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// gone forgets a connection that has ended.
func (p *places) gone(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(c)
}

func (p *places) leave(c net.Conn) {
	delete(p.unknown, c)
	if client, settled := p.client[c]; settled {
		delete(p.client, c)
		if p.of[client]--; p.of[client] == 0 {
			delete(p.of, client)
		}
	}
}
