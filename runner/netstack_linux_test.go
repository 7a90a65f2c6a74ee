package runner

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// ipv4 makes a packet of the protocol from the sandbox's address to dst.
func ipv4Packet(proto byte, dst string, payload []byte, change func(h []byte)) []byte {
	p := make([]byte, 20+len(payload))
	p[0], p[8], p[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], netip.MustParseAddr(sandboxAddr).AsSlice())
	copy(p[16:], netip.MustParseAddr(dst).AsSlice())
	copy(p[20:], payload)
	if change != nil {
		change(p)
	}
	if h := header.IPv4(p); int(h.HeaderLength()) <= len(p) { // a header that lies may claim more
		h.SetChecksum(0)
		h.SetChecksum(^h.CalculateChecksum())
	}
	return p
}

func udpPayload(port uint16, data []byte) []byte {
	u := make([]byte, 8+len(data))
	binary.BigEndian.PutUint16(u, 40000)
	binary.BigEndian.PutUint16(u[2:], port)
	binary.BigEndian.PutUint16(u[4:], uint16(len(u)))
	copy(u[8:], data)
	return u
}

func tcpSYN(port uint16) []byte {
	s := make([]byte, 20)
	binary.BigEndian.PutUint16(s, 40001)
	binary.BigEndian.PutUint16(s[2:], port)
	binary.BigEndian.PutUint32(s[4:], 1)
	s[12], s[13] = 5<<4, 2
	binary.BigEndian.PutUint16(s[14:], 65535)
	return s
}

// guestEnd is a network of its own and the sandbox's end of its link.
func guestEnd(t testing.TB, handle connHandler) (*network, int) {
	t.Helper()
	host, guest, err := linkPair()
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNetwork(host, handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.Close(); n.close() })
	fd := int(guest.Fd())
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		t.Fatal(err)
	}
	return n, fd
}

func sendPacket(t testing.TB, fd int, p []byte) {
	t.Helper()
	if err := unix.Send(fd, p, 0); err != nil {
		t.Fatal(err)
	}
}

func receivePacket(t testing.TB, fd int) []byte {
	t.Helper()
	b := make([]byte, linkMTU)
	n, _, err := unix.Recvfrom(fd, b, 0)
	for err == unix.EINTR { // not restarted where there is a time limit (signal(7))
		n, _, err = unix.Recvfrom(fd, b, 0)
	}
	if err != nil {
		t.Fatal("nothing came back: ", err)
	}
	return b[:n]
}

// TestOnlyTCPAndTheResolverPassTheLink sends every other kind of packet first,
// and then what passes: the answers show that the link was read in order.
func TestOnlyTCPAndTheResolverPassTheLink(t *testing.T) { // I1
	conns := make(chan netip.AddrPort, 8)
	n, fd := guestEnd(t, func(c net.Conn, dst netip.AddrPort) { conns <- dst; c.Close() })
	q := query(t, "a.test.", dnsmessage.TypeA, dnsmessage.ClassINET)
	for _, p := range [][]byte{
		ipv4Packet(17, "8.8.8.8", udpPayload(53, q), nil),                                               // another resolver
		ipv4Packet(17, resolverAddr, udpPayload(54, q), nil),                                            // another port
		ipv4Packet(17, "10.0.2.2", udpPayload(53, q), nil),                                              // another address of ours
		ipv4Packet(17, resolverAddr, []byte{1, 2}, nil),                                                 // too short for a header
		ipv4Packet(1, "8.8.8.8", make([]byte, 16), nil),                                                 // ICMP
		ipv4Packet(47, "8.8.8.8", make([]byte, 16), nil),                                                // GRE
		ipv4Packet(132, "8.8.8.8", make([]byte, 16), nil),                                               // SCTP
		ipv4Packet(41, "8.8.8.8", make([]byte, 40), nil),                                                // IPv6 in IPv4
		ipv4Packet(6, "8.8.8.8", tcpSYN(80), func(h []byte) { h[6] = 0x20 }),                            // first fragment
		ipv4Packet(6, "8.8.8.8", tcpSYN(80), func(h []byte) { h[7] = 1 }),                               // later fragment
		append([]byte{0x60}, make([]byte, 60)...),                                                       // IPv6
		append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 2, 2, 2, 2, 2, 8, 6}, make([]byte, 28)...), // ARP in Ethernet
		{0, 1, 8, 0, 6, 4, 0, 2, 2, 2, 2, 2, 2, 2, 10, 0, 2, 3},                                         // ARP without
		{0x45}, {0}, {0xff, 0xff}, // no header at all
	} {
		sendPacket(t, fd, p)
	}
	sendPacket(t, fd, ipv4Packet(17, resolverAddr, udpPayload(53, q), nil))
	answer := receivePacket(t, fd)
	if header.IPv4(answer).SourceAddress() != tcpip.AddrFrom4(resolver4) || len(reply(t, answer[28:]).Answers) != 1 {
		t.Errorf("the resolver's answer: % x", answer)
	}
	sendPacket(t, fd, ipv4Packet(6, "203.0.113.9", tcpSYN(8080), nil))
	synack := receivePacket(t, fd)
	if f := header.TCP(synack[20:]).Flags(); f != header.TCPFlagSyn|header.TCPFlagAck || header.IPv4(synack).SourceAddress() != tcpip.AddrFrom4([4]byte{203, 0, 113, 9}) {
		t.Errorf("flags %v from %v", f, header.IPv4(synack).SourceAddress())
	}
	got := n.drops.snapshot()
	if got["udp"] != 4 || got["icmp"] != 1 || got["fragment"] != 2 || got["ipv6"] != 1 || got["other"] < 5 {
		t.Errorf("counted %v", got)
	}
	n.names.mu.Lock()
	if len(n.names.byName) != 1 {
		t.Errorf("names: %v", n.names.byName)
	}
	n.names.mu.Unlock()
	select {
	case dst := <-conns:
		t.Errorf("an unfinished handshake was handed over: %v", dst)
	default:
	}
	ack := tcpSYN(8080)
	binary.BigEndian.PutUint32(ack[4:], 2)
	binary.BigEndian.PutUint32(ack[8:], header.TCP(synack[20:]).SequenceNumber()+1)
	ack[13] = 0x10
	sendPacket(t, fd, ipv4Packet(6, "203.0.113.9", ack, nil))
	select {
	case dst := <-conns:
		if dst != netip.MustParseAddrPort("203.0.113.9:8080") {
			t.Errorf("handed over as %v", dst)
		}
	case <-time.After(10 * time.Second):
		t.Error("control: a finished handshake was not handed over")
	}
}

// TestAFalseSourceStaysInItsRun: whatever address a packet says that it comes from,
// it is its run's, and the answer goes back to where it came from and nowhere else.
func TestAFalseSourceStaysInItsRun_I1_I9(t *testing.T) {
	var mine, theirs atomic.Int64
	_, fd := guestEnd(t, func(c net.Conn, _ netip.AddrPort) { mine.Add(1); c.Close() })
	_, other := guestEnd(t, func(c net.Conn, _ netip.AddrPort) { theirs.Add(1); c.Close() })
	for i, from := range []string{sandboxAddr, "10.0.2.16", "192.0.2.77", "198.18.0.9", "169.254.169.254"} {
		from := netip.MustParseAddr(from)
		packet := func(seg []byte) []byte {
			return ipv4Packet(6, "203.0.113.9", seg, func(h []byte) { copy(h[12:], from.AsSlice()) })
		}
		syn := tcpSYN(80)
		sendPacket(t, fd, packet(syn))
		synack := receivePacket(t, fd)
		if got := header.IPv4(synack).DestinationAddress(); got != tcpip.AddrFrom4(from.As4()) {
			t.Fatalf("from %v, answered to %v", from, got)
		}
		ack := tcpSYN(80)
		binary.BigEndian.PutUint32(ack[4:], 2)
		binary.BigEndian.PutUint32(ack[8:], header.TCP(synack[20:]).SequenceNumber()+1)
		ack[13] = 0x10
		sendPacket(t, fd, packet(ack))
		for header.TCP(receivePacket(t, fd)[20:]).Flags()&header.TCPFlagFin == 0 {
		}
		if mine.Load() != int64(i+1) {
			t.Errorf("%v: %d connections", from, mine.Load())
		}
	}
	// What the other run has on its link is the answer to its own question alone.
	q := query(t, "b.test.", dnsmessage.TypeA, dnsmessage.ClassINET)
	sendPacket(t, other, ipv4Packet(17, resolverAddr, udpPayload(53, q), nil))
	if p := receivePacket(t, other); p[9] != 17 || theirs.Load() != 0 {
		t.Errorf("the other run got % x, and %d connections", p[:20], theirs.Load())
	}
}

// FuzzLink throws arbitrary packets at the host's side of the link: it neither
// dies nor sends anything but TCP and DNS answers back.
func FuzzLink(f *testing.F) {
	q := query(f, "a.test.", dnsmessage.TypeA, dnsmessage.ClassINET)
	f.Add(ipv4Packet(17, resolverAddr, udpPayload(53, q), nil))
	f.Add(ipv4Packet(6, "203.0.113.9", tcpSYN(80), nil))
	f.Add(ipv4Packet(1, "203.0.113.9", make([]byte, 8), nil))
	f.Add(append([]byte{0x4f}, make([]byte, 80)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > linkMTU {
			return
		}
		drops := &dropCounters{}
		filter := &linkFilter{drops: drops, pending: &atomic.Pointer[pendingProbe]{}}
		proto := header.IPv4ProtocolNumber
		if b[0]>>4 == 6 {
			proto = header.IPv6ProtocolNumber
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
		defer pkt.DecRef()
		passed := filter.pass(proto, pkt)
		total := uint64(0)
		for _, c := range drops.snapshot() {
			total += c
		}
		if passed == (total == 1) {
			t.Fatalf("passed %v, counted %d", passed, total)
		}
		if passed && (proto != header.IPv4ProtocolNumber || len(b) < 20 || b[9] != 6 && b[9] != 17) {
			t.Fatalf("passed: % x", b[:min(len(b), 28)])
		}
	})
}
