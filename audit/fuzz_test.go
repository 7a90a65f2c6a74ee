package audit

import (
	"os"
	"path/filepath"
	"testing"
)

// Whatever stands in a segment, reading it ends, and what is no chain of records from
// the first byte to the last is told.
func FuzzSegment(f *testing.F) {
	line := lineOf(0)
	f.Add(line, true)
	f.Add(append(append([]byte{}, line...), make([]byte, 600)...), true)
	f.Add(append(append([]byte{}, line...), line[:40]...), true)
	f.Add(append(append(make([]byte, 512), line...), "\x00\n\x00"...), false)
	f.Fuzz(func(t *testing.T, b []byte, open bool) {
		name := filepath.Join(t.TempDir(), "1.jsonl")
		no(t, os.WriteFile(name, b, 0o600))
		file, err := openRegular(name)
		no(t, err)
		defer file.Close()
		c := newChain("s")
		findings := 0
		c.find = func(string, int, uint64, string) { findings++ }
		e, err := c.read(file, open, make([]byte, 4096))
		no(t, err)
		if e.bad != "" {
			findings++
		}
		rest := b[min(e.end, int64(len(b))):]
		if findings == 0 && c.records == 0 && len(b) > 0 && !e.nul && e.torn == nil {
			t.Errorf("%q is nothing, and nothing is found", b)
		}
		if e.nul && len(rest) == 0 || !open && e.torn != nil {
			t.Errorf("an ending that is not there: %+v", e)
		}
	})
}

// Whatever stands in the registry, reading it ends without a fault of ours.
func FuzzRegistry(f *testing.F) {
	b, err := os.ReadFile(filepath.Join(sampleDir, registryFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add([]byte("{}\n\x00"))
	f.Fuzz(func(t *testing.T, changed []byte) {
		dir := t.TempDir()
		no(t, os.CopyFS(filepath.Join(dir, keysDir), os.DirFS(filepath.Join(sampleDir, keysDir))))
		no(t, os.WriteFile(filepath.Join(dir, registryFile), changed, 0o600))
		g, err := readRegistry(dir)
		no(t, err)
		if string(changed) != string(b) && len(g.findings) == 0 && len(g.lines) >= 3 {
			t.Errorf("another registry, and nothing is found: %q", changed)
		}
	})
}
