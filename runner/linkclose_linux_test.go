package runner

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// When the sandbox dies first, the link reads as "nothing, for ever" (recv(2) at
// the end of a SEQPACKET socket). Its reader must still end: a run whose sandbox
// was killed in mid-traffic, or right after its birth, would never end otherwise
// (I8, I10).
func TestTheLinkEndsWhenTheSandboxWentFirst_I8(t *testing.T) {
	for round := range 120 {
		host, guest, err := linkPair()
		if err != nil {
			t.Fatal(err)
		}
		n, err := newNetwork(host, func(c net.Conn, _ netip.AddrPort) { c.Close() })
		if err != nil {
			t.Fatal(err)
		}
		for range round % 8 { // traffic under way, or none
			sendPacket(t, int(guest.Fd()), ipv4Packet(6, "203.0.113.7", tcpSYN(443), nil))
		}
		guest.Close()
		done := make(chan struct{})
		go func() {
			n.close()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("round %d: the link never ended", round)
		}
	}
}
