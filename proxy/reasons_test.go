package proxy

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reasons.md")

func TestReasonsDocument(t *testing.T) {
	const file = "../docs/reasons.md"
	var b bytes.Buffer
	if err := WriteReasons(&b); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not the table in the code (%v); hint: go generate ./proxy", file, err)
	}
	seen := map[string]bool{}
	for _, r := range reasonTable() {
		if seen[r.code] || r.title == "" || r.meaning == "" || r.verdict == "" || r.retry == "" {
			t.Errorf("row %+v", r)
		}
		seen[r.code] = true
	}
}
