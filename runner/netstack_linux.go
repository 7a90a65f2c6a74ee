package runner

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Addresses inside the sandbox, besides resolverAddr. Nothing outside this
// package depends on them but the documentation.
const (
	sandboxAddr  = "10.0.2.15"
	explicitAddr = "10.0.2.2" // answers as an explicit proxy on explicitPort
	explicitPort = 3128

	linkMTU        = 65535   // 1500 costs several times the CPU; both ends are ours
	linkBuffer     = 4 << 20 // bytes each way in the socketpair
	maxHalfOpen    = 256     // SYNs being answered at once
	maxConnections = 1024    // open TCP connections of one run
	tcpBufDefault  = 1 << 20
	tcpBufMax      = 4 << 20
	nicID          = 1
)

// connHandler receives what the sandbox opened. It takes ownership of c.
type connHandler func(c net.Conn, dst netip.AddrPort)

// network is the host side of one run's only network interface.
type network struct {
	stack   *stack.Stack
	link    *hostLink
	names   *names
	dns     *gonet.UDPConn
	handle  connHandler
	socket  net.Listener // nil but in the fallback; set before the task runs
	drops   dropCounters
	open    atomic.Int64
	pending atomic.Pointer[pendingProbe]
	wg      sync.WaitGroup
	once    sync.Once
}

// dropCounters counts what led nowhere, by kind.
type dropCounters struct {
	udp, icmp, ipv6, fragment, other, connections atomic.Uint64
}

// snapshot returns the kinds that were seen.
func (d *dropCounters) snapshot() map[string]uint64 {
	out := map[string]uint64{}
	for kind, v := range map[string]*atomic.Uint64{
		"udp": &d.udp, "icmp": &d.icmp, "ipv6": &d.ipv6, "fragment": &d.fragment, "other": &d.other, "connections": &d.connections,
	} {
		if n := v.Load(); n > 0 {
			out[kind] = n
		}
	}
	return out
}

// linkPair makes the socketpair: host is our end, guest becomes the sandbox's NIC.
func linkPair() (host int, guest *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, nil, fmt.Errorf("network link: socketpair: %w", err)
	}
	for _, fd := range fds {
		for force, plain := range map[int]int{unix.SO_SNDBUFFORCE: unix.SO_SNDBUF, unix.SO_RCVBUFFORCE: unix.SO_RCVBUF} {
			if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, linkBuffer) != nil {
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, linkBuffer) // the kernel caps it; smaller works
			}
		}
	}
	return fds[0], os.NewFile(uintptr(fds[1]), "link"), nil
}

// newNetwork builds the stack on fd, of which it takes ownership.
func newNetwork(fd int, handle connHandler) (*network, error) {
	n := &network{names: newNames(maxNames), handle: handle, link: newHostLink(fd)}
	n.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	f := &linkFilter{drops: &n.drops, pending: &n.pending}
	f.Init(n.link, f)
	if err := n.configure(f); err != nil {
		n.stack.Close()
		n.link.Attach(nil)
		return nil, err
	}
	n.wg.Add(1)
	go n.serveDNS()
	return n, nil
}

func (n *network) configure(nic stack.LinkEndpoint) error {
	if err := n.stack.CreateNIC(nicID, nic); err != nil {
		return tcpipError("network interface", err)
	}
	if err := n.stack.SetPromiscuousMode(nicID, true); err != nil {
		return tcpipError("network interface", err)
	}
	if err := n.stack.SetSpoofing(nicID, true); err != nil {
		return tcpipError("network interface", err)
	}
	n.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nicID}})
	sack := tcpip.TCPSACKEnabled(true)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: tcpBufDefault, Max: tcpBufMax}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: tcpBufDefault, Max: tcpBufMax}
	// Nothing of a connection is still under way on a link of ours when it has ended.
	// Waiting for it would only make a new one with the same ports wait as well.
	wait := tcpip.TCPTimeWaitTimeoutOption(time.Millisecond)
	for _, opt := range []tcpip.SettableTransportProtocolOption{&sack, &rcv, &snd, &wait} {
		if err := n.stack.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			return tcpipError("tcp option", err)
		}
	}
	fwd := tcp.NewForwarder(n.stack, tcpBufDefault, maxHalfOpen, n.accept)
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, fwd.HandlePacket)

	resolver := tcpip.AddrFrom4(netip.MustParseAddr(resolverAddr).As4())
	pa := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: resolver.WithPrefix()}
	if err := n.stack.AddProtocolAddress(nicID, pa, stack.AddressProperties{}); err != nil {
		return tcpipError("resolver address", err)
	}
	pc, err := gonet.DialUDP(n.stack, &tcpip.FullAddress{NIC: nicID, Addr: resolver, Port: 53}, nil, ipv4.ProtocolNumber)
	if err != nil {
		return fmt.Errorf("resolver: %w", err)
	}
	n.dns = pc
	return nil
}

func tcpipError(what string, err tcpip.Error) error {
	return fmt.Errorf("%s: %w", what, errors.New(err.String()))
}

// accept completes the handshake of any TCP connection to any address and hands
// it over with its original destination. Past the cap it is reset and counted.
func (n *network) accept(r *tcp.ForwarderRequest) {
	if !n.enter() {
		r.Complete(true)
		return
	}
	id := r.ID()
	var wq waiter.Queue
	ep, err := r.CreateEndpoint(&wq)
	if err != nil {
		n.open.Add(-1)
		// An older connection with the same ports is just going: the sandbox asks
		// again. Anything else is refused.
		_, going := err.(*tcpip.ErrPortInUse)
		r.Complete(!going)
		return
	}
	r.Complete(false)
	addr, ok := netip.AddrFromSlice(id.LocalAddress.AsSlice())
	c := &countedConn{TCPConn: gonet.NewTCPConn(&wq, ep), ep: ep, place: place{open: &n.open}}
	if !ok {
		c.Reset()
		return
	}
	n.handle(c, netip.AddrPortFrom(addr, id.LocalPort))
}

// enter takes one of a run's places for connections, or counts that there was none.
func (n *network) enter() bool {
	if n.open.Add(1) <= maxConnections {
		return true
	}
	n.open.Add(-1)
	n.drops.connections.Add(1)
	return false
}

// place is what enter took.
type place struct {
	open *atomic.Int64
	once sync.Once
}

func (p *place) leave() { p.once.Do(func() { p.open.Add(-1) }) }

// countedConn gives its place back when it is closed.
type countedConn struct {
	*gonet.TCPConn
	place
	ep tcpip.Endpoint
}

func (c *countedConn) Close() error {
	c.leave()
	return c.TCPConn.Close()
}

// Reset ends the connection with a RST instead of a FIN.
func (c *countedConn) Reset() {
	c.leave()
	c.ep.Abort()
}

func (n *network) serveDNS() {
	defer n.wg.Done()
	buf := make([]byte, 1500)
	for {
		k, from, err := n.dns.ReadFrom(buf)
		if err != nil {
			return
		}
		if reply := n.names.answer(buf[:k]); reply != nil {
			_, _ = n.dns.WriteTo(reply, from) // a lost answer is asked again
		}
	}
}

// close ends the stack: every connection is reset and the link's reader stops.
func (n *network) close() {
	n.once.Do(func() {
		_ = n.dns.Close()
		if n.socket != nil {
			_ = n.socket.Close()
		}
		n.stack.Close()
		n.link.Attach(nil)
		n.wg.Wait()
	})
}

// linkFilter passes only IPv4 TCP and DNS to the resolver; the rest is counted
// and never seen by the stack.
type linkFilter struct {
	nested.Endpoint
	drops   *dropCounters
	pending *atomic.Pointer[pendingProbe]
}

// DeliverNetworkPacket implements stack.NetworkDispatcher.
func (f *linkFilter) DeliverNetworkPacket(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	if !f.pass(proto, pkt) {
		return
	}
	f.Endpoint.DeliverNetworkPacket(proto, pkt)
}

func (f *linkFilter) pass(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) bool {
	if proto == header.IPv6ProtocolNumber {
		f.drops.ipv6.Add(1)
		return false
	}
	h, ok := pkt.Data().PullUp(header.IPv4MinimumSize)
	if proto != header.IPv4ProtocolNumber || !ok {
		f.drops.other.Add(1)
		return false
	}
	ip := header.IPv4(h)
	if ip.More() || ip.FragmentOffset() != 0 {
		f.drops.fragment.Add(1)
		return false
	}
	switch ip.TransportProtocol() {
	case header.TCPProtocolNumber:
		return true
	case header.UDPProtocolNumber:
		n := int(ip.HeaderLength())
		h, ok := pkt.Data().PullUp(n + header.UDPMinimumSize)
		if ok && header.UDP(h[n:]).DestinationPort() == 53 && ip.DestinationAddress() == tcpip.AddrFrom4(resolver4) {
			return true
		}
		f.drops.udp.Add(1)
	case header.ICMPv4ProtocolNumber:
		if !f.pending.Load().answers(ip, pkt) {
			f.drops.icmp.Add(1)
		}
	default:
		f.drops.other.Add(1)
	}
	return false
}

var resolver4 = netip.MustParseAddr(resolverAddr).As4()
