package proxy

import (
	"net/netip"
	"testing"

	"warder/internal/config"
)

func TestClassify_F004_F005_F007_F008_F009_F022(t *testing.T) {
	for class, list := range map[addressClass][]string{
		addressPublic: {
			"1.1.1.1", "8.8.8.8", "99.255.255.255", "100.128.0.1", "172.32.0.1", "192.0.1.1", "198.20.0.1", "223.255.255.255",
			"2606:4700::1111", "2a00:1450::1", "64:ff9b::808:808", "::ffff:8.8.8.8",
		},
		addressInternal: {
			"127.0.0.1", "127.255.255.255", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.1.1",
			"100.64.0.1", "100.127.255.255", "198.18.0.1", "198.19.255.255", "192.0.0.8", "192.0.2.1", "203.0.113.1", "198.51.100.1", // F009
			"::1", "fd00::1", "fc00::1", "fe80::1", "fe80::1%eth0", "fec0::1", "2001:db8::1", "100::1", // F008
			"::ffff:127.0.0.1", "::ffff:10.0.0.1", // F004
			"::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:808:808::1", "2001:0:0:0:0:0:80ff:fffe", "fe80::5efe:7f00:1", "4000::1", // F005
		},
		addressNever: {
			"0.0.0.0", "0.1.2.3", "::", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "ff02::1", // F007, F009
			"169.254.169.254", "100.100.100.200", "168.63.129.16", "169.254.170.2", "fd00:ec2::254", // F022
			"::ffff:169.254.169.254", "::169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "::ffff:0.0.0.0",
		},
	} {
		for _, s := range list {
			if got := classify(netip.MustParseAddr(s)); got != class {
				t.Errorf("%s: class %d, want %d", s, got, class)
			}
		}
	}
	if classify(netip.Addr{}) == addressPublic {
		t.Error("the zero address is public")
	}
}

func TestAllowAddressesAreNarrow(t *testing.T) {
	u, err := newUpstreams(config.Upstream{
		Hosts:          map[string]string{"Mapped.test": "10.1.2.3", "meta.test": "169.254.169.254"},
		AllowAddresses: []string{"10.1.2.3:443", "named.test=10.9.9.9:8443", "169.254.169.254:80", "meta.test=169.254.169.254:80", "[::ffff:10.7.7.7]:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, addr string
		want       bool
	}{
		{"mapped.test", "10.1.2.3:443", true},
		{"mapped.test", "[::ffff:10.1.2.3]:443", true},
		{"mapped.test", "10.1.2.3:444", false},
		{"mapped.test", "10.1.2.4:443", false},
		{"other.test", "10.1.2.3:443", false}, // an answer of DNS is not in hosts
		{"named.test", "10.9.9.9:8443", true},
		{"mapped.test", "10.9.9.9:8443", false},
		{"meta.test", "169.254.169.254:80", false},
		{"other.test", "9.9.9.9:1", true},
	} {
		if got := u.mayDial(c.name, netip.MustParseAddrPort(c.addr)); got != c.want {
			t.Errorf("%s at %s: %v", c.name, c.addr, got)
		}
	}
	for _, bad := range []config.Upstream{
		{Hosts: map[string]string{"a.test": "b.test"}},
		{Hosts: map[string]string{"a_b": "1.2.3.4"}},
		{AllowAddresses: []string{"10.0.0.1"}},
		{AllowAddresses: []string{"=10.0.0.1:1"}},
		{CAFiles: []string{"/nonexistent"}},
		{Resolver: "dns.test"},
		{Via: "socks5://x:1"},
		{Via: "http://u:p@x:1"},
	} {
		if _, err := newUpstreams(bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}
