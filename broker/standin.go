package broker

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	standInAlphabet  = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	standInMinRandom = 8
	standInMaxRandom = 256
)

// standIn is a parsed template: text, a number of random characters, text, …
type standIn []standInPart

type standInPart struct {
	text   string
	random int
}

// parseStandIn reads text with "{random:N}" in it: N random letters and digits,
// so that an SDK finds the shape that it looks for. At least one part is random.
func parseStandIn(template string) (standIn, error) {
	if !validFieldText(template) {
		return nil, errors.New("no control characters")
	}
	var parts standIn
	total := 0
	for rest := template; rest != ""; {
		text, after, found := strings.Cut(rest, "{")
		if text != "" {
			parts = append(parts, standInPart{text: text})
		}
		if !found {
			break
		}
		field, tail, closed := strings.Cut(after, "}")
		num, ok := strings.CutPrefix(field, "random:")
		n, err := strconv.Atoi(num)
		if !closed || !ok || err != nil || n < 1 || n > standInMaxRandom {
			return nil, fmt.Errorf("only {random:N} can stand in braces, N from 1 to %d", standInMaxRandom)
		}
		parts = append(parts, standInPart{random: n})
		total += n
		rest = tail
	}
	if total < standInMinRandom {
		return nil, fmt.Errorf("at least %d random characters are needed, as in ghp_{random:36}", standInMinRandom)
	}
	return parts, nil
}

// StandInUses names, for each variable of StandIns, the credentials of this run
// that it stands for, sorted.
func (s *Session) StandInUses() map[string][]string {
	out := make(map[string][]string, len(s.stand))
	for _, name := range s.names {
		for env := range s.entries[name].cred.standIn {
			out[env] = append(out[env], name)
		}
	}
	return out
}

// fresh makes a new value of the template's shape.
func (s standIn) fresh() string {
	var b strings.Builder
	for _, p := range s {
		b.WriteString(p.text)
		for n := p.random; n > 0; {
			var buf [64]byte
			_, _ = rand.Read(buf[:]) // never fails (crypto/rand)
			for _, x := range buf {
				// 248 is the largest multiple of 62 in a byte: no character is likelier.
				if x < 248 && n > 0 {
					b.WriteByte(standInAlphabet[x%62])
					n--
				}
			}
		}
	}
	return b.String()
}

// standInConflict refuses one variable with two shapes. Credentials for the same
// service may share a variable: it gets one value.
func standInConflict(creds map[string]*credential) error {
	type use struct{ name, template string }
	seen := map[string]use{}
	for _, name := range slices.Sorted(maps.Keys(creds)) {
		for _, env := range slices.Sorted(maps.Keys(creds[name].cfg.StandIn)) {
			template := creds[name].cfg.StandIn[env]
			if u, ok := seen[env]; ok && u.template != template {
				return fmt.Errorf("credentials.%s.stand_in.%s: credential %s gives that variable another shape", name, env, u.name)
			}
			seen[env] = use{name, template}
		}
	}
	return nil
}
