package runner

import (
	"context"
	"net"
	"net/netip"

	"warder/proxy"
)

// connect makes the session, the proxy's side of the run and the network.
func (u *run) connect(ctx context.Context) error {
	if u.Open != nil {
		if err := u.Open(ctx); err != nil {
			return err
		}
	}
	var err error
	if u.sess, err = u.Broker.Begin(u.t.Run, u.t.Credentials, u.state); err != nil {
		return err
	}
	u.pr, err = u.Proxy.NewRun(proxy.RunOptions{Run: u.t.Run, Offered: u.sess.Offered(), Granter: u.sess, StandIns: proxy.StandInsOf(u.sess), NameOf: u.nameOf})
	return err
}

// nameOf gives the name that an address of the pool stands for.
func (u *run) nameOf(a netip.Addr) (name string, pool bool) {
	if !poolPrefix.Contains(a) {
		return "", false
	}
	name, _ = u.net.names.lookup(a)
	return name, true
}

// route hands a connection of the sandbox to the proxy.
func (u *run) route(c net.Conn, dst netip.AddrPort) {
	d := proxy.Destination{Addr: dst}
	switch {
	case dst.Addr() == netip.MustParseAddr(explicitAddr) && dst.Port() == explicitPort:
		u.pr.ServeExplicit(c)
		return
	case poolPrefix.Contains(dst.Addr()):
		name, ok := u.net.names.lookup(dst.Addr())
		if !ok {
			reset(c)
			u.pr.Refuse(d, "unknown-address")
			return
		}
		d.Name = name
	case netip.MustParsePrefix("10.0.2.0/24").Contains(dst.Addr()):
		reset(c)
		u.pr.Refuse(d, "unknown-address")
		return
	}
	u.pr.ServeConn(c, d)
}

func reset(c net.Conn) {
	if rc, ok := c.(*countedConn); ok {
		rc.Reset()
		return
	}
	_ = c.Close()
}
