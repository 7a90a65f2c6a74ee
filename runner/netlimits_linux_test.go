package runner

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// guestStack is the sandbox's side of a link as a stack of its own.
func guestStack(t *testing.T, handle connHandler) (*network, func() (net.Conn, error)) {
	t.Helper()
	host, guest, err := linkPair()
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNetwork(host, handle)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(guest.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	guest.Close()
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	link := newHostLink(fd)
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	own := tcpip.AddrFrom4(netip.MustParseAddr(sandboxAddr).As4())
	if err := s.CreateNIC(1, link); err != nil {
		t.Fatal(err)
	}
	pa := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: own.WithPrefix()}
	if err := s.AddProtocolAddress(1, pa, stack.AddressProperties{}); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	t.Cleanup(func() { s.Close(); link.Attach(nil); n.close() })
	dst := tcpip.FullAddress{NIC: 1, Addr: tcpip.AddrFrom4([4]byte{203, 0, 113, 9}), Port: 80}
	return n, func() (net.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		return gonet.DialContextTCP(ctx, s, dst, ipv4.ProtocolNumber)
	}
}

// TestConnectionsOfARunAreCapped_I9: past the cap a connection is reset and
// counted; the end of one makes room.
func TestConnectionsOfARunAreCapped_I9(t *testing.T) {
	accepted := make(chan net.Conn, maxConnections+2)
	n, dial := guestStack(t, func(c net.Conn, _ netip.AddrPort) { accepted <- c })
	for i := range maxConnections {
		if _, err := dial(); err != nil {
			t.Fatalf("connection %d of %d: %v", i+1, maxConnections, err)
		}
	}
	if c, err := dial(); err == nil {
		t.Error("one more than the cap: ", c.LocalAddr())
	}
	if got := n.drops.snapshot()["connections"]; got == 0 {
		t.Error("what was refused is not counted")
	}
	for range maxConnections {
		(<-accepted).Close()
	}
	if _, err := dial(); err != nil {
		t.Error("after the others ended: ", err)
	}
}

// TestHalfOpenConnectionsAreBounded_I9: a flood of first packets takes a bounded
// part of the table, and the resolver answers beside it.
func TestHalfOpenConnectionsAreBounded_I9(t *testing.T) {
	n, fd := guestEnd(t, func(c net.Conn, _ netip.AddrPort) { c.Close() })
	const flood = 4 * maxHalfOpen
	for i := range flood {
		syn := tcpSYN(80)
		binary.BigEndian.PutUint16(syn, uint16(10000+i))
		sendPacket(t, fd, ipv4Packet(6, "203.0.113.9", syn, nil))
	}
	sendPacket(t, fd, ipv4Packet(17, resolverAddr, udpPayload(53, query(t, "a.test.", dnsmessage.TypeA, dnsmessage.ClassINET)), nil))
	answered := map[uint16]bool{}
	for {
		p := receivePacket(t, fd)
		if p[9] == 17 {
			break // after the flood in the link, so all of it was looked at
		}
		answered[header.TCP(p[20:]).DestinationPort()] = true
	}
	if len(answered) > maxHalfOpen {
		t.Errorf("%d half-open connections", len(answered))
	}
	if dropped := n.stack.Stats().TCP.ForwardMaxInFlightDrop.Value(); dropped < flood-maxHalfOpen {
		t.Errorf("only %d of %d were dropped", dropped, flood)
	}
}

// TestHalfCloseAndLargeTransfers: one side says that it is done, and goes on to
// read; every byte arrives, both ways at once.
func TestHalfCloseAndLargeTransfers(t *testing.T) {
	mib := 32
	if s := os.Getenv("WARDER_SOAK_TRANSFER_MIB"); s != "" {
		var err error
		if mib, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	size := int64(mib) << 20
	type end struct {
		sum string
		err error
	}
	exchange := func(c net.Conn, seed byte) end {
		sent := make(chan error, 1)
		go func() {
			_, err := io.Copy(c, io.LimitReader(pattern(seed), size))
			if err == nil {
				err = c.(interface{ CloseWrite() error }).CloseWrite()
			}
			sent <- err
		}()
		sum := sha256.New()
		n, err := io.Copy(sum, c)
		if err == nil && n != size {
			err = fmt.Errorf("%d of %d bytes", n, size)
		}
		if serr := <-sent; err == nil {
			err = serr
		}
		return end{string(sum.Sum(nil)), err}
	}
	server := make(chan end, 1)
	_, dial := guestStack(t, func(c net.Conn, _ netip.AddrPort) { server <- exchange(c, 1); c.Close() })
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	client := exchange(c, 2)
	for name, got := range map[byte]end{1: client, 2: <-server} {
		want := sha256.New()
		if _, err := io.Copy(want, io.LimitReader(pattern(name), size)); err != nil {
			t.Fatal(err)
		}
		if got.err != nil || got.sum != string(want.Sum(nil)) {
			t.Errorf("from side %d: %v, same bytes: %v", name, got.err, got.sum == string(want.Sum(nil)))
		}
	}
}

// pattern is an endless stream that differs everywhere.
type patternReader struct{ seed, at byte }

func pattern(seed byte) io.Reader { return &patternReader{seed: seed} }

func (p *patternReader) Read(b []byte) (int, error) {
	for i := range b {
		p.at += p.seed + byte(i>>8)
		b[i] = p.at
	}
	return len(b), nil
}

// TestManyShortConnections: each gives everything back.
func TestManyShortConnections(t *testing.T) {
	count := 3000
	if s := os.Getenv("WARDER_SOAK_CONNECTIONS"); s != "" {
		var err error
		if count, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	n, dial := guestStack(t, func(c net.Conn, _ netip.AddrPort) {
		b := make([]byte, 4)
		if _, err := io.ReadFull(c, b); err == nil {
			_, _ = c.Write(b)
		}
		c.Close()
	})
	var before int
	for i := range count {
		c, err := dial()
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		if _, err := c.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); err != nil || string(b) != "ping" {
			t.Fatalf("connection %d: %q %v", i, b, err)
		}
		c.Close()
		if i == 100 {
			before = runtime.NumGoroutine()
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for (n.open.Load() > 0 || runtime.NumGoroutine() > before+20) && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond) // the last ones end beside us
	}
	if open, now := n.open.Load(), runtime.NumGoroutine(); open > 0 || now > before+20 {
		t.Errorf("%d connections are open; %d goroutines, after 100 connections %d", open, now, before)
	}
}

// FuzzHostStack throws series of hostile packets at the whole host side: whatever
// comes, it goes on to resolve names.
func FuzzHostStack(f *testing.F) {
	syn := tcpSYN(80)
	f.Add(append([]byte{6, 20}, syn...))
	f.Add(append(append([]byte{6, 20}, syn...), append([]byte{6, 20}, syn...)...))
	f.Add(append([]byte{17, 20}, udpPayload(53, make([]byte, 12))...))
	f.Add([]byte{6, 8, 0, 80, 0, 80, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, fd := guestEnd(t, func(c net.Conn, _ netip.AddrPort) { c.Close() })
		for len(b) > 2 {
			proto, size := b[0], min(int(b[1]), len(b)-2)
			payload := b[2 : 2+size]
			dst := "203.0.113.9"
			if proto == 17 {
				dst = resolverAddr
			}
			p := ipv4Packet(proto, dst, payload, func(h []byte) {
				if proto > 200 && size > 1 { // a header that lies
					h[0], h[2], h[3], h[9] = 0x40|payload[0]&15, payload[1], byte(size), 6
				}
			})
			sendPacket(t, fd, p)
			b = b[2+size:]
		}
		q := query(t, "alive.test.", dnsmessage.TypeA, dnsmessage.ClassINET)
		binary.BigEndian.PutUint16(q, 0xbeef)
		sendPacket(t, fd, ipv4Packet(17, resolverAddr, udpPayload(53, q), nil))
		for {
			p := receivePacket(t, fd)
			if len(p) > 30 && p[9] == 17 && binary.BigEndian.Uint16(p[28:]) == 0xbeef {
				return
			}
		}
	})
}
