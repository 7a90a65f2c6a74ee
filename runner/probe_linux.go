package runner

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// probeTimeout is how long a packet may take to a sandbox and back. It is time for
// a host that is very busy.
const probeTimeout = 20 * time.Second

var errNoAnswer = errors.New("the network card was attached, and carries no packets")

// probe sends an echo request (RFC 792) over the link and waits for its answer, which
// the sandbox's kernel gives by itself. All other ICMP still ends at the link.
func (n *network) probe(ctx context.Context) error {
	if n.socket != nil {
		return nil // there is no card
	}
	var token [8]byte
	_, _ = rand.Read(token[:]) // never fails (crypto/rand)
	p := &pendingProbe{token: token, answered: make(chan struct{})}
	n.pending.Store(p)
	defer n.pending.Store(nil)
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(echoRequest(token[:]))})
	defer pkt.DecRef()
	var list stack.PacketBufferList
	list.PushBack(pkt)
	if _, err := n.link.WritePackets(list); err != nil {
		return tcpipError("network link", err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	select {
	case <-p.answered:
		return nil
	case <-ctx.Done():
		return errNoAnswer
	}
}

func echoRequest(data []byte) []byte {
	b := make([]byte, header.IPv4MinimumSize+header.ICMPv4MinimumSize+len(data))
	ip := header.IPv4(b)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(b)), TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber),
		SrcAddr: tcpip.AddrFrom4(netip.MustParseAddr(explicitAddr).As4()), DstAddr: tcpip.AddrFrom4(netip.MustParseAddr(sandboxAddr).As4()),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	icmp := header.ICMPv4(b[header.IPv4MinimumSize:])
	copy(icmp[header.ICMPv4MinimumSize:], data)
	icmp.SetType(header.ICMPv4Echo)
	binary.BigEndian.PutUint16(icmp[4:], 1)
	icmp.SetChecksum(header.ICMPv4Checksum(icmp, 0))
	return b
}

// pendingProbe is an echo request whose answer is waited for.
type pendingProbe struct {
	token    [8]byte
	answered chan struct{}
	done     bool // of the link's reader alone
}

// answers takes a packet that is the answer.
func (p *pendingProbe) answers(ip header.IPv4, pkt *stack.PacketBuffer) bool {
	if p == nil || p.done {
		return false
	}
	n := int(ip.HeaderLength())
	b, ok := pkt.Data().PullUp(n + header.ICMPv4MinimumSize + len(p.token))
	if !ok || header.ICMPv4(b[n:]).Type() != header.ICMPv4EchoReply || [8]byte(b[n+header.ICMPv4MinimumSize:]) != p.token {
		return false
	}
	p.done = true
	close(p.answered)
	return true
}

// SelfTest runs a command that does nothing in a sandbox, and sends a packet there
// and back. The checks say how the sandbox and its network are.
func (r *Runner) SelfTest(ctx context.Context, t Task) []Check {
	stdin, end := io.Pipe()
	probed := errors.New("the sandbox was gone before a packet was sent")
	t.Argv, t.Stdin = []string{"/bin/cat"}, stdin
	done := make(chan struct{})
	t.onStart = func(probe func(context.Context) error) {
		defer close(done)
		defer end.Close()
		probed = probe(ctx)
	}
	res, err := r.Run(ctx, t)
	_ = end.Close()
	sandbox := Check{Name: "sandbox", Status: CheckOK, Detail: "ran /bin/cat in " + res.Duration.Round(time.Millisecond).String()}
	if err != nil || res.ExitCode != 0 {
		if err == nil {
			err = errors.New("exit code not 0: " + res.Detail)
		}
		return []Check{{"sandbox", CheckFail, err.Error(), "see the detail; the checks above passed"}}
	}
	<-done
	return []Check{sandbox, networkCheck(res.Network, probed)}
}

// networkCheck is about what the sandbox had, and whether a packet came back.
func networkCheck(instead string, probed error) Check {
	c := Check{Name: "network", Status: CheckOK, Detail: "a sandbox has a network card, and a packet came back from it"}
	switch {
	case instead == NetworkSocket:
		c.Detail = "a Unix socket, as configured (sandbox.network)"
	case strings.HasPrefix(instead, NetworkSocket):
		c.Status, c.Detail = CheckWarn, "a sandbox has no network card: "+instead
		c.Fix = "report it, with the kernel's version. Runs have a Unix socket meanwhile, for programs that heed http_proxy; sandbox.network: card refuses them"
	case probed != nil:
		c.Status, c.Detail = CheckFail, probed.Error()
		c.Fix = "report it, with the kernel's version; sandbox.network: socket does without the card"
	}
	return c
}
