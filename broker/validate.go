package broker

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"

	"warder/internal/config"
)

const (
	defaultJWTTTL = 5 * time.Minute
	maxJWTTTL     = time.Hour
	minJWTTTL     = 10 * time.Second
	valueMark     = "{value}"
)

var (
	credentialName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`) })
	envName        = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })
	policyName     = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9._/-]*$`) })
)

// Validate judges what one credential says, without opening or asking anything.
// The error names the offending key in full.
func Validate(name string, c config.Credential) error {
	key := "credentials." + name
	if !credentialName().MatchString(name) {
		return fmt.Errorf("credentials: %q: a name has 1 to 64 lower-case letters, digits, and dots, dashes or underscores between them", name)
	}
	for _, check := range []func(string, config.Credential) error{
		validateSource, validateInject, validateMatch, validateHosts, validateMethods, validatePaths, validateStandIns,
	} {
		if err := check(key, c); err != nil {
			return err
		}
	}
	return nil
}

// exactlyOne returns the one set name of a group of keys.
func exactlyOne(key string, set map[string]bool) (string, error) {
	var got []string
	for _, k := range slices.Sorted(maps.Keys(set)) {
		if set[k] {
			got = append(got, k)
		}
	}
	switch len(got) {
	case 1:
		return got[0], nil
	case 0:
		return "", fmt.Errorf("%s: one of these is needed: %s", key, strings.Join(slices.Sorted(maps.Keys(set)), ", "))
	}
	return "", fmt.Errorf("%s: only one of these can be set: %s", key, strings.Join(got, ", "))
}

func notYet(key string) error { return fmt.Errorf("%s: not supported yet", key) }

func validateSource(key string, c config.Credential) error {
	key += ".source"
	which, err := exactlyOne(key, map[string]bool{"vault": c.Source.Vault != nil, "local": c.Source.Local != nil})
	if err != nil {
		return err
	}
	if which == "vault" {
		return validateVaultSource(key+".vault", *c.Source.Vault)
	}
	return validateLocalSource(key+".local", *c.Source.Local)
}

func validateVaultSource(key string, s config.VaultSource) error {
	kind, err := exactlyOne(key, map[string]bool{
		"kv": s.KV != "", "read": s.Read != "", "oidc": s.OIDC != "", "jwt": s.JWT != "",
		"pki": s.PKI != "", "hmac": s.HMAC != "", "totp": s.TOTP != "", "aws": s.AWS != "",
	})
	if err != nil {
		return err
	}
	if err := validateVaultKeys(key, kind, s); err != nil {
		return err
	}
	if _, _, err := vaultPath(s); err != nil {
		return fmt.Errorf("%s.%s: %w", key, kind, err)
	}
	if len(s.Policies) == 0 {
		return fmt.Errorf("%s.policies: at least one is needed: the run's token gets these and no other", key)
	}
	for _, p := range s.Policies {
		if !policyName().MatchString(p) || p == "root" {
			return fmt.Errorf("%s.policies: %q is not a policy that a run can have", key, p)
		}
	}
	return nil
}

// vaultKeys are the keys of each kind besides its own and policies.
var vaultKeys = map[string][]string{
	"kv":   {"field", "mount", "version"},
	"read": {"field"},
	"oidc": {},
	"jwt":  {"mount", "issuer", "audience", "subject", "algorithm", "ttl"},
	"pki":  {"common_name", "ttl"},
	"totp": {"mount"},
	"hmac": {"mount", "algorithm"},
	"aws":  {"mount", "version"},
}

func validateVaultKeys(key, kind string, s config.VaultSource) error {
	set := map[string]bool{
		"field": s.Field != "", "mount": s.Mount != "", "version": s.Version != 0, "issuer": s.Issuer != "", "audience": s.Audience != "",
		"subject": s.Subject != "", "algorithm": s.Algorithm != "", "common_name": s.CommonName != "", "ttl": s.TTL != 0,
	}
	for _, k := range slices.Sorted(maps.Keys(set)) {
		if set[k] && !slices.Contains(vaultKeys[kind], k) {
			return fmt.Errorf("%s.%s: does not belong to %s", key, k, kind)
		}
	}
	ttl := time.Duration(s.TTL)
	switch {
	case s.Version < 0 || s.Version > 2:
		return fmt.Errorf("%s.version: 1 or 2", key)
	case slices.Contains(vaultKeys[kind], "field") && s.Field == "":
		return fmt.Errorf("%s.field: the name of the field that holds the value is needed", key)
	case kind == "jwt" && s.Audience == "":
		return fmt.Errorf("%s.audience: needed, or any service that trusts the key would accept the token", key)
	case kind == "jwt" && jwtAlgorithms[jwtAlgorithm(s.Algorithm)].body == nil:
		return fmt.Errorf("%s.algorithm: %q is none of ES256, RS256, EdDSA", key, s.Algorithm)
	case kind == "jwt" && ttl != 0 && (ttl < minJWTTTL || ttl > maxJWTTTL):
		return fmt.Errorf("%s.ttl: %s is not between %s and %s", key, ttl, minJWTTTL, maxJWTTTL)
	case kind == "hmac" && hmacSize[hmacAlgorithm(s.Algorithm)] == 0:
		return fmt.Errorf("%s.algorithm: %q is none of sha2-256, sha2-384, sha2-512", key, s.Algorithm)
	case kind == "pki":
		return validateCertificate(key, s.CommonName, ttl)
	}
	for k, name := range map[string]string{"oidc": s.OIDC, "jwt": s.JWT, "totp": s.TOTP, "hmac": s.HMAC} {
		if kind == k && strings.Contains(name, "/") {
			return fmt.Errorf("%s.%s: a name, not a path; hint: the engine's path goes into mount", key, k)
		}
	}
	return nil
}

func validateCertificate(key, name string, ttl time.Duration) error {
	if !validFieldText(name) || strings.ContainsAny(strings.ReplaceAll(name, runMark, ""), "{}") {
		return fmt.Errorf("%s.common_name: only %s can stand in braces, and no control characters", key, runMark)
	}
	if ttl != 0 && (ttl < time.Minute || ttl > maxCertTTL) {
		return fmt.Errorf("%s.ttl: %s is not between %s and %s", key, ttl, time.Minute, maxCertTTL)
	}
	return nil
}

func validateLocalSource(key string, s config.LocalSource) error {
	kind, err := exactlyOne(key, map[string]bool{
		"env": s.Env != "", "file": s.File != "", "command": len(s.Command) > 0, "jwt": s.JWT != nil,
		"pki": s.PKI != nil, "totp": s.TOTP != nil, "hmac": s.HMAC != nil,
	})
	if err != nil {
		return err
	}
	key += "." + kind
	switch kind {
	case "env":
		if !envName().MatchString(s.Env) {
			return fmt.Errorf("%s: %q is not the name of a variable", key, s.Env)
		}
	case "file":
		if strings.ContainsRune(s.File, 0) {
			return fmt.Errorf("%s: not a path", key)
		}
	case "command":
		if s.Command[0] == "" || strings.ContainsRune(strings.Join(s.Command, ""), 0) {
			return fmt.Errorf("%s: not a program with arguments", key)
		}
	case "jwt":
		ttl := time.Duration(s.JWT.TTL)
		if s.JWT.Audience == "" {
			return fmt.Errorf("%s.audience: needed, or any service that trusts the key would accept the token", key)
		}
		if ttl != 0 && (ttl < minJWTTTL || ttl > maxJWTTTL) {
			return fmt.Errorf("%s.ttl: %s is not between %s and %s", key, ttl, minJWTTTL, maxJWTTTL)
		}
	case "pki":
		if s.PKI.CACertFile == "" || s.PKI.CAKeyFile == "" {
			return fmt.Errorf("%s: ca_cert_file and ca_key_file are needed", key)
		}
		return validateCertificate(key, s.PKI.CommonName, time.Duration(s.PKI.TTL))
	case "totp":
		return validateTOTP(key, *s.TOTP)
	case "hmac":
		if s.HMAC.KeyFile == "" {
			return fmt.Errorf("%s.key_file: needed", key)
		}
		if hmacHashes[hmacAlgorithm(s.HMAC.Algorithm)] == nil {
			return fmt.Errorf("%s.algorithm: %q is none of sha2-256, sha2-384, sha2-512", key, s.HMAC.Algorithm)
		}
	}
	return nil
}

func validateTOTP(key string, s config.LocalTOTP) error {
	period := time.Duration(s.Period)
	switch {
	case s.KeyFile == "":
		return fmt.Errorf("%s.key_file: needed", key)
	case totpHashes[s.Algorithm] == nil:
		return fmt.Errorf("%s.algorithm: %q is none of SHA1, SHA256, SHA512", key, s.Algorithm)
	case s.Digits != 0 && (s.Digits < 6 || s.Digits > 8):
		return fmt.Errorf("%s.digits: 6 to 8", key)
	case period != 0 && (period < 5*time.Second || period > 10*time.Minute || period%time.Second != 0):
		return fmt.Errorf("%s.period: whole seconds, from 5s to 10m", key)
	}
	return nil
}

// validateMatch: what signs or authenticates a connection goes into the slot that
// is made for it, and nothing else does.
func validateMatch(key string, c config.Credential) error {
	kind := ""
	if s := c.Source.Vault; s != nil {
		kind, _, _ = vaultPath(*s)
	}
	if s := c.Source.Local; s != nil {
		switch {
		case s.PKI != nil:
			kind = KindPKI
		case s.HMAC != nil:
			kind = KindHMAC
		}
	}
	in := c.Inject
	for _, pair := range []struct {
		kind, slot string
		set        bool
	}{{KindPKI, "mtls", in.MTLS != nil}, {KindHMAC, "hmac", in.HMAC != nil}, {KindAWS, "sigv4", in.SigV4 != nil}} {
		switch {
		case pair.set && kind != pair.kind:
			return fmt.Errorf("%s.inject.%s: needs a source of kind %s", key, pair.slot, pair.kind)
		case !pair.set && kind == pair.kind:
			return fmt.Errorf("%s.inject: a source of kind %s needs the slot %s", key, pair.kind, pair.slot)
		}
	}
	if in.Basic != nil && in.Basic.UsernameField != "" && kind != KindRead {
		return fmt.Errorf("%s.inject.basic.username_field: needs a source of kind read", key)
	}
	return nil
}

// reservedHeaders frame or route a message, so a credential cannot be one.
var reservedHeaders = []string{
	"Connection", "Content-Encoding", "Content-Length", "Expect", "Host", "Keep-Alive", "Proxy-Authenticate",
	"Proxy-Authorization", "Proxy-Connection", "Range", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func validateInject(key string, c config.Credential) error {
	key += ".inject"
	in := c.Inject
	slot, err := exactlyOne(key, map[string]bool{
		"header": in.Header != "", "basic": in.Basic != nil, "query": in.Query != "", "form": in.Form != "",
		"sigv4": in.SigV4 != nil, "mtls": in.MTLS != nil, "hmac": in.HMAC != nil,
	})
	if err != nil {
		return err
	}
	if in.Format != "" && slot != "header" {
		return fmt.Errorf("%s.format: only with header", key)
	}
	switch slot {
	case "header":
		if !httpguts.ValidHeaderFieldName(in.Header) {
			return fmt.Errorf("%s.header: %q is not the name of a header", key, in.Header)
		}
		if slices.Contains(reservedHeaders, http.CanonicalHeaderKey(in.Header)) {
			return fmt.Errorf("%s.header: %s belongs to the message, not to a credential", key, in.Header)
		}
		if in.Format != "" && (strings.Count(in.Format, valueMark) != 1 || !validFieldText(in.Format)) {
			return fmt.Errorf("%s.format: %s is needed once, and no control characters", key, valueMark)
		}
	case "basic":
		if strings.Contains(in.Basic.Username, ":") || !validFieldText(in.Basic.Username) {
			return fmt.Errorf("%s.basic.username: no colon and no control characters (RFC 7617)", key)
		}
		if in.Basic.Username != "" && in.Basic.UsernameField != "" {
			return fmt.Errorf("%s.basic: username or username_field, not both", key)
		}
	case "query":
		if !validFieldText(in.Query) {
			return fmt.Errorf("%s.query: no control characters", key)
		}
	case "form":
		if !validFieldText(in.Form) {
			return fmt.Errorf("%s.form: no control characters", key)
		}
	case "sigv4":
		return validateSigV4(key+".sigv4", in.SigV4.Region, in.SigV4.Service)
	case "hmac":
		return validateHMACSlot(key+".hmac", *in.HMAC)
	}
	return nil
}

func validateHosts(key string, c config.Credential) error {
	if len(c.Hosts) == 0 {
		return fmt.Errorf("%s.hosts: at least one is needed: a credential is bound to its hosts", key)
	}
	for _, h := range c.Hosts {
		if _, err := parseHost(h); err != nil {
			return fmt.Errorf("%s.hosts: %w", key, err)
		}
	}
	return nil
}

func validateMethods(key string, c config.Credential) error {
	if c.Methods == nil {
		return nil
	}
	for _, m := range *c.Methods {
		if !httpguts.ValidHeaderFieldName(m) { // a method is a token, as a field name is
			return fmt.Errorf("%s.methods: %q is not a method", key, m)
		}
		if up := strings.ToUpper(m); up != m {
			return fmt.Errorf("%s.methods: %q: methods are case-sensitive; hint: write %s", key, m, up)
		}
		if m == http.MethodConnect {
			return fmt.Errorf("%s.methods: CONNECT never carries a credential", key)
		}
	}
	return nil
}

func validatePaths(key string, c config.Credential) error {
	if c.Paths == nil {
		return nil
	}
	for _, p := range *c.Paths {
		if err := checkPathPattern(p); err != nil {
			return fmt.Errorf("%s.paths: %q: %w", key, p, err)
		}
	}
	return nil
}

func checkPathPattern(p string) error {
	if !strings.HasPrefix(p, "/") {
		return errors.New("a path starts with a slash")
	}
	if strings.ContainsAny(p, "?#") || !validFieldText(p) {
		return errors.New("a path has no query, fragment or control characters")
	}
	if _, ok := segments(p); !ok {
		return errors.New("no dot segments, backslashes or broken escapes")
	}
	for _, s := range strings.Split(p, "/") {
		if strings.Contains(s, "*") && s != "*" && s != "**" {
			return errors.New("`*` and `**` stand for whole segments")
		}
	}
	return nil
}

func validateStandIns(key string, c config.Credential) error {
	for _, env := range slices.Sorted(maps.Keys(c.StandIn)) {
		if !envName().MatchString(env) {
			return fmt.Errorf("%s.stand_in: %q is not the name of a variable", key, env)
		}
		if _, err := parseStandIn(c.StandIn[env]); err != nil {
			return fmt.Errorf("%s.stand_in.%s: %w", key, env, err)
		}
	}
	return nil
}

// validFieldText reports whether s has no control characters.
func validFieldText(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}
