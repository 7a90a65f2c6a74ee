package audit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAProofHoldsForItsRecordOnly(t *testing.T) {
	g := start(t, Options{FS: &faulty{}, SegmentSize: small})
	g.requests(t, 11)
	no(t, g.Checkpoint(t.Context()))
	g.must(t, g.reserved("late"), g.completed("late"))
	rs := records(t, g.dir, Filter{})
	pub, err := os.ReadFile(filepath.Join(g.dir, keysDir, g.c.s.key.Name()+publicExt))
	no(t, err)
	for _, r := range rs[:22] {
		p, err := Prove(t.Context(), g.dir, r.ID)
		no(t, err)
		b, err := json.Marshal(p)
		no(t, err)
		p, err = ParseProof(b)
		no(t, err)
		got, err := CheckProof(p, string(pub))
		if err != nil || got.ID != r.ID {
			t.Fatalf("record %d: %v", r.Seq, err)
		}
	}
	if _, err := Prove(t.Context(), g.dir, rs[22].ID); err == nil || !strings.Contains(err.Error(), "no checkpoint covers it yet") {
		t.Errorf("a record after the checkpoint: %v", err)
	}
	if _, err := Prove(t.Context(), g.dir, "none"); err == nil {
		t.Error("a record that is not there is proved")
	}
	good, err := Prove(t.Context(), g.dir, rs[3].ID)
	no(t, err)
	stranger, _, err := newKey()
	no(t, err)
	_, err = CheckProof(good, string(pub))
	no(t, err)
	for name, c := range map[string]struct {
		change func(p *Proof)
		key    string
	}{
		"another record":            {func(p *Proof) { p.Record = string(rs[4].Line()) }, string(pub)},
		"another path":              {func(p *Proof) { p.Path = append(p.Path[1:2:2], p.Path[1:]...) }, string(pub)},
		"another size":              {func(p *Proof) { p.Checkpoint = strings.Replace(p.Checkpoint, "\n22\n", "\n21\n", 1) }, string(pub)},
		"another owner's key":       {func(*Proof) {}, stranger.public},
		"a record that was changed": {func(p *Proof) { p.Record = strings.Replace(p.Record, "GET", "PUT", 1) }, string(pub)},
	} {
		p := good
		c.change(&p)
		if _, err := CheckProof(p, c.key); err == nil {
			t.Errorf("%s: the proof holds", name)
		}
	}
	g.close(t)
}
