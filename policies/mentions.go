package policies

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Mentions is what the text of a policy says before it is compiled, for what has
// to be known before a sandbox is made. It is a guess that grants nothing: what is
// let through is decided by the compiled policy alone.
type Mentions struct {
	Hosts  []string // host names in it, lower-case, sorted; at most maxMentioned
	Opaque bool     // it may hold passthrough or tunnel rules: Engine.Needs tells
}

// maxMentioned bounds Mentions.Hosts.
const maxMentioned = 64

var (
	// A quoted word with dots, in lower case as canonical hosts are, that ends like a name and not like an address.
	quotedHost  = regexp.MustCompile(`"([a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.[a-z][a-z0-9-]+)"`)
	opaqueEntry = regexp.MustCompile(`\b(?:passthrough|tunnel)\b`)
	fileName    = regexp.MustCompile(`\.(?:rego|json|ya?ml|txt|pem|git)$`)
)

// ScanFolder reads the *.rego files of a policy folder, tests left out, without
// parsing them: a host is a quoted word that looks like one. A folder that cannot
// be read mentions nothing; loading it says why.
func ScanFolder(dir string) Mentions {
	f, err := openFolder(dir)
	if err != nil {
		return Mentions{}
	}
	paths, err := f.list()
	if err != nil {
		return Mentions{}
	}
	found, opaque := map[string]bool{}, false
	for _, rel := range paths {
		if kindOf(rel) != "rego" {
			continue
		}
		text, err := readBounded(filepath.Join(f.dir, filepath.FromSlash(rel)), maxFileBytes)
		if err != nil {
			return Mentions{}
		}
		for line := range strings.Lines(string(text)) {
			code, _, _ := strings.Cut(line, "#")
			opaque = opaque || opaqueEntry.MatchString(code)
			scanHosts(code, found)
		}
	}
	hosts := slices.Sorted(maps.Keys(found))
	return Mentions{Hosts: hosts[:min(len(hosts), maxMentioned)], Opaque: opaque}
}

func scanHosts(code string, found map[string]bool) {
	for _, m := range quotedHost.FindAllStringSubmatch(code, -1) {
		if !fileName.MatchString(m[1]) {
			found[m[1]] = true
		}
	}
}
