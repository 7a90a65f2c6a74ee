package broker

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// defaultPort is the port of a host written without one.
const defaultPort = 443

// binding is where a credential may go. The zero binding matches nothing.
type binding struct {
	hosts   []hostPattern
	methods *[]string // nil: any; empty: none
	paths   *[]string // nil: any; empty: none
}

// refuses says why a target is outside of the binding; "" means that it is inside.
func (b binding) refuses(t Target) string {
	switch {
	case !matchAny(b.hosts, func(p hostPattern) bool { return p.match(t.Host, t.Port) }):
		return "host or port"
	case b.methods != nil && !matchAny(*b.methods, func(m string) bool { return MatchMethod(m, t.Method) }):
		return "method"
	case t.Method == "":
		return "method"
	case b.paths != nil && !matchAny(*b.paths, func(p string) bool { return MatchPath(p, t.Path) }):
		return "path"
	}
	return ""
}

func matchAny[T any](list []T, match func(T) bool) bool {
	for _, x := range list {
		if match(x) {
			return true
		}
	}
	return false
}

// hostPattern is one entry of `hosts`: a name in lower case, or an address literal.
type hostPattern struct {
	host string
	port int
}

// parseHost reads NAME, NAME:PORT, IPv4[:PORT] or [IPv6][:PORT].
func parseHost(s string) (hostPattern, error) {
	host, port := s, defaultPort
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host = s[:i]
		n, err := strconv.ParseUint(s[i+1:], 10, 16)
		if err != nil || n == 0 || s[i+1] == '0' {
			return hostPattern{}, fmt.Errorf("%q: the port is not a number from 1 to 65535", s)
		}
		port = int(n)
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		a, err := netip.ParseAddr(host[1 : len(host)-1])
		if err != nil || !a.Is6() || a.Zone() != "" {
			return hostPattern{}, fmt.Errorf("%q: not an IPv6 address in brackets", s)
		}
		return hostPattern{a.String(), port}, nil
	}
	if strings.Contains(host, ":") {
		return hostPattern{}, fmt.Errorf("%q: an IPv6 address stands in brackets", s)
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return hostPattern{a.String(), port}, nil
	}
	host = strings.ToLower(host)
	if err := checkName(host); err != nil {
		return hostPattern{}, fmt.Errorf("%q: %w", s, err)
	}
	return hostPattern{host, port}, nil
}

// checkName accepts LDH labels (RFC 952, RFC 1123, and "_" as real names have
// it) and `*` as a whole label.
func checkName(name string) error {
	if name == "" || len(name) > 253 {
		return fmt.Errorf("a host name has 1 to 253 bytes")
	}
	labels := strings.Split(name, ".")
	wild := 0
	for i, l := range labels {
		switch {
		case l == "*":
			wild = i + 1
		case strings.Contains(l, "*"):
			return fmt.Errorf("`*` stands for one whole label")
		case l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			return fmt.Errorf("not a host name; a name outside of ASCII is written in its xn-- form, without a scheme, path or final dot")
		}
	}
	if isNumber(labels[len(labels)-1]) {
		return fmt.Errorf("neither a host name nor an address")
	}
	if wild > 0 {
		rest := strings.Join(labels[wild:], ".")
		suffix, icann := publicsuffix.PublicSuffix(rest)
		if rest == "" || (icann && suffix == rest) {
			return fmt.Errorf("`*` needs a domain of one owner after it")
		}
	}
	return nil
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func (p hostPattern) match(host string, port int) bool {
	if p.host == "" || host == "" || p.port != port {
		return false
	}
	if !strings.Contains(p.host, "*") {
		return p.host == host
	}
	// No address gets here: its last label is a number, which no pattern ends in.
	pl, hl := strings.Split(p.host, "."), strings.Split(host, ".")
	if len(pl) != len(hl) {
		return false
	}
	for i := range pl {
		if hl[i] == "" || (pl[i] != "*" && pl[i] != hl[i]) {
			return false
		}
	}
	return true
}

// MatchHost reports whether a canonical host (lower case, no final dot, an
// address without brackets) and port are within one entry of `hosts`:
//
//	api.github.com         that name, port 443 and no other
//	api.github.com:8443    that name, port 8443 and no other
//	*.example.com          one label more, never two; never an address
//	10.1.2.3, [fd00::1]    that address
//
// A pattern that does not parse matches nothing.
func MatchHost(pattern, host string, port int) bool {
	p, err := parseHost(pattern)
	return err == nil && p.match(host, port)
}

// MatchMethod reports whether a method is within one entry of `methods`. GET
// implies HEAD. Methods are case-sensitive (RFC 9110, section 9.1).
func MatchMethod(pattern, method string) bool {
	return method != "" && (pattern == method || (pattern == "GET" && method == "HEAD"))
}

// MatchPath reports whether a path, percent-encoded as received and without its
// query, is within one entry of `paths`. Segments are compared decoded, one by one:
//
//	/user            that path
//	/repos/*/issues  `*` is one whole, non-empty segment without an encoded slash
//	/repos/**        /repos, /repos/ and everything below
//	/a/**/z          any number of segments between, also none
//
// A path with a dot segment (also encoded, also behind an encoded slash), a
// backslash, NUL or a broken escape matches nothing, because a server may read
// it as another one.
func MatchPath(pattern, path string) bool {
	if !strings.HasPrefix(pattern, "/") || !strings.HasPrefix(path, "/") {
		return false
	}
	ps, ok := segments(pattern)
	if !ok {
		return false
	}
	xs, ok := segments(path)
	return ok && matchSegments(ps, xs)
}

// segments splits behind the first slash and decodes each part.
func segments(path string) ([]string, bool) {
	parts := strings.Split(path[1:], "/")
	for i, p := range parts {
		d, err := url.PathUnescape(p)
		if err != nil || strings.ContainsAny(d, "\\\x00") {
			return nil, false
		}
		for _, s := range strings.Split(d, "/") {
			if name, _, _ := strings.Cut(s, ";"); name == "." || name == ".." {
				return nil, false
			}
		}
		parts[i] = d
	}
	return parts, true
}

// matchSegments goes back to the last `**` only, so that its time is at most
// the product of both lengths.
func matchSegments(ps, xs []string) bool {
	p, x, star, mark := 0, 0, -1, 0
	for x < len(xs) {
		switch {
		case p < len(ps) && ps[p] == "**":
			star, mark = p, x
			p++
		case p < len(ps) && (ps[p] == xs[x] || (ps[p] == "*" && xs[x] != "" && !strings.Contains(xs[x], "/"))):
			p++
			x++
		case star >= 0:
			mark++
			p, x = star+1, mark
		default:
			return false
		}
	}
	for p < len(ps) && ps[p] == "**" {
		p++
	}
	return p == len(ps)
}
