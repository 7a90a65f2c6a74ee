package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// docs/cli.md lists the keys with their defaults: the list is whole and true.
func TestDocumentedDefaultsAreTheRealOnes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| (`[a-z]+[.a-z_A-Z*`, ]*) \\|([^|]*)\\|").FindAllStringSubmatch(string(text), -1) {
		for key := range strings.SplitSeq(m[1], ", ") {
			documented[strings.Trim(key, "`")] = strings.Trim(strings.TrimSpace(m[2]), "`")
		}
	}
	for _, s := range Default().Merged() {
		if s.Key == "version" || s.Key == "audit.dir" { // "must be 1"; depends on who asks
			continue
		}
		got := fmt.Sprint(s.Value)
		switch v := s.Value.(type) {
		case [2]uint32:
			got = fmt.Sprintf("[%d, %d]", v[0], v[1])
		case string:
			got = strings.TrimSuffix(v, "0s") // 10m0s is written 10m
		}
		if documented[s.Key] != got {
			t.Errorf("docs/cli.md says %q for %s, it is %q", documented[s.Key], s.Key, got)
		}
	}
	// Every section of the file is there, by its keys or as a whole.
	for f := range fields(reflect.TypeFor[Config]()) {
		section := f.Tag.Get("yaml")
		found := false
		for key := range documented {
			found = found || key == section || strings.HasPrefix(key, section+".")
		}
		if !found {
			t.Errorf("docs/cli.md does not mention %s", section)
		}
	}
}
