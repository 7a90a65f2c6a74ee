package runner

import (
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/rawfile"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// hostLink is the host's end of the socketpair, as a link of the stack: one packet
// of IP a datagram, with no header of its own and no checksums (a socketpair does
// not flip bits). gVisor's own link for descriptors cannot be closed, and leaves
// goroutines and descriptors behind. Go's poller would be told of every packet that
// the sandbox takes out, as of room to write; nobody waits for that.
type hostLink struct {
	wg sync.WaitGroup // the reader

	mu         sync.RWMutex
	fd         int                     // non-blocking; -1: closed
	dispatcher stack.NetworkDispatcher // nil: not attached
}

var _ stack.LinkEndpoint = (*hostLink)(nil)

// newHostLink takes ownership of fd, which must be non-blocking.
func newHostLink(fd int) *hostLink { return &hostLink{fd: fd} }

// Attach implements stack.LinkEndpoint. With nil, which is the end of the link, it
// returns when nothing is delivered any more.
func (l *hostLink) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	before := l.dispatcher
	l.dispatcher = d
	if d != nil && before == nil {
		l.wg.Add(1)
		go l.read(l.fd)
	}
	l.mu.Unlock()
	if d == nil {
		l.Close()
		l.wg.Wait()
		l.free()
	}
}

// Close implements stack.LinkEndpoint: it ends the reader.
func (l *hostLink) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 {
		_ = unix.Shutdown(l.fd, unix.SHUT_RDWR) // fails when the other side is gone, which ends it too
	}
}

// free closes the descriptor, which nobody reads any more.
func (l *hostLink) free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
}

// read delivers packets until the link is shut down, by either side.
func (l *hostLink) read(fd int) {
	defer l.wg.Done()
	buf := make([]byte, linkMTU)
	for {
		n := readPacket(fd, buf)
		if n == 0 {
			return
		}
		l.mu.RLock()
		d := l.dispatcher
		l.mu.RUnlock()
		if d == nil {
			return
		}
		// A copy, so that a small packet that waits somewhere holds little memory.
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(buf[:n])})
		pkt.RXChecksumValidated = true
		d.DeliverNetworkPacket(protocolOf(buf[0]), pkt)
		pkt.DecRef()
	}
}

// readPacket waits for the next one; 0 is the end of the link.
func readPacket(fd int, buf []byte) int {
	for {
		n, err := unix.Read(fd, buf)
		switch err {
		case nil:
			return max(n, 0)
		case unix.EAGAIN:
			_, _ = rawfile.BlockingPoll(&rawfile.PollEvent{FD: int32(fd), Events: unix.POLLIN}, 1, nil) // whatever it says, the read tells
		case unix.EINTR:
		case unix.ECONNRESET: // told once, where the other side went with packets that it had not taken; the end is next
		default:
			return 0
		}
	}
}

// protocolOf tells it from the version, the upper half of a packet's first byte;
// 0 is none.
func protocolOf(first byte) tcpip.NetworkProtocolNumber {
	switch first >> 4 {
	case header.IPv4Version:
		return ipv4.ProtocolNumber
	case header.IPv6Version:
		return ipv6.ProtocolNumber
	}
	return 0
}

// WritePackets implements stack.LinkWriter. What does not fit is dropped, as on
// any link; TCP sends it again.
func (l *hostLink) WritePackets(pkts stack.PacketBufferList) (sent int, terr tcpip.Error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.fd < 0 {
		return 0, &tcpip.ErrClosedForSend{}
	}
	for _, pkt := range pkts.AsSlice() {
		switch _, err := unix.Writev(l.fd, pkt.AsSlices()); err {
		case nil:
			sent++
		case unix.EAGAIN:
			return sent, &tcpip.ErrNoBufferSpace{}
		default:
			return sent, &tcpip.ErrClosedForSend{}
		}
	}
	return sent, nil
}

// IsAttached implements stack.LinkEndpoint.
func (l *hostLink) IsAttached() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.dispatcher != nil
}

// Capabilities implements stack.LinkEndpoint.
func (*hostLink) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

// The rest of stack.LinkEndpoint: there is no header, no address and one MTU.

func (*hostLink) MTU() uint32                             { return linkMTU }
func (*hostLink) SetMTU(uint32)                           {}
func (*hostLink) MaxHeaderLength() uint16                 { return 0 }
func (*hostLink) LinkAddress() tcpip.LinkAddress          { return "" }
func (*hostLink) SetLinkAddress(tcpip.LinkAddress)        {}
func (*hostLink) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (*hostLink) AddHeader(*stack.PacketBuffer)           {}
func (*hostLink) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (*hostLink) SetOnCloseAction(func())                 {}
func (l *hostLink) Wait()                                 { l.wg.Wait() }
