package audit

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// chained makes n lines of the stream "s", from sequence number seq and hash prev on.
func chained(t *testing.T, n int, seq uint64, prev, note string) (lines [][]byte, hash string) {
	t.Helper()
	last := hexHash([]byte(prev))
	for range n {
		body, err := encodeBody(&Record{Event: EventAnomaly, Detail: note})
		no(t, err)
		f := frame{id: fmt.Append(nil, "id-", seq), at: lineTime, stream: "s", seq: seq}
		line := appendLine(nil, f, &last, body)
		lines = append(lines, bytes.TrimSuffix(line, []byte("\n")))
		seq++
	}
	return lines, string(last[:])
}

// Hash, prev, seq and stream are each checked by the chain alone, where no root, seal or
// checkpoint covers the lines yet (F165, F168).
func TestEachLinkOfTheChainIsChecked(t *testing.T) {
	lines, _ := chained(t, 4, 0, zeroHash, "as written")
	two, after := chained(t, 1, 1, prevOf(t, lines[1]), "written anew")
	relinked, _ := chained(t, 1, 2, prevOf(t, lines[1]), "as written")
	foreign, _ := chained(t, 1, 0, zeroHash, "as written")
	foreign[0] = resealed(bytes.Replace(foreign[0], []byte(`"stream":"s"`), []byte(`"stream":"x"`), 1))
	flipped := bytes.Replace(lines[1], []byte("as written"), []byte("as spoiled"), 1)
	if after == zeroHash || bytes.Equal(flipped, lines[1]) {
		t.Fatal("the alterations alter nothing")
	}
	for _, c := range []struct {
		name  string
		lines [][]byte
		kind  string
		what  string
	}{
		{"sound", lines, "", ""},
		{"a changed byte", [][]byte{lines[0], flipped, lines[2], lines[3]}, VerdictAltered, "its hash is not"},
		{"a line written anew with its hash", [][]byte{lines[0], two[0], lines[2], lines[3]}, VerdictAltered, "prev is not the hash"},
		{"a line gone", [][]byte{lines[0], lines[2], lines[3]}, VerdictGap, "records 1 are missing"},
		{"a line gone and the next linked over it", [][]byte{lines[0], relinked[0]}, VerdictAltered, "out of order"},
		{"a line twice", [][]byte{lines[0], lines[0], lines[1]}, VerdictAltered, "out of order"},
		{"another stream's line", foreign, VerdictAltered, "another stream"},
	} {
		ch := newChain("s")
		var kinds, whats []string
		ch.find = func(kind string, _ int, _ uint64, what string) {
			kinds, whats = append(kinds, kind), append(whats, what)
		}
		for _, line := range c.lines {
			ch.take(line)
		}
		if c.kind == "" {
			if len(kinds) > 0 {
				t.Errorf("%s: %v", c.name, whats)
			}
			continue
		}
		if len(kinds) == 0 || kinds[0] != c.kind || !strings.Contains(whats[0], c.what) {
			t.Errorf("%s: %v %v, want %s: %s", c.name, kinds, whats, c.kind, c.what)
		}
	}
}

// prevOf is the hash that line is linked to.
func prevOf(t *testing.T, line []byte) string {
	t.Helper()
	p, why := parseLine(line)
	if why != "" {
		t.Fatal(why)
	}
	return string(p.prev)
}

// resealed is a line with the hash that its bytes have now.
func resealed(line []byte) []byte {
	body := line[:bytes.LastIndex(line, []byte(hashKey))]
	out := seal(bytes.Clone(body), 0, new(hexHash))
	return bytes.TrimSuffix(out, []byte("\n"))
}
