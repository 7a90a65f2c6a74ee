package runner

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// hostLink is the host's end of the socketpair, as a link of the stack: one packet
// of IP a datagram, with no header of its own and no checksums (a socketpair does
// not flip bits). gVisor's own link for descriptors cannot be closed, and leaves
// goroutines and descriptors behind.
type hostLink struct {
	f   *os.File // non-blocking, so that Close ends a Read
	raw syscall.RawConn
	wg  sync.WaitGroup

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher // nil: not attached
}

var _ stack.LinkEndpoint = (*hostLink)(nil)

// newHostLink takes ownership of fd.
func newHostLink(fd int) (*hostLink, error) {
	f := os.NewFile(uintptr(fd), "link")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("network link: %w", err)
	}
	return &hostLink{f: f, raw: raw}, nil
}

// Attach implements stack.LinkEndpoint. With nil, which is the end of the link, it
// returns when nothing is delivered any more.
func (l *hostLink) Attach(d stack.NetworkDispatcher) {
	l.mu.Lock()
	before := l.dispatcher
	l.dispatcher = d
	l.mu.Unlock()
	switch {
	case d == nil:
		_ = l.f.Close() // a second time does nothing
		l.wg.Wait()
	case before == nil:
		l.wg.Add(1)
		go l.read()
	}
}

// read delivers packets until the link is closed, or its other side is.
func (l *hostLink) read() {
	defer l.wg.Done()
	buf := make([]byte, linkMTU)
	for {
		n, err := l.f.Read(buf)
		if err != nil {
			return // closed, or the end of file: the sandbox is gone
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
	err := l.raw.Write(func(fd uintptr) bool {
		for _, pkt := range pkts.AsSlice() {
			_, err := unix.Writev(int(fd), pkt.AsSlices())
			if err == unix.EAGAIN {
				terr = &tcpip.ErrNoBufferSpace{}
				break
			}
			if err != nil {
				terr = &tcpip.ErrClosedForSend{}
				break
			}
			sent++
		}
		return true
	})
	if err != nil {
		return sent, &tcpip.ErrClosedForSend{}
	}
	return sent, terr
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
func (l *hostLink) Close()                                { _ = l.f.Close() }
func (l *hostLink) Wait()                                 { l.wg.Wait() }
