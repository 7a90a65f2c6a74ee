package config

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
)

const nameHint = "use letters, digits, '-', '_' and '.', at most 64, starting with a letter or a digit"

var (
	nameRE  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`) })
	labelRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`) })
)

func isName(s string) bool { return nameRE().MatchString(s) }

// isHostName takes a canonical host: lower case, A-labels, no trailing dot, or
// an IP literal.
func isHostName(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return len(s) <= 253 && !slices.ContainsFunc(strings.Split(s, "."), func(l string) bool {
		return len(l) > 63 || !labelRE().MatchString(l)
	})
}
