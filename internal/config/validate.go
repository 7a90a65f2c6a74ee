package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// checker validates the meaning of values and reports faults at their keys.
type checker struct {
	c      *Config
	faults faults
}

// validate reports every fault of meaning, in the order of the file. What makes
// a credential good is the broker's to judge (broker.Validate, and Locate here);
// checked here is what it cannot see, the rest of the file.
func (c *Config) validate() error {
	v := &checker{c: c}
	if c.Version != Version {
		v.fault("version", `write "version: 1"`, "version must be %d", Version)
	}
	v.oneOf("policy.mode", c.Policy.Mode, ModeEnforce, ModeMonitor)
	v.bundle(c.Policy)
	v.vault(c.Vault)
	for name, cred := range c.Credentials {
		if key := "credentials." + name + ".source.vault"; cred.Source.Vault != nil && c.Vault == nil {
			v.misplaced(key, `add a "vault:" section with address, auth and token_role`, "%s needs a vault to talk to", key)
		}
	}
	v.sandbox(c.Sandbox)
	v.upstream(c.Proxy.Upstream)
	v.listener(c.Proxy)
	v.oneOf("audit.durable", c.Audit.Durable, DurableAll, DurableCredentialed)
	return v.faults.join()
}

// fault reports at the value of key, or at the nearest parent's key when it is
// absent (then the fault is that something is missing there).
func (v *checker) fault(key, hint, format string, args ...any) {
	p := pos{1, 1}
	if at, ok := v.c.marks[key]; ok {
		p = at.value
	} else if at, ok := v.c.marks.nearest(key); ok {
		p = at.key
	}
	v.faultAt(p, hint, format, args...)
}

// misplaced reports at the key itself: it should not stand there.
func (v *checker) misplaced(key, hint, format string, args ...any) {
	v.faultAt(v.c.marks[key].key, hint, format, args...)
}

func (v *checker) faultAt(p pos, hint, format string, args ...any) {
	v.faults = append(v.faults, &Error{File: v.c.File, Line: p.line, Col: p.col, Msg: fmt.Sprintf(format, args...), Hint: hint})
}

// has reports whether the file has the key.
func (v *checker) has(key string) bool {
	_, ok := v.c.marks[key]
	return ok
}

// oneOf checks an enumeration; absent means the default.
func (v *checker) oneOf(key, got string, want ...string) {
	if !v.has(key) {
		return
	}
	for _, w := range want {
		if got == w {
			return
		}
	}
	v.fault(key, "", "%s must be %s, not %q", key, strings.Join(want, " or "), got)
}

// exactlyOne checks a union: one of the members of the mapping at key is set.
func (v *checker) exactlyOne(key string, members ...string) (member string) {
	var set []string
	for _, m := range members {
		if v.has(join(key, m)) {
			set = append(set, m)
		}
	}
	switch len(set) {
	case 1:
		return set[0]
	case 0:
		v.fault(key, "", "%s needs one of %s", key, strings.Join(members, ", "))
	default:
		slices.SortFunc(set, func(a, b string) int { // the later in the file is the one too many
			return v.c.marks[join(key, a)].key.compare(v.c.marks[join(key, b)].key)
		})
		v.misplaced(join(key, set[1]), "keep one", "%s takes one of %s, not %s together", key, strings.Join(members, ", "), strings.Join(set, " and "))
	}
	return ""
}

func (v *checker) required(key, value string) {
	if value == "" {
		v.fault(key, "", "%s is required", key)
	}
}

// authFields lists the required and the optional keys of each login method.
func authFields(method string) (required, optional []string, ok bool) {
	switch method {
	case "approle":
		return []string{"role_id_file", "secret_id_file"}, []string{"wrapped"}, true
	case "token_file":
		return []string{"token_file"}, nil, true
	case "jwt":
		return []string{"role", "jwt_file"}, nil, true
	case "kubernetes":
		return []string{"role"}, []string{"jwt_file"}, true
	case "cert":
		return []string{"cert_file", "key_file"}, []string{"role"}, true
	}
	return nil, nil, false
}

// minPoll is the shortest time between two questions to a policy server.
const minPoll = time.Second

func (v *checker) bundle(p Policy) {
	b := p.Bundle
	if b == nil {
		return
	}
	if p.Path != "" {
		v.misplaced("policy.path", "remove one of the two", "policy.path and policy.bundle are both given")
	}
	v.required("policy.bundle.key_file", b.KeyFile)
	switch {
	case (b.URL == "") == (b.File == ""):
		v.fault("policy.bundle", "", "policy.bundle needs exactly one of url and file")
	case b.File != "" && (b.Poll != 0 || b.MaxAge != 0 || b.CAFile != ""):
		v.fault("policy.bundle", "", "policy.bundle: poll, max_age and ca_file belong to url")
	case b.URL == "":
	case cmp.Or(b.Poll, DefaultPoll) < Duration(minPoll):
		v.fault("policy.bundle.poll", "", "policy.bundle.poll must be at least %s", minPoll)
	case cmp.Or(b.MaxAge, DefaultMaxAge) < cmp.Or(b.Poll, DefaultPoll):
		v.fault("policy.bundle.max_age", "", "policy.bundle.max_age must not be shorter than poll")
	default:
		u, err := url.Parse(b.URL)
		if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname())) {
			v.fault("policy.bundle.url", "use https://; http:// is for loopback addresses", "policy.bundle.url must be an https URL without a user")
		}
	}
}

func (v *checker) vault(c *Vault) {
	if c == nil {
		return
	}
	if msg, hint := badVaultAddress(c.Address); msg != "" {
		v.fault("vault.address", hint, "vault.address: %s", msg)
	}
	for i, a := range c.Addresses {
		key := fmt.Sprintf("vault.addresses[%d]", i)
		if msg, hint := badVaultAddress(a); msg != "" {
			v.fault(key, hint, "%s: %s", key, msg)
		}
	}
	if c.Stale < 0 || c.Stale > Duration(maxStale) {
		v.fault("vault.stale", "", "vault.stale must be between 0 and %s", maxStale)
	}
	v.required("vault.token_role", c.TokenRole)
	required, optional, ok := authFields(c.Auth.Method)
	if !ok {
		v.fault("vault.auth.method", "", "vault.auth.method must be approle, token_file, jwt, kubernetes or cert, not %q", c.Auth.Method)
		return
	}
	values := map[string]string{
		"role_id_file": c.Auth.RoleIDFile, "secret_id_file": c.Auth.SecretIDFile, "token_file": c.Auth.TokenFile,
		"role": c.Auth.Role, "jwt_file": c.Auth.JWTFile, "cert_file": c.Auth.CertFile, "key_file": c.Auth.KeyFile,
	}
	allowed := map[string]bool{"method": true, "mount": true}
	for _, f := range required {
		allowed[f] = true
		if values[f] == "" {
			v.fault("vault.auth."+f, "", "vault.auth.%s is required by method %s", f, c.Auth.Method)
		}
	}
	for _, f := range optional {
		allowed[f] = true
	}
	for _, f := range []string{"role_id_file", "secret_id_file", "wrapped", "token_file", "role", "jwt_file", "cert_file", "key_file"} {
		if v.has("vault.auth."+f) && !allowed[f] {
			v.misplaced("vault.auth."+f, "", "vault.auth.%s does not belong to method %s", f, c.Auth.Method)
		}
	}
}

// maxStale bounds the grace while Vault is away: a value that was withdrawn
// meanwhile goes on being used for that long.
const maxStale = time.Hour

// badVaultAddress explains why an address is refused. A token must not cross a
// network in clear text, so http:// is for loopback addresses only.
func badVaultAddress(addr string) (msg, hint string) {
	const forms = "write https://HOST:PORT, http://127.0.0.1:PORT or unix:///PATH"
	if addr == "" {
		return "is required", forms
	}
	u, err := url.Parse(addr)
	switch {
	case err != nil:
		return "is not a URL", forms
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "must not hold a user, a query or a fragment", forms
	case u.Scheme == "unix":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
			return "needs an absolute path", forms
		}
		return "", ""
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Sprintf("%q has no scheme that is supported", addr), forms
	case u.Hostname() == "" || strings.Trim(u.Path, "/") != "":
		return "must be a host and a port, without a path", forms
	case u.Port() != "" && !validPort(u.Port()):
		return fmt.Sprintf("%q is not a port", u.Port()), forms
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return "http:// would send tokens in clear text", "use https://; http:// is for loopback addresses"
	}
	return "", ""
}

// isLoopback takes literals, and the one name that RFC 6761 §6.3 keeps for them;
// any other name may resolve anywhere.
func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() && ip.Zone() == ""
}

// Bounds of the sandbox section.
const (
	maxCPUs   = 1024
	minMemory = 16 * mib // below, the sandbox itself does not start
	minUID    = 65536    // accounts of people and of the system, and "nobody", are below
	maxUID    = 1<<32 - 2
)

func (v *checker) sandbox(s Sandbox) {
	if v.has("sandbox.cpus") && (!(s.CPUs > 0) || s.CPUs > maxCPUs) {
		v.fault("sandbox.cpus", "", "sandbox.cpus must be above 0 and at most %d", maxCPUs)
	}
	if v.has("sandbox.memory") && s.Memory < minMemory {
		v.fault("sandbox.memory", "", "sandbox.memory must be at least %s", minMemory)
	}
	if v.has("sandbox.pids") && (s.PIDs < 1 || s.PIDs > 1<<22) {
		v.fault("sandbox.pids", "", "sandbox.pids must be between 1 and %d", 1<<22)
	}
	v.oneOf("sandbox.limits", s.Limits, LimitsBestEffort, LimitsStrict)
	v.oneOf("sandbox.network", s.Network, NetworkAuto, NetworkCard, NetworkSocket)
	if !v.has("sandbox.uid_range") {
		return
	}
	first, count := uint64(s.UIDRange[0]), uint64(s.UIDRange[1])
	switch {
	case first < minUID:
		v.fault("sandbox.uid_range[0]", "", "sandbox.uid_range must start at %d or above, out of reach of the host's accounts", minUID)
	case count < 2:
		v.fault("sandbox.uid_range[1]", "", "sandbox.uid_range must hold at least 2 ids, a pair for one run")
	case first+count-1 > maxUID:
		v.fault("sandbox.uid_range[1]", "", "sandbox.uid_range ends above %d", uint32(maxUID))
	}
}

func (v *checker) listener(p Proxy) {
	if v.has("proxy.listen") && !isHostPort(p.Listen) {
		v.fault("proxy.listen", "write ADDRESS:PORT, such as 127.0.0.1:3128", "proxy.listen: %q is not an address and a port", p.Listen)
	}
	if v.has("proxy.admin") && !isLoopbackPort(p.Admin) {
		v.fault("proxy.admin", "write 127.0.0.1:PORT", "proxy.admin: %q is not a loopback address and a port", p.Admin)
	}
	for key, n := range map[string]int64{"connections": int64(p.Limits.Connections), "requests": int64(p.Limits.Requests), "bandwidth": int64(p.Limits.Bandwidth)} {
		if key = "proxy.limits." + key; v.has(key) && n < 1 {
			v.fault(key, "leave it out for the default", "%s must be at least 1", key)
		}
	}
	if p.CA != nil {
		v.required("proxy.ca.cert_file", p.CA.CertFile)
		v.required("proxy.ca.key_file", p.CA.KeyFile)
	}
	seen := map[string]bool{}
	for i, cl := range p.Clients {
		key := fmt.Sprintf("proxy.clients[%d]", i)
		switch {
		case !isName(cl.Name):
			v.fault(key+".name", nameHint, "%s.name: %q is not a name", key, cl.Name)
		case seen[cl.Name]:
			v.fault(key+".name", "", "%s.name: %q is used twice", key, cl.Name)
		}
		seen[cl.Name] = true
		v.exactlyOne(key, "token_file", "cert_file")
		for j, name := range cl.Credentials {
			if _, ok := v.c.Credentials[name]; !ok {
				v.fault(fmt.Sprintf("%s.credentials[%d]", key, j), "", "%s: no credential is called %q", key, name)
			}
		}
	}
}

func (v *checker) upstream(u Upstream) {
	for name, to := range u.Hosts {
		key := "proxy.upstream.hosts." + name
		if !isHostName(name) {
			v.fault(key, "write the host alone, in lower case, without a port", "%s: %q is not a host name", key, name)
		}
		if _, err := netip.ParseAddr(to); err != nil && !isAddrPort(to) {
			v.fault(key, "names are not resolved here; write an address", "%s: %q is not an IP address, or an address and a port", key, to)
		}
	}
	for i, entry := range u.AllowAddresses {
		key := fmt.Sprintf("proxy.upstream.allow_addresses[%d]", i)
		name, addr, named := strings.Cut(entry, "=")
		if !named {
			addr = entry
		}
		if !isAddrPort(addr) || named && !isHostName(name) {
			v.fault(key, "write IP:PORT for a name of upstream.hosts, or NAME=IP:PORT", "%s: %q is not an address and a port", key, entry)
		}
	}
	for i, f := range u.CAFiles {
		v.required(fmt.Sprintf("proxy.upstream.ca_files[%d]", i), f)
	}
	if u.Resolver != "" && !isAddrPort(u.Resolver) {
		if _, err := netip.ParseAddr(u.Resolver); err != nil {
			v.fault("proxy.upstream.resolver", "", "proxy.upstream.resolver: %q is not an IP address, or an address and a port", u.Resolver)
		}
	}
	if u.Via != "" {
		via, err := url.Parse(u.Via)
		switch {
		case err != nil || via.Scheme != "http" && via.Scheme != "https" || via.Hostname() == "" || strings.Trim(via.Path, "/") != "":
			v.fault("proxy.upstream.via", "", "proxy.upstream.via must be http://HOST:PORT or https://HOST:PORT")
		case via.User != nil || via.RawQuery != "":
			v.fault("proxy.upstream.via", "a secret does not belong in this file", "proxy.upstream.via must not hold a user or a password")
		}
	}
}

func isAddrPort(s string) bool {
	ap, err := netip.ParseAddrPort(s)
	return err == nil && ap.Port() != 0 && ap.Addr().Zone() == ""
}

// isHostPort takes an address (or name, or nothing) and a decimal port; port 0
// lets the system choose one.
func isHostPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	return err == nil && (validPort(port) || port == "0")
}

func isLoopbackPort(s string) bool {
	host, _, err := net.SplitHostPort(s)
	if err != nil || !isHostPort(s) {
		return false
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

func validPort(s string) bool {
	if len(s) == 0 || len(s) > 5 || s[0] == '0' {
		return false
	}
	n := 0
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
		n = n*10 + int(r-'0')
	}
	return n <= 65535
}
