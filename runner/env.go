package runner

import (
	"sort"
	"strings"
)

// mergeEnv keeps the last value of each variable, sorted by name.
func mergeEnv(env []string) []string {
	last := map[string]string{}
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		last[name] = e
	}
	out := make([]string, 0, len(last))
	for _, e := range last {
		out = append(out, e)
	}
	sort.Strings(out)
	return out
}

// envNames are the names alone, for the record: values may be private.
func envNames(env []string) []string {
	out := make([]string, 0, len(env))
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		out = append(out, name)
	}
	return out
}
