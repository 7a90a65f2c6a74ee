package proxy

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"time"
)

// SOCKS5 (RFC 1928, 1929) on the explicit listener: CONNECT to a name or an IPv4
// address. Like a CONNECT of HTTP, a well-formed one is always granted; the
// denial is given inside.

const (
	socksVersion    = 5
	socksNoAuth     = 0
	socksPassword   = 2
	socksNoneFits   = 0xff
	socksConnect    = 1
	socksIPv4       = 1
	socksName       = 3
	socksOK         = 0
	socksNotAllowed = 2
	socksNoCommand  = 7
	socksNoAddress  = 8
)

// socks takes the negotiation and returns with the connection as if it had been
// made for the name that was asked for. It reads not a byte too much.
func (c *clientConn) socks(pre *prefixConn) *refusal {
	_ = pre.SetReadDeadline(time.Now().Add(c.p.limits.HandshakeTimeout))
	defer func() { _ = pre.SetReadDeadline(time.Time{}) }()
	if f := c.socksGreeting(pre); f != nil {
		return f
	}
	want, reply, f := c.socksRequest(pre)
	if _, err := pre.Write([]byte{socksVersion, reply, 0, socksIPv4, 0, 0, 0, 0, 0, 0}); err != nil && f == nil {
		f = badRequest("closed before a whole request")
	}
	if f != nil {
		return f
	}
	c.arr = arrival{want: want}
	return nil
}

// socksGreeting chooses the method and, on a listener with clients, asks for the
// token as the password.
func (c *clientConn) socksGreeting(pre *prefixConn) *refusal {
	methods, err := readCounted(pre, 1)
	if err != nil {
		return socksBroken(err)
	}
	l := c.run.lobby
	need, who := byte(socksNoAuth), c.client
	if l != nil && who == (Client{}) && len(l.known()) > 0 {
		need = socksPassword
	}
	if !hasByte(methods, need) {
		_, _ = pre.Write([]byte{socksVersion, socksNoneFits})
		return refuse(reasonUnauthenticated, "SOCKS5: no method of authentication that is possible here")
	}
	if _, err := pre.Write([]byte{socksVersion, need}); err != nil {
		return socksBroken(err)
	}
	if need == socksPassword {
		if _, err = readCounted(pre, 1); err != nil { // version and user name, which says nothing
			return socksBroken(err)
		}
		token, err := readCounted(pre, 0)
		if err != nil {
			return socksBroken(err)
		}
		var known bool
		who, known = l.byToken(string(token))
		status := byte(1)
		if known {
			status = 0
		}
		if _, err := pre.Write([]byte{1, status}); err != nil {
			return socksBroken(err)
		}
		if !known {
			return refuse(reasonUnauthenticated, "the proxy does not know this client")
		}
	}
	if l == nil {
		return nil
	}
	run, release, f := l.admit(c.run.ctx, who, pre, c.raw)
	if f != nil {
		return f
	}
	outer := c.ended
	c.run, c.ended = run, func() { release(); outer() }
	pre.arr = &c.arr
	return nil
}

// socksRequest reads what is asked for; reply is the answer to give.
func (c *clientConn) socksRequest(pre *prefixConn) (want authority, reply byte, f *refusal) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(pre, head); err != nil {
		return want, socksNotAllowed, socksBroken(err)
	}
	if head[0] != socksVersion || head[2] != 0 {
		return want, socksNotAllowed, badRequest("SOCKS5: broken request")
	}
	var err error
	switch head[3] {
	case socksIPv4:
		var a [4]byte
		if _, err = io.ReadFull(pre, a[:]); err == nil {
			want, f = c.socksAddress(netip.AddrFrom4(a))
		}
	case socksName:
		var name []byte
		if name, err = readCounted(pre, 0); err == nil {
			var bad error
			if want.host, want.literal, bad = canonicalHost(string(name)); bad != nil {
				f = badRequest("SOCKS5: %v", bad)
			}
		}
	default:
		return want, socksNoAddress, badRequest("SOCKS5: only names and IPv4 addresses are possible")
	}
	var port [2]byte
	if err == nil {
		_, err = io.ReadFull(pre, port[:])
	}
	if err != nil {
		return want, socksNotAllowed, socksBroken(err)
	}
	want.port, want.stated = int(binary.BigEndian.Uint16(port[:])), true
	c.arr.want = want
	switch {
	case head[1] != socksConnect:
		return want, socksNoCommand, badRequest("SOCKS5: only CONNECT is possible")
	case f == nil && want.port == 0:
		f = badRequest("SOCKS5: port 0")
	}
	if f != nil {
		return want, socksNotAllowed, f
	}
	return want, socksOK, nil
}

// socksAddress gives the name that a pool address stands for, for clients that
// resolve by themselves; every other address is its own host.
func (c *clientConn) socksAddress(a netip.Addr) (authority, *refusal) {
	if c.run.nameOf != nil {
		name, pool := c.run.nameOf(a)
		if pool && name == "" {
			return authority{host: a.String(), literal: true}, refuse(reasonUnknownAddress, "the address stands for no name")
		}
		if pool {
			return destination(Destination{Name: name}), nil
		}
	}
	return authority{host: a.String(), literal: true}, nil
}

func socksBroken(err error) *refusal {
	f := badRequest("SOCKS5: the negotiation was not completed")
	f.cause = fmt.Sprint(err)
	return f
}

// readCounted reads skip bytes, a length of one byte and as many bytes.
func readCounted(r io.Reader, skip int) ([]byte, error) {
	head := make([]byte, skip+1)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	b := make([]byte, head[skip])
	_, err := io.ReadFull(r, b)
	return b, err
}

func hasByte(list []byte, b byte) bool {
	for _, x := range list {
		if x == b {
			return true
		}
	}
	return false
}
