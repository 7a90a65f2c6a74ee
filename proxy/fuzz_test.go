package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// oneWay is a connection of which only the client's bytes are known.
type oneWay struct {
	r io.Reader
	net.Conn
}

func (c oneWay) Read(p []byte) (int, error)     { return c.r.Read(p) }
func (oneWay) Write(p []byte) (int, error)      { return len(p), nil }
func (oneWay) Close() error                     { return nil }
func (oneWay) SetDeadline(time.Time) error      { return nil }
func (oneWay) SetReadDeadline(time.Time) error  { return nil }
func (oneWay) SetWriteDeadline(time.Time) error { return nil }

// A host and port mean the same to the proxy, to net/url and to what is sent.
func FuzzAuthority(f *testing.F) {
	for _, s := range []string{"a.test", "A.test.:443", "[::1]:80", "[::ffff:1.2.3.4]", "1.2.3.4:1", "a.test:0443", "a:b@c", "a.test:+80", "bücher.test:8443", "[::1%25lo]:80", "a.test:", "0x7f.1:80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseAuthority(s, 443)
		if err != nil {
			return
		}
		sent := a.field("https")
		again, err := parseAuthority(sent, 443)
		if err != nil || again.host != a.host || again.port != a.port || again.literal != a.literal {
			t.Fatalf("%q is %+v, sent as %q, which is %+v (%v)", s, a, sent, again, err)
		}
		u, err := url.Parse("https://" + sent + "/")
		if err != nil {
			t.Fatalf("%q is sent as %q: %v", s, sent, err)
		}
		port := 443
		if u.Port() != "" {
			port, _ = strconv.Atoi(u.Port())
		}
		if u.Hostname() != a.host || port != a.port || u.User != nil {
			t.Fatalf("%q is %+v; net/url reads %q as %q port %d", s, a, sent, u.Hostname(), port)
		}
		host, text, err := net.SplitHostPort(net.JoinHostPort(a.host, strconv.Itoa(a.port))) // what is dialled
		if err != nil || host != a.host || text != strconv.Itoa(a.port) {
			t.Fatalf("%q is %+v, dialled as %q %q (%v)", s, a, host, text, err)
		}
		if _, err := netip.ParseAddr(a.host); (err == nil) != a.literal {
			t.Fatalf("%q: literal is %v", s, a.literal)
		}
	})
}

// What is sniffed of a ClientHello is what another parser reads in the same bytes,
// and what the server sees to which they go; nothing is lost or added.
func FuzzHello(f *testing.F) {
	for _, cfg := range []*tls.Config{
		{ServerName: "a.test"},
		{ServerName: "a.test", NextProtos: []string{"h2", "http/1.1"}},
		{InsecureSkipVerify: true},
		{ServerName: "a.test", MaxVersion: tls.VersionTLS12},
	} {
		raw := clientHello(f, cfg)
		f.Add(raw, uint16(1))
		f.Add(raw, uint16(700))
		f.Add(slices.Concat([]byte{22, 3, 1, 0, 40}, raw[5:45], []byte{22, 3, 1}, binary.BigEndian.AppendUint16(nil, uint16(len(raw)-45)), raw[45:]), uint16(9)) // two records
	}
	f.Fuzz(func(t *testing.T, raw []byte, cut uint16) {
		n := min(int(cut), len(raw))
		pre := &prefixConn{Conn: oneWay{r: bytes.NewReader(raw[n:])}, head: slices.Clone(raw[:n])}
		h, err := readHello(t.Context(), pre, time.Minute)
		back, rerr := io.ReadAll(pre)
		if rerr != nil || !bytes.Equal(back, raw) {
			t.Fatalf("% x was given back as % x (%v)", raw, back, rerr)
		}
		if err != nil {
			return
		}
		other, ok := parseHello(raw)
		if !ok || other.sni != h.sni || other.ech != h.ech {
			t.Fatalf("% x: sniffed %+v, another parser reads %+v, %v", raw, h, other, ok)
		}
		var sni string
		var protocols []string
		_ = tls.Server(oneWay{r: bytes.NewReader(back)}, &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
			sni, protocols = i.ServerName, i.SupportedProtos
			return nil, errHelloRead
		}}).HandshakeContext(context.Background())
		if sni != h.sni || !slices.Equal(protocols, other.protocols) {
			t.Fatalf("% x: sniffed %q, the server sees %q and %q, another parser %q", raw, h.sni, sni, protocols, other.protocols)
		}
	})
}

func clientHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer b.Close()
	go tls.Client(a, cfg).Handshake()
	raw := make([]byte, 16<<10)
	n, err := b.Read(raw)
	if err != nil {
		t.Fatal(err)
	}
	return raw[:n]
}

type otherHello struct {
	sni       string
	ech       bool
	protocols []string
}

// parseHello is another parser than the one in use, after RFC 8446 §4.1.2, 6066 §3
// and 7301 §3.1. What is wrong is not ok.
func parseHello(raw []byte) (h otherHello, ok bool) {
	defer func() {
		if recover() != nil { // out of bounds
			ok = false
		}
	}()
	var message []byte
	for len(message) < 4 || len(message) < 4+int(binary.BigEndian.Uint32(message)&0xffffff) {
		size := int(binary.BigEndian.Uint16(raw[3:]))
		switch {
		case raw[0] == 21 && size == 2 && raw[5] == 1: // a warning says nothing
		case raw[0] != 22:
			return h, false
		default:
			message = append(message, raw[5:5+size]...)
		}
		raw = raw[5+size:]
	}
	take := func(b *[]byte, width int) []byte { // a vector with a length of width bytes
		n := 0
		for range width {
			n, *b = n<<8|int((*b)[0]), (*b)[1:]
		}
		v := (*b)[:n:n]
		*b = (*b)[n:]
		return v
	}
	if message[0] != 1 {
		return h, false
	}
	b := message[4:][:binary.BigEndian.Uint32(message)&0xffffff][2+32:]
	take(&b, 1)
	take(&b, 2)
	take(&b, 1)
	if len(b) == 0 {
		return h, true
	}
	for all := take(&b, 2); len(all) > 0; {
		kind := binary.BigEndian.Uint16(all)
		all = all[2:]
		data := take(&all, 2)
		switch kind {
		case 0:
			for names := take(&data, 2); len(names) > 0; {
				kind := names[0]
				names = names[1:]
				if name := take(&names, 2); kind == 0 {
					h.sni = string(name)
				}
			}
		case 16:
			for names := take(&data, 2); len(names) > 0; {
				h.protocols = append(h.protocols, string(take(&names, 1)))
			}
		case extensionECH:
			h.ech = true
		}
	}
	return h, true
}

// A negotiation that is granted is for what another parser reads in it, and not a
// byte of what follows is taken.
func FuzzSOCKS(f *testing.F) {
	f.Add("\x05\x01\x00" + socksName5("a.test", 80) + "GET / HTTP/1.1\r\n")
	f.Add("\x05\x02\x00\x02\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50")
	f.Add("\x05\x01\x00\x05\x01\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x50")
	f.Add("\x05\x01\x00\x05\x02\x00\x03\x01a\x00\x50")
	e := newEnv(f, nil)
	f.Fuzz(func(t *testing.T, in string) {
		r := strings.NewReader(in)
		c := &clientConn{p: e.p, run: e.run, arr: arrival{proxying: true}}
		f := c.socks(&prefixConn{Conn: oneWay{r: r}, arr: &c.arr})
		host, port, rest, ok := parseSOCKS(in)
		want, literal, err := canonicalHost(host)
		if ok = ok && err == nil && port > 0; ok != (f == nil) {
			t.Fatalf("%q: %+v; another parser: %v", in, f, ok)
		}
		if !ok {
			return
		}
		if got := c.arr.want; got.host != want || got.literal != literal || got.port != port || c.arr.proxying || r.Len() != len(rest) {
			t.Errorf("%q gave %+v and left %d bytes; want %q %d and %d bytes", in, c.arr, r.Len(), want, port, len(rest))
		}
	})
}

func parseSOCKS(in string) (host string, port int, rest string, ok bool) {
	defer func() {
		if recover() != nil { // too short
			ok = false
		}
	}()
	methods := in[2 : 2+in[1]]
	in = in[2+len(methods):]
	if !strings.Contains(methods, "\x00") || in[:3] != "\x05\x01\x00" {
		return "", 0, "", false
	}
	switch in[3] {
	case 1:
		host, in = net.IP(in[4:8]).String(), in[8:]
	case 3:
		n := int(in[4])
		host, in = in[5:5+n], in[5+n:]
	default:
		return "", 0, "", false
	}
	return host, int(in[0])<<8 | int(in[1]), in[2:], true
}
