package archtest

import (
	"maps"
	"slices"
	"strings"
)

// layers says which of our folders each folder may import. Imports point one
// way, cmd → runner → proxy → {policies, broker, audit} → internal, and the
// three leaves never import each other.
var layers = map[string][]string{
	"cmd":      {"cmd", "runner", "proxy", "policies", "broker", "audit", "internal"},
	"runner":   {"runner", "proxy", "policies", "broker", "audit", "internal"},
	"proxy":    {"proxy", "policies", "broker", "audit", "internal"},
	"policies": {"policies", "internal"},
	"broker":   {"broker", "internal"},
	"audit":    {"audit", "internal"},
	"internal": {"internal"},
	"tools":    {"audit", "internal"}, // the benchmark measures the log itself
}

// Layers checks the direction of the imports inside the module.
func Layers(files []*File) []Violation {
	var out []Violation
	for _, f := range files {
		top, _, _ := strings.Cut(f.Dir, "/")
		allowed, known := layers[top]
		if !known {
			out = append(out, Violation{f.Path, "layers", "folder " + top + " has no place in the table of internal/archtest"})
			continue
		}
		for imp, pos := range f.Imports() {
			to, ours := strings.CutPrefix(imp, Module+"/")
			switch {
			case ours && !under(to, allowed...):
				out = append(out, f.at(pos, "layers", "%s must not import %s", f.Dir, to))
			case ours && !f.Test && strings.HasSuffix(to, "test"):
				out = append(out, f.at(pos, "layers", "%s is for tests", to))
			}
		}
	}
	return out
}

// Library says who alone may import a library (by module or package path).
type Library struct {
	Path  string
	Only  []string // folders; "*" is any
	Why   string
	Tests []string // folders whose tests may import it too
}

// Libraries is the whole list: an import of anything else outside the standard
// library is a violation.
func Libraries() []Library {
	return []Library{
		{"github.com/elazarl/goproxy", []string{"proxy"}, "its defaults are unsafe; one package knows every trap", nil},
		{"github.com/open-policy-agent/opa", []string{"policies"}, "one place decides which built-ins a policy has", nil},
		{"github.com/hashicorp/vault/api", []string{"broker"}, "tokens are seen in one package", nil},
		{"github.com/aws/aws-sdk-go-v2", []string{"broker"}, "keys are signed with where they are fetched; none of its clients", nil},
		{"github.com/prometheus/client_golang", []string{"proxy"}, "one registry, of codes of ours alone", nil},
		{"gvisor.dev/gvisor", []string{"runner"}, "pinned, and guarded by one set of tests", nil},
		{"github.com/opencontainers/runtime-spec", []string{"runner"}, "the shape of a sandbox is made in one package", nil},
		{"github.com/google/go-containerregistry", []string{"runner/image"}, "images are believed only after their digests, in one package", []string{"cmd"}},
		{"github.com/spf13/cobra", []string{"cmd/warder"}, "flags end at the command", nil},
		{"github.com/goccy/go-yaml", []string{"internal/config"}, "strictness is decided once", []string{"internal/secret"}},
		{"github.com/google/uuid", []string{"internal/identity"}, "ids are made in one place", nil},
		{"go.yaml.in/yaml/v3", []string{"policies"}, "data files of a policy, read as OPA reads them", nil},
		{"github.com/go-jose/go-jose/v4", []string{"internal/demo"}, "the demo's API checks our tokens with other people's code", nil},
		{"golang.org/x/mod", []string{"audit"}, "signed notes and Merkle trees are the log's", nil},
		{"golang.org/x/net", []string{"proxy", "runner", "broker"}, "IDNA and DNS messages", []string{"cmd"}},
		{"golang.org/x/term", []string{"cmd/warder"}, "only a command has the caller's terminal", nil},
		{"github.com/creack/pty", nil, "a terminal for tests", []string{"cmd"}},
		{"a.warder/early", []string{"cmd/warder", "runner"}, "what a process was started as, and initialises", nil},
		{"golang.org/x/sync", []string{"*"}, "", nil},
		{"golang.org/x/sys", []string{"*"}, "", nil},
		{"github.com/andybalholm/brotli", []string{"internal/scrub"}, "content codings are read where values are masked", nil},
		{"github.com/klauspost/compress", []string{"internal/scrub", "runner/image"}, "content codings are read where values are masked, and layers unpacked", nil},
	}
}

// standard lists packages of the standard library that not everyone may use.
// Tests and tools are exempt.
var standard = map[string][]string{
	"unsafe":         {"runner"},                  // memory safety is a promise elsewhere
	"os/exec":        {"runner", "broker", "cmd"}, // the sandbox, and `command` credentials
	"plugin":         {},
	"math/rand":      {},                                // not for anything that must not be guessed
	"net/http/pprof": {},                                // registers itself on the default mux
	"expvar":         {},                                // likewise
	"log":            {"proxy", "internal/demo", "cmd"}, // log/slog; net/http and goproxy want a *log.Logger, and cmd silences the default one
}

// LibraryUse checks every import outside the module against the table.
func LibraryUse(files []*File, table []Library) []Violation {
	var out []Violation
	used := map[string]bool{}
	for _, f := range files {
		for imp, pos := range f.Imports() {
			if imp == Module || strings.HasPrefix(imp, Module+"/") {
				continue
			}
			if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
				only, limited := standard[imp]
				if limited && !f.Test && !under(f.Dir, append(only, "tools")...) {
					out = append(out, f.at(pos, "standard library", "%s must not import %s", f.Dir, imp))
				}
				continue
			}
			i := slices.IndexFunc(table, func(l Library) bool { return under(imp, l.Path) })
			if i < 0 {
				out = append(out, f.at(pos, "libraries", "%s is not in the table of internal/archtest", imp))
				continue
			}
			lib := table[i]
			used[lib.Path] = true
			if !slices.Contains(lib.Only, "*") && !under(f.Dir, lib.Only...) && !(f.Test && under(f.Dir, lib.Tests...)) {
				out = append(out, f.at(pos, "libraries", "only %s may import %s: %s", strings.Join(lib.Only, ", "), lib.Path, lib.Why))
			}
		}
	}
	for _, l := range table {
		if !used[l.Path] {
			out = append(out, Violation{"internal/archtest", "libraries", "nothing imports " + l.Path + " any more: remove its row"})
		}
	}
	return out
}

// Vanished names the folders of the layer table that have no Go file.
func Vanished(files []*File) []Violation {
	var out []Violation
	for _, top := range slices.Sorted(maps.Keys(layers)) {
		if !slices.ContainsFunc(files, func(f *File) bool { return under(f.Dir, top) }) {
			out = append(out, Violation{"internal/archtest", "layers", "folder " + top + " has vanished: remove its row"})
		}
	}
	return out
}
