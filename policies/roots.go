package policies

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// addRoots reads further folders as if they were part of this one.
func (f *folder) addRoots(more []string) error {
	seen := map[string]bool{filepath.Clean(f.dir): true}
	failure := &LoadError{Dir: f.dir}
	for i, root := range more {
		if clean := filepath.Clean(root); seen[clean] {
			return loadFailure(root, root, "is named twice as a policy folder")
		}
		seen[filepath.Clean(root)] = true
		other, err := readFolder(root)
		if err != nil {
			return err
		}
		for _, s := range other.sources {
			s.Path = fmt.Sprintf("root%d:/%s", i+1, s.Path)
			f.sources = append(f.sources, s)
		}
		for name, module := range other.modules {
			f.modules[name] = module
		}
		for name, module := range other.tests {
			f.tests[name] = module
		}
		if key := mergeInto(f.data, other.data); key != "" {
			failure.Problems = append(failure.Problems, Problem{File: root, Message: fmt.Sprintf("data.%s is also set by another policy folder", key)})
		}
	}
	slices.SortFunc(f.sources, func(a, b Source) int { return strings.Compare(a.Path, b.Path) })
	return failure.orNil()
}
