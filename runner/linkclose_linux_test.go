package runner

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// When the sandbox dies first, the link reads as "nothing, for ever" (recv(2) at
// the end of a SEQPACKET socket). Its reader must still end: a run whose sandbox
// was killed in mid-traffic, or right after its birth, would never end otherwise
// (I8, I10).
func TestTheLinkEndsWhenTheSandboxWentFirst_I8(t *testing.T) {
	const rounds = 120
	before := descriptors(t)
	defer func() {
		if after := descriptors(t); after > before+rounds/2 {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	}()
	for round := range rounds {
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

// descriptors counts those of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestTheLinkEndsWhileTheSandboxLives_I8: the end of the network closes the link,
// and the other side sees it. Nothing is left of it in this process.
func TestTheLinkEndsWhileTheSandboxLives_I8(t *testing.T) {
	host, guest, err := linkPair()
	if err != nil {
		t.Fatal(err)
	}
	defer guest.Close()
	n, err := newNetwork(host, func(c net.Conn, _ netip.AddrPort) { c.Close() })
	if err != nil {
		t.Fatal(err)
	}
	fd := int(guest.Fd())
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	sendPacket(t, fd, ipv4Packet(17, resolverAddr, udpPayload(53, query(t, "a.test.", dnsmessage.TypeA, dnsmessage.ClassINET)), nil))
	if len(receivePacket(t, fd)) == 0 {
		t.Error("control: the link carries nothing")
	}
	n.close()
	if b, err := receiveOrEnd(fd); len(b) > 0 || err != nil {
		t.Errorf("after the end: % x, %v", b, err)
	}
	n.close() // a second time does nothing
}

func receiveOrEnd(fd int) ([]byte, error) {
	b := make([]byte, linkMTU)
	n, _, err := unix.Recvfrom(fd, b, 0)
	return b[:max(n, 0)], err
}
