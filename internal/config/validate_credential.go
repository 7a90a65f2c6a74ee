package config

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const nameHint = "use letters, digits, '-', '_' and '.', at most 64, starting with a letter or a digit"

var (
	nameRE   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	envRE    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	tokenRE  = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110 §5.6.2
	randomRE = regexp.MustCompile(`\{random:([0-9]{1,3})\}`)
	labelRE  = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`)
)

// maxJWTTTL bounds what a local JWT may live.
const maxJWTTTL = Duration(time.Hour)

func isName(s string) bool { return nameRE.MatchString(s) }

// isHostName takes a canonical host: lower case, A-labels, no trailing dot, or
// an IP literal.
func isHostName(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return len(s) <= 253 && !slices.ContainsFunc(strings.Split(s, "."), func(l string) bool {
		return len(l) > 63 || !labelRE.MatchString(l)
	})
}

func (v *checker) credentials() {
	for _, name := range slices.Sorted(maps.Keys(v.c.Credentials)) {
		key := "credentials." + name
		if !isName(name) {
			v.fault(key, nameHint, "credentials: %q is not a name", name)
			continue
		}
		cred := v.c.Credentials[name]
		v.source(key+".source", cred.Source)
		v.inject(key+".inject", cred.Inject)
		v.binding(key, cred)
		for env, tmpl := range cred.StandIn {
			v.standIn(key+".stand_in."+env, env, tmpl)
		}
	}
}

func (v *checker) source(key string, s Source) {
	switch v.exactlyOne(key, "vault", "local") {
	case "vault":
		if s.Vault == nil {
			return
		}
		if v.c.Vault == nil {
			v.fault(key+".vault", `add a "vault:" section with address, auth and token_role`, "%s.vault needs a vault to talk to", key)
		}
		v.vaultSource(key+".vault", s.Vault)
	case "local":
		if s.Local != nil {
			v.localSource(key+".local", s.Local)
		}
	}
}

func (v *checker) vaultSource(key string, s *VaultSource) {
	member := v.exactlyOne(key, "kv", "read", "oidc", "jwt", "pki", "totp", "hmac", "aws")
	if member != "" {
		val := map[string]string{
			"kv": s.KV, "read": s.Read, "oidc": s.OIDC, "jwt": s.JWT,
			"pki": s.PKI, "totp": s.TOTP, "hmac": s.HMAC, "aws": s.AWS,
		}[member]
		if !isVaultPath(val) {
			v.fault(join(key, member), "", "%s.%s: %q is not a path in Vault", key, member, val)
		}
	}
	if s.Mount != "" && !isVaultPath(s.Mount) {
		v.fault(key+".mount", "", "%s.mount: %q is not a path in Vault", key, s.Mount)
	}
	if member == "kv" && s.Mount == "" && !strings.Contains(s.KV, "/") {
		v.fault(key+".kv", "the first segment is the mount: write MOUNT/PATH, or add mount:", "%s.kv: %q has no path below the mount", key, s.KV)
	}
	if (member == "kv" || member == "read") && s.Field == "" {
		v.fault(key+".field", "", "%s.field is required: which field of the secret is the value?", key)
	}
	if v.has(key+".version") && (member != "kv" || s.Version != 1 && s.Version != 2) {
		v.misplaced(key+".version", "", "%s.version is the version of a kv engine, 1 or 2", key)
	}
	if len(s.Policies) == 0 {
		v.fault(key+".policies", "name the Vault policies that the run's token may have", "%s.policies is required", key)
	}
	for i, p := range s.Policies {
		if p == "" || p == "root" {
			v.fault(fmt.Sprintf("%s.policies[%d]", key, i), "", "%s.policies: %q cannot be given to a run", key, p)
		}
	}
}

// isVaultPath refuses what would leave the path that was written: dot segments,
// empty segments, escapes, a query.
func isVaultPath(s string) bool {
	if s == "" || strings.ContainsAny(s, "?#%\\ \t\r\n") {
		return false
	}
	return !slices.ContainsFunc(strings.Split(s, "/"), func(seg string) bool {
		return seg == "" || seg == "." || seg == ".."
	})
}

func (v *checker) localSource(key string, s *LocalSource) {
	switch v.exactlyOne(key, "env", "file", "command", "jwt", "pki", "totp", "hmac") {
	case "env":
		if !envRE.MatchString(s.Env) {
			v.fault(key+".env", "write the variable's name, never its value", "%s.env is not the name of a variable", key)
		}
	case "file":
		v.required(key+".file", s.File)
	case "command":
		if len(s.Command) == 0 || s.Command[0] == "" {
			v.fault(key+".command", `write the program and its arguments as a list, such as ["pass", "show", "api"]`, "%s.command is empty", key)
		}
	case "jwt":
		if s.JWT == nil {
			return
		}
		v.required(key+".jwt.audience", s.JWT.Audience)
		if s.JWT.TTL > maxJWTTTL {
			v.fault(key+".jwt.ttl", "", "%s.jwt.ttl is at most 1h", key)
		}
	}
}

// managedHeaders are set by the proxy or by the protocol; a credential in one
// of them would change the framing or the authority of a judged request.
var managedHeaders = []string{
	"host", "content-length", "transfer-encoding", "connection", "keep-alive", "proxy-connection", "upgrade", "te",
	"trailer", "expect", "range", "accept-encoding", "content-encoding", "content-type",
}

func (v *checker) inject(key string, in Inject) {
	switch v.exactlyOne(key, "header", "basic", "query", "form", "sigv4", "mtls", "hmac") {
	case "header":
		switch {
		case !tokenRE.MatchString(in.Header):
			v.fault(key+".header", "", "%s.header: %q is not the name of a header", key, in.Header)
		case slices.Contains(managedHeaders, strings.ToLower(in.Header)):
			v.fault(key+".header", "", "%s.header: %s cannot carry a credential", key, in.Header)
		}
		if v.has(key+".format") && (strings.Count(in.Format, "{value}") != 1 || strings.ContainsFunc(in.Format, isControl)) {
			v.fault(key+".format", `write {value} where the value goes, such as "Bearer {value}"`, "%s.format must hold {value} once, and no control character", key)
		}
		return
	case "basic":
		if in.Basic == nil || in.Basic.Username == "" || strings.ContainsFunc(in.Basic.Username, func(r rune) bool { return r == ':' || isControl(r) }) {
			v.fault(key+".basic.username", "", "%s.basic.username is required, without a colon", key)
		}
	case "query":
		v.required(key+".query", in.Query)
	case "form":
		v.required(key+".form", in.Form)
	}
	if v.has(key + ".format") {
		v.misplaced(key+".format", "", "%s.format belongs to header", key)
	}
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

func (v *checker) binding(key string, cred Credential) {
	if len(cred.Hosts) == 0 {
		v.fault(key+".hosts", "name the hosts that may receive it, such as [api.example.com]", "%s.hosts is required", key)
	}
	for i, h := range cred.Hosts {
		if !isHostPattern(h) {
			v.fault(fmt.Sprintf("%s.hosts[%d]", key, i), "write HOST or HOST:PORT in lower case; `*` stands for one whole label",
				"%s.hosts: %q is not a host", key, h)
		}
	}
	if cred.Methods != nil {
		for i, m := range *cred.Methods {
			if !tokenRE.MatchString(m) || strings.ToUpper(m) != m || m == "CONNECT" {
				v.fault(fmt.Sprintf("%s.methods[%d]", key, i), "methods are written in upper case", "%s.methods: %q is not a method", key, m)
			}
		}
	}
	if cred.Paths != nil {
		for i, p := range *cred.Paths {
			if !strings.HasPrefix(p, "/") || strings.ContainsAny(p, "?#") {
				v.fault(fmt.Sprintf("%s.paths[%d]", key, i), "a path starts with / and has no query", "%s.paths: %q is not a path", key, p)
			}
		}
	}
}

// isHostPattern takes "HOST" or "HOST:PORT" where a label may be "*", but not the last.
func isHostPattern(s string) bool {
	if isAddrPort(s) {
		return true
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	host, port, has := strings.Cut(s, ":")
	if has && !validPort(port) {
		return false
	}
	labels := strings.Split(host, ".")
	for i, l := range labels {
		if l == "*" {
			if i == len(labels)-1 {
				return false
			}
			labels[i] = "x"
		}
	}
	return isHostName(strings.Join(labels, "."))
}

func (v *checker) standIn(key, env, tmpl string) {
	if !envRE.MatchString(env) {
		v.misplaced(key, "", "stand_in: %q is not the name of a variable", env)
	}
	m := randomRE.FindStringSubmatch(tmpl)
	if m == nil {
		v.fault(key, `write {random:N} for the part that is fresh in every run, such as "tok_{random:32}"`, "%s has no {random:N}", key)
		return
	}
	if n, err := strconv.Atoi(m[1]); err != nil || n < 8 || n > 256 {
		v.fault(key, "", "%s: N of {random:N} is between 8 and 256", key)
	}
}
