package audit

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"warder/internal/identity"
)

// Caps of what a record may hold. What is longer is cut, and the cut is marked
// "…(+N)" with the number of bytes, or of entries, left out.
const (
	capWord   = 256  // names, reasons, digests, methods, protocols: bytes
	capHost   = 512  // hosts and addresses: bytes
	capText   = 2048 // details: bytes
	capPath   = 8192 // request paths, arguments, file names: bytes
	capList   = 256  // names of queries, headers, environment; labels: entries
	capFiles  = 4096 // inputs and artefacts: entries
	shortest  = 16   // no text cap goes below this many bytes
	fewest    = 2    // no list cap goes below this many entries
	deepest   = 4    // levels of run.start's limits
	wordLines = 32   // nested values a limit may hold
)

// caps divides the caps of texts and lists, for a record that would not fit in a line
// otherwise. Words keep theirs: ids are compared.
type caps struct{ shrink int }

func (c caps) text(s string, most int) string { return Clean(s, max(most/c.shrink, shortest)) }
func (c caps) word(s string) string           { return Clean(s, capWord) }
func (c caps) count(most int) int             { return max(most/c.shrink, fewest) }

// Clean returns s fit for a record and for a terminal: valid UTF-8, at most about most
// bytes plus a mark, C0 controls as their pictures (U+2400…), and every other control,
// formatting, line-separating or invalid character as U+FFFD.
func Clean(s string, most int) string {
	if len(s) <= most && plain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		shown := visible(r)
		if b.Len()+utf8.RuneLen(shown) > most {
			b.WriteString("…(+" + strconv.Itoa(len(s)-i) + ")")
			break
		}
		b.WriteRune(shown)
		i += n
	}
	return b.String()
}

func plain(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// visible maps a character to one that a terminal shows and does not obey.
func visible(r rune) rune {
	switch {
	case r < 0x20:
		return 0x2400 + r
	case r == 0x7f:
		return 0x2421
	case r < 0x7f:
		return r
	case !unicode.IsGraphic(r): // controls, formatting, line separators, private use, unassigned
		return utf8.RuneError
	}
	return r
}

func (c caps) list(in []string, most, each int) []string {
	if in == nil {
		return nil
	}
	n := c.count(most)
	out := make([]string, 0, min(len(in), n+1))
	for i, s := range in {
		if i == n {
			return append(out, "…(+"+strconv.Itoa(len(in)-n)+")")
		}
		out = append(out, c.text(s, each))
	}
	return out
}

func (c caps) files(in []File) []File {
	if in == nil {
		return nil
	}
	n := c.count(capFiles)
	out := make([]File, 0, min(len(in), n+1))
	for i, f := range in {
		if i == n {
			return append(out, File{Path: "…(+" + strconv.Itoa(len(in)-n) + ")"})
		}
		out = append(out, File{
			Path: c.text(f.Path, capPath), Size: f.Size, Mode: c.word(f.Mode),
			SHA256: c.word(f.SHA256), Refused: c.word(f.Refused),
		})
	}
	return out
}

func (c caps) labels(in map[string]string) map[string]string {
	if in == nil {
		return nil
	}
	out := make(map[string]string, min(len(in), capList))
	for _, k := range firstKeys(in, c.count(capList)) {
		out[c.word(k)] = c.text(in[k], capText)
	}
	return mark(out, len(in), func(more string) string { return more })
}

func (c caps) counts(in map[string]uint64) map[string]uint64 {
	if in == nil {
		return nil
	}
	out := make(map[string]uint64, min(len(in), capList))
	for _, k := range firstKeys(in, c.count(capList)) {
		out[c.word(k)] += in[k]
	}
	return mark(out, len(in), func(string) uint64 { return 0 })
}

// limits cleans a value of run.start's limits: what JSON can hold, a few levels deep.
func (c caps) limits(v any, depth int) any {
	if depth > deepest {
		return "…"
	}
	switch v := v.(type) {
	case nil, bool, int, int32, int64, uint, uint32, uint64:
		return v
	case float64:
		return finite(v)
	case string:
		return c.text(v, capText)
	case []string:
		return c.list(v, capList, capWord)
	case []any:
		out := make([]any, 0, min(len(v), wordLines))
		for _, e := range v[:min(len(v), c.count(wordLines))] {
			out = append(out, c.limits(e, depth+1))
		}
		return out
	case map[string]any:
		return c.limitMap(v, depth)
	}
	return c.text(sprint(v), capText)
}

func (c caps) limitMap(in map[string]any, depth int) map[string]any {
	if in == nil {
		return nil
	}
	out := make(map[string]any, min(len(in), capList))
	for _, k := range firstKeys(in, c.count(capList)) {
		out[c.word(k)] = c.limits(in[k], depth+1)
	}
	return mark(out, len(in), func(more string) any { return more })
}

func (c caps) run(in identity.Run) identity.Run {
	return identity.Run{
		ID: c.word(in.ID), Task: c.word(in.Task), Agent: c.word(in.Agent), User: c.word(in.User),
		Labels: c.labels(in.Labels), ImageDigest: c.word(in.ImageDigest),
	}
}

func (c caps) credential(in Credential) Credential {
	return Credential{
		Name: c.word(in.Name), Kind: c.word(in.Kind), LeaseID: c.text(in.LeaseID, capHost),
		Accessor: c.word(in.Accessor), VaultRequestID: c.word(in.VaultRequestID),
		Expires: c.word(in.Expires), Stale: in.Stale, Status: c.word(in.Status), Detail: c.text(in.Detail, capText),
	}
}
