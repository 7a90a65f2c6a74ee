package proxy

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"warder/internal/config"
	"warder/internal/sysroots"
)

// upstreams is the checked form of config.Upstream.
//
// A value of Hosts is "ip" or "ip:port": the name is not resolved, that address
// is dialled (with the judged port, or the one given) and the verified name, the
// binding and the record keep the judged name and port.
type upstreams struct {
	hosts    map[string]override
	allowed  map[string]map[netip.AddrPort]bool // by name; "" holds for every name of hosts
	roots    func() *x509.CertPool
	resolver string   // ip:port; "" the system's servers
	via      *url.URL // nil: direct

	mu  sync.Mutex
	own map[uint16][]netip.Addr // listeners of ours, by port; the unspecified address is every one
}

type override struct {
	addr netip.Addr
	port uint16 // 0: the judged one
}

func newUpstreams(c config.Upstream) (*upstreams, error) {
	u := &upstreams{
		hosts:   make(map[string]override, len(c.Hosts)),
		allowed: make(map[string]map[netip.AddrPort]bool),
	}
	for name, to := range c.Hosts {
		host, _, err := canonicalHost(name)
		if err != nil {
			return nil, fmt.Errorf("proxy: upstream.hosts: %q: %w", name, err)
		}
		o, err := parseOverride(to)
		if err != nil {
			return nil, fmt.Errorf("proxy: upstream.hosts: %s: %w", name, err)
		}
		u.hosts[host] = o
	}
	for _, entry := range c.AllowAddresses {
		if err := u.allow(entry); err != nil {
			return nil, fmt.Errorf("proxy: upstream.allow_addresses: %q: %w", entry, err)
		}
	}
	var err error
	if u.roots, err = loadRoots(c.CAFiles); err != nil {
		return nil, err
	}
	if c.Resolver != "" {
		if u.resolver, err = withPort(c.Resolver, 53); err != nil {
			return nil, fmt.Errorf("proxy: upstream.resolver: %w", err)
		}
	}
	if c.Via != "" {
		if u.via, err = parseVia(c.Via); err != nil {
			return nil, fmt.Errorf("proxy: upstream.via: %w", err)
		}
	}
	return u, nil
}

func parseOverride(s string) (override, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return override{addr: a.Unmap()}, nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil || ap.Port() == 0 {
		return override{}, fmt.Errorf("%q is neither an address nor address:port", s)
	}
	return override{addr: ap.Addr().Unmap(), port: ap.Port()}, nil
}

func (u *upstreams) allow(entry string) error {
	name, addr, named := strings.Cut(entry, "=")
	if !named {
		name, addr = "", entry
	} else {
		host, _, err := canonicalHost(name)
		if err != nil {
			return err
		}
		name = host
	}
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return fmt.Errorf("not address:port")
	}
	if u.allowed[name] == nil {
		u.allowed[name] = make(map[netip.AddrPort]bool)
	}
	u.allowed[name][netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())] = true
	return nil
}

// keepAway forbids an address of our own for good.
func (u *upstreams) keepAway(a netip.Addr, port uint16) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.own == nil {
		u.own = make(map[uint16][]netip.Addr)
	}
	u.own[port] = append(u.own[port], a)
}

// isOwn reports one of our listeners. On the unspecified address that is every
// internal address with the port: one of this machine cannot be told from them.
func (u *upstreams) isOwn(addr netip.AddrPort) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, a := range u.own[addr.Port()] {
		if a == addr.Addr() || a.IsUnspecified() && classify(addr.Addr()) != addressPublic {
			return true
		}
	}
	return false
}

// mayDial is the guard: whether addr may be dialled for name.
func (u *upstreams) mayDial(name string, addr netip.AddrPort) bool {
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	if u.isOwn(addr) {
		return false
	}
	switch classify(addr.Addr()) {
	case addressPublic:
		return true
	case addressNever:
		return false
	}
	if u.allowed[name][addr] {
		return true
	}
	_, mapped := u.hosts[name]
	return mapped && u.allowed[""][addr]
}

// loadRoots reads the configured authorities now and the host's on first use,
// because that is slow and a run may never need them.
func loadRoots(files []string) (func() *x509.CertPool, error) {
	var extra [][]byte
	for _, f := range files {
		pem, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("proxy: upstream.ca_files: %w", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("proxy: upstream.ca_files: %s: no certificate in it", f)
		}
		extra = append(extra, pem)
	}
	return sync.OnceValue(func() *x509.CertPool {
		roots := sysroots.Pool()
		for _, pem := range extra {
			roots.AppendCertsFromPEM(pem)
		}
		return roots
	}), nil
}

func withPort(s string, port uint16) (string, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a, port).String(), nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return "", fmt.Errorf("%q is neither an address nor address:port", s)
	}
	return ap.String(), nil
}

func parseVia(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("must be http://HOST:PORT or https://HOST:PORT")
	}
	if u.Port() == "" {
		u.Host += ":" + strconv.Itoa(defaultPort(u.Scheme))
	}
	return u, nil
}
