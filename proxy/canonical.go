package proxy

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// authority is a canonical host and port.
type authority struct {
	host    string // A-label name, or address without brackets
	port    int
	literal bool
	stated  bool // the port was written out
}

// String is the authority as it stands in a Host field: the default port of
// scheme is left out unless it was stated.
func (a authority) field(scheme string) string {
	h := a.host
	if strings.Contains(h, ":") {
		h = "[" + h + "]"
	}
	if !a.stated && a.port == defaultPort(scheme) {
		return h
	}
	return fmt.Sprintf("%s:%d", h, a.port)
}

func defaultPort(scheme string) int {
	if scheme == "https" {
		return 443
	}
	return 80
}

// parseAuthority reads host[:port] (RFC 3986 §3.2 without userinfo). A missing
// port becomes fallback; fallback 0 makes it an error.
func parseAuthority(s string, fallback int) (authority, error) {
	var a authority
	host, port := s, ""
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return a, fmt.Errorf("address without its closing bracket")
		}
		host, port = s[:end+1], s[end+1:]
		if port != "" && port[0] != ':' {
			return a, fmt.Errorf("text after the bracketed address")
		}
		a.stated = port != ""
		port = strings.TrimPrefix(port, ":")
	} else if i := strings.IndexByte(s, ':'); i >= 0 {
		host, port, a.stated = s[:i], s[i+1:], true
	}
	var err error
	if a.host, a.literal, err = canonicalHost(host); err != nil {
		return a, err
	}
	if !a.stated {
		if fallback == 0 {
			return a, fmt.Errorf("no port")
		}
		a.port = fallback
		return a, nil
	}
	a.port, err = parsePort(port)
	return a, err
}

// parsePort takes plain decimal 1–65535: no sign, no leading zero, no name.
func parsePort(s string) (int, error) {
	if s == "" || len(s) > 5 || s[0] == '0' {
		return 0, fmt.Errorf("port is not a plain decimal number from 1 to 65535")
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, fmt.Errorf("port is not a plain decimal number from 1 to 65535")
		}
		n = n*10 + int(s[i]-'0')
	}
	if n > 65535 {
		return 0, fmt.Errorf("port is not a plain decimal number from 1 to 65535")
	}
	return n, nil
}

// canonicalHost returns the one form of a host that policy, credential choice,
// certificate, dial and record share: an A-label name in lower case without its
// trailing dot (IDNA2008 lookup profile, RFC 5891), or a strict address literal,
// IPv4-mapped IPv6 unmapped. Everything that could be read as an address in
// another way (octal, hexadecimal, short forms, zones) is an error.
func canonicalHost(s string) (host string, literal bool, err error) {
	if s == "" {
		return "", false, fmt.Errorf("no host")
	}
	if s[0] == '[' {
		return bracketed(s)
	}
	if last := s[len(s)-1]; '0' <= last && last <= '9' || strings.IndexByte(s, ':') >= 0 { // no other text is an address
		if addr, err := netip.ParseAddr(s); err == nil {
			if !addr.Is4() {
				return "", false, fmt.Errorf("IPv6 address without brackets")
			}
			return addr.String(), true, nil
		}
	}
	name := strings.TrimSuffix(s, ".")
	if !plainName(name) {
		if name, err = aLabels(name); err != nil {
			return "", false, err
		}
	} else {
		name = strings.ToLower(name)
	}
	if err := checkName(name); err != nil {
		return "", false, err
	}
	return name, false, nil
}

func bracketed(s string) (string, bool, error) {
	if len(s) < 2 || s[len(s)-1] != ']' {
		return "", false, fmt.Errorf("address without its closing bracket")
	}
	addr, err := netip.ParseAddr(s[1 : len(s)-1])
	switch {
	case err != nil || !addr.Is6():
		return "", false, fmt.Errorf("not an IPv6 address in brackets")
	case addr.Zone() != "":
		return "", false, fmt.Errorf("address with a zone")
	}
	return addr.Unmap().String(), true, nil
}

// aLabels converts to A-labels. A result that would not itself be looked up as it
// stands is an error.
func aLabels(name string) (string, error) {
	if !utf8.ValidString(name) {
		return "", fmt.Errorf("not a host name")
	}
	out, err := idna.Lookup.ToASCII(name)
	if err != nil {
		return "", fmt.Errorf("not a host name")
	}
	if again, err := idna.Lookup.ToASCII(out); err != nil || again != out {
		return "", fmt.Errorf("not a host name")
	}
	return out, nil
}

// plainName reports that the IDNA profile would only lower the case: ASCII
// letters, digits, hyphens and dots, and no A-label.
func plainName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '-':
		default:
			return false
		}
		if c == '-' && i >= 3 && strings.EqualFold(s[i-3:i+1], "xn--") && (i == 3 || s[i-4] == '.') {
			return false
		}
	}
	return true
}

// checkName applies what the IDNA profile leaves open: lengths (RFC 1035 §2.3.4),
// hyphens at the ends of a label, and no last label that a lenient parser would
// take for a number.
func checkName(name string) error {
	if len(name) == 0 || len(name) > 253 {
		return fmt.Errorf("host name of %d bytes", len(name))
	}
	rest, last := name, ""
	for more := true; more; {
		last, rest, more = strings.Cut(rest, ".")
		if len(last) == 0 || len(last) > 63 || last[0] == '-' || last[len(last)-1] == '-' {
			return fmt.Errorf("not a host name")
		}
	}
	if last[0] >= '0' && last[0] <= '9' && numberLike(last) {
		return fmt.Errorf("neither a host name nor a strict address")
	}
	return nil
}

// numberLike reports decimal digits alone, or 0x and hexadecimal digits.
func numberLike(label string) bool {
	if strings.HasPrefix(label, "0x") {
		return strings.Trim(label[2:], "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
