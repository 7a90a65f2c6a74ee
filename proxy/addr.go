package proxy

import (
	"encoding/binary"
	"net/netip"
)

// addressClass says whether an address may be dialled.
type addressClass int

const (
	addressInternal addressClass = iota // only when the configuration names it
	addressPublic
	addressNever // metadata services, unspecified, multicast, broadcast: not even then
)

// classify judges one address in every form that leads to it: IPv4-mapped,
// -compatible, 6to4 (RFC 3056), Teredo (RFC 4380), NAT64 (RFC 6052, 8215) and
// ISATAP (RFC 5214) are judged as the IPv4 address inside. IPv6 outside the
// global unicast block 2000::/3 is internal. The zero class is internal.
func classify(a netip.Addr) addressClass {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return classify4(a)
	}
	if inner, ok := embedded4(a); ok {
		class := classify4(inner)
		if class == addressPublic && !netip.MustParsePrefix("64:ff9b::/96").Contains(a) {
			return addressInternal // only the well-known NAT64 prefix is routed in earnest
		}
		return class
	}
	switch {
	case !a.IsValid(), a.IsUnspecified(), a.IsMulticast(), in6(a, metadata6()):
		return addressNever
	case !netip.MustParsePrefix("2000::/3").Contains(a), in6(a, special6()):
		return addressInternal
	}
	return addressPublic
}

func classify4(a netip.Addr) addressClass {
	v := binary.BigEndian.Uint32(a.AsSlice())
	for _, n := range never4() {
		if v>>(32-n.bits) == n.base>>(32-n.bits) {
			return addressNever
		}
	}
	for _, n := range internal4() {
		if v>>(32-n.bits) == n.base>>(32-n.bits) {
			return addressInternal
		}
	}
	return addressPublic
}

type net4 struct {
	base uint32
	bits uint
}

// never4: "this host" (RFC 1122), multicast, reserved and broadcast, and the
// metadata services of the large clouds.
func never4() [8]net4 {
	return [...]net4{
		{0x00000000, 8},
		{0xe0000000, 4},
		{0xf0000000, 4},
		{0xa9fea9fe, 32}, // 169.254.169.254
		{0xa9feaa02, 32}, // 169.254.170.2, container credentials
		{0xa9feaa17, 32}, // 169.254.170.23, pod identity
		{0x646464c8, 32}, // 100.100.100.200
		{0xa83f8110, 32}, // 168.63.129.16
	}
}

// internal4 is the IANA special-purpose registry (RFC 6890) less what never4 has.
func internal4() [14]net4 {
	return [...]net4{
		{0x0a000000, 8},  // 10/8 private
		{0x64400000, 10}, // 100.64/10 shared (CGNAT)
		{0x7f000000, 8},  // 127/8 loopback
		{0xa9fe0000, 16}, // 169.254/16 link-local
		{0xac100000, 12}, // 172.16/12 private
		{0xc0000000, 24}, // 192.0.0/24 protocol assignments
		{0xc0000200, 24}, // 192.0.2/24 documentation
		{0xc01fc400, 24}, // 192.31.196/24 AS112
		{0xc034c100, 24}, // 192.52.193/24 AMT
		{0xc0586300, 24}, // 192.88.99/24 6to4 relay
		{0xc0a80000, 16}, // 192.168/16 private
		{0xc6120000, 15}, // 198.18/15 benchmarking
		{0xc6336400, 24}, // 198.51.100/24 documentation
		{0xcb007100, 24}, // 203.0.113/24 documentation
	}
}

func metadata6() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("fd00:ec2::254/128"),
		netip.MustParsePrefix("fd00:ec2::23/128"),
		netip.MustParsePrefix("fd20:ce::254/128"),
	}
}

// special6 lies inside 2000::/3 and leads nowhere public.
func special6() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("2001::/23"),     // protocol assignments
		netip.MustParsePrefix("2001:db8::/32"), // documentation
		netip.MustParsePrefix("3fff::/20"),     // documentation
		netip.MustParsePrefix("2620:4f:8000::/48"),
	}
}

func in6(a netip.Addr, list []netip.Prefix) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// embedded4 extracts the IPv4 address that an IPv6 address stands for.
func embedded4(a netip.Addr) (netip.Addr, bool) {
	b := a.As16()
	four := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	switch {
	case hi == 0 && lo>>32 == 0 && lo > 1: // ::a.b.c.d
		return four(12), true
	case hi == 0 && lo>>32 == 0xffff0000: // ::ffff:0:a.b.c.d (RFC 2765)
		return four(12), true
	case hi == 0x0064ff9b<<32 && lo>>32 == 0: // 64:ff9b::/96
		return four(12), true
	case hi>>16 == 0x0064ff9b0001: // 64:ff9b:1::/48
		return four(12), true
	case hi>>48 == 0x2002: // 6to4
		return four(2), true
	case hi>>32 == 0x20010000: // Teredo: the client's address, inverted
		n := ^binary.BigEndian.Uint32(b[12:])
		return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), true
	case lo>>32 == 0x00005efe || lo>>32 == 0x02005efe: // ISATAP
		return four(12), true
	}
	return netip.Addr{}, false
}
