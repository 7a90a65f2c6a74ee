package audit

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// sampleLog is a log of three sealed streams, one of two segments, one recovered.
func sampleLog(t *testing.T) (dir string, streams []string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "audit")
	for i := range 3 {
		g := start(t, Options{Dir: dir, FS: &faulty{}, SegmentSize: small})
		streams = append(streams, g.stream())
		g.requests(t, 5)
		if i == 1 {
			g.must(t, wide(g, "w1"), wide(g, "w2"))
			g.requests(t, 5)
		}
		if i == 2 {
			g.die(t)
			last := start(t, Options{Dir: dir, FS: &faulty{}, SegmentSize: small})
			streams = append(streams, last.stream())
			last.requests(t, 2)
			g = last
		}
		g.close(t)
	}
	rep := wantVerdict(t, dir, VerdictComplete)
	if len(rep.OpenStreams) != 0 || rep.Streams != 4 {
		t.Fatalf("the sample: %+v", rep)
	}
	return dir, streams
}

// covered lists the files that hold records.
func covered(t *testing.T, dir string) []string {
	t.Helper()
	names := []string{registryFile}
	err := fs.WalkDir(os.DirFS(dir), streamsDir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func edit(t *testing.T, name string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, change(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Random alterations of random files: every one is found, whatever byte it strikes.
func TestRandomAlterationsAreFound(t *testing.T) {
	dir, _ := sampleLog(t)
	names := covered(t, dir)
	rnd := rand.New(rand.NewPCG(158, 169))
	kinds := []struct {
		name string
		do   func(b []byte) []byte
	}{
		{"flip a bit", func(b []byte) []byte { b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8); return b }},
		{"change a byte", func(b []byte) []byte { b[rnd.IntN(len(b))] ^= byte(1 + rnd.IntN(255)); return b }},
		{"delete a byte", func(b []byte) []byte { i := rnd.IntN(len(b)); return slices.Delete(b, i, i+1) }},
		{"insert a byte", func(b []byte) []byte { return slices.Insert(b, rnd.IntN(len(b)+1), byte(rnd.IntN(256))) }},
		{"cut the tail", func(b []byte) []byte { return b[:rnd.IntN(len(b))] }},
		{"append", func(b []byte) []byte { return append(b, make([]byte, 1+rnd.IntN(9))...) }},
		{"delete a line", func(b []byte) []byte {
			l := split(b)
			i := rnd.IntN(len(l))
			return bytes.Join(slices.Delete(l, i, i+1), nil)
		}},
		{"repeat a line", func(b []byte) []byte {
			l := split(b)
			i := rnd.IntN(len(l))
			return bytes.Join(slices.Insert(l, i, l[i]), nil)
		}},
		{"swap lines", func(b []byte) []byte {
			l := split(b)
			if len(l) < 2 {
				return b[:0]
			}
			i := rnd.IntN(len(l) - 1)
			l[i], l[i+1] = l[i+1], l[i]
			return bytes.Join(l, nil)
		}},
	}
	for i := range 250 {
		kind, name := kinds[i%len(kinds)], names[rnd.IntN(len(names))]
		path := filepath.Join(dir, name)
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		after := kind.do(bytes.Clone(before))
		if bytes.Equal(before, after) {
			continue
		}
		if err := os.WriteFile(path, after, 0o600); err != nil {
			t.Fatal(err)
		}
		if rep := verify(t, dir); rep.Verdict == VerdictComplete {
			t.Errorf("alteration %d: %s in %s is not found", i, kind.name, name)
		}
		if err := os.WriteFile(path, before, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wantVerdict(t, dir, VerdictComplete) // each was undone: it was found for itself
}

func split(b []byte) [][]byte { return slices.Collect(bytes.Lines(b)) }

func TestAlterationsOfFilesAreFound(t *testing.T) {
	sample, streams := sampleLog(t)
	two := filepath.Join(streamsDir, streams[1]) // has two segments
	for _, c := range []struct {
		name    string
		do      func(t *testing.T, dir string)
		verdict string
	}{
		{"a stream is deleted", remove(filepath.Join(streamsDir, streams[0])), VerdictGap},
		{"the newest stream is deleted", remove(filepath.Join(streamsDir, streams[3])), VerdictGap},
		{"all streams are deleted", remove(streamsDir), VerdictGap},
		{"the registry is deleted", remove(registryFile), VerdictTruncated},
		{"registry and streams are deleted", func(t *testing.T, dir string) {
			remove(registryFile)(t, dir)
			remove(streamsDir)(t, dir)
		}, VerdictTruncated},
		{"the registry is emptied", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, registryFile), func([]byte) []byte { return nil })
		}, VerdictTruncated},
		{"the registry's last line is cut off", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, registryFile), func(b []byte) []byte { l := split(b); return bytes.Join(l[:len(l)-1], nil) })
		}, VerdictTruncated},
		{"the first segment is deleted", remove(filepath.Join(two, "1.jsonl")), VerdictTruncated},
		{"the last segment is deleted", remove(filepath.Join(two, "2.jsonl")), VerdictTruncated},
		{"segments are swapped", func(t *testing.T, dir string) {
			a, b, c := filepath.Join(dir, two, "1.jsonl"), filepath.Join(dir, two, "2.jsonl"), filepath.Join(dir, "c")
			for _, mv := range [][2]string{{a, c}, {b, a}, {c, b}} {
				if err := os.Rename(mv[0], mv[1]); err != nil {
					t.Fatal(err)
				}
			}
		}, VerdictAltered},
		{"the last record is cut off at its line's end", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, two, "2.jsonl"), func(b []byte) []byte { l := split(b); return bytes.Join(l[:len(l)-1], nil) })
		}, VerdictTruncated},
		{"a record in the middle is taken out", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, streamsDir, streams[0], "1.jsonl"), func(b []byte) []byte { l := split(b); return bytes.Join(slices.Delete(l, 2, 3), nil) })
		}, VerdictTruncated},
		{"a stream is put in another's place", func(t *testing.T, dir string) {
			from, to := filepath.Join(dir, streamsDir, streams[0], "1.jsonl"), filepath.Join(dir, streamsDir, streams[3], "1.jsonl")
			b, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			edit(t, to, func([]byte) []byte { return b })
		}, VerdictAltered},
		{"a file is added to a stream", func(t *testing.T, dir string) {
			edit2(t, filepath.Join(dir, two, "notes.txt"))
		}, VerdictAltered},
		{"a file is added to the streams", func(t *testing.T, dir string) {
			edit2(t, filepath.Join(dir, streamsDir, "notes.txt"))
		}, VerdictAltered},
		{"a segment is a link", func(t *testing.T, dir string) {
			name := filepath.Join(dir, two, "2.jsonl")
			if err := os.Rename(name, filepath.Join(dir, "elsewhere")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join(dir, "elsewhere"), name); err != nil {
				t.Fatal(err)
			}
		}, VerdictAltered},
		{"a sealed segment ends in NUL bytes", func(t *testing.T, dir string) {
			edit(t, filepath.Join(dir, two, "2.jsonl"), func(b []byte) []byte { return append(b, 0, 0) })
		}, VerdictAltered},
		{"the public key is replaced", func(t *testing.T, dir string) {
			k, _, err := newKey()
			if err != nil {
				t.Fatal(err)
			}
			pub, err := filepath.Glob(filepath.Join(dir, keysDir, "*"+publicExt))
			if err != nil || len(pub) != 1 {
				t.Fatal(pub, err)
			}
			edit(t, pub[0], func([]byte) []byte { return []byte(k.public) })
		}, VerdictAltered},
		{"a stream of a stranger is added", func(t *testing.T, dir string) {
			other := start(t, Options{FS: &faulty{}})
			other.requests(t, 1)
			other.close(t)
			if err := os.CopyFS(filepath.Join(dir, streamsDir, other.stream()), os.DirFS(filepath.Join(other.dir, streamsDir, other.stream()))); err != nil {
				t.Fatal(err)
			}
		}, VerdictAltered},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := copyDir(t, sample)
			wantVerdict(t, dir, VerdictComplete)
			c.do(t, dir)
			rep := wantVerdict(t, dir, c.verdict)
			if len(rep.Findings) == 0 {
				t.Error("no finding tells where")
			}
		})
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func edit2(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Nothing at all is no complete log.
func TestAnEmptyDirectoryIsNoLog(t *testing.T) {
	dir := t.TempDir()
	if rep, err := Verify(t.Context(), dir, VerifyOptions{}); err == nil {
		t.Errorf("%+v", rep)
	}
	no(t, os.WriteFile(filepath.Join(dir, registryFile), nil, 0o600))
	if rep, err := Verify(t.Context(), dir, VerifyOptions{}); err == nil {
		t.Errorf("with an empty registry: %+v", rep)
	}
}

// F165: whoever can write in the directory, and reads its signing key, can make a log
// that is right in itself. An anchor kept elsewhere tells it.
func TestF165OnlyAnAnchorTellsARewrittenLog(t *testing.T) {
	dir, _ := sampleLog(t)
	older := copyDir(t, dir)
	oldAnchor, err := Anchor(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, Options{Dir: dir, FS: &faulty{}})
	g.requests(t, 1)
	g.close(t)
	anchor, err := Anchor(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	rewritten := filepath.Join(t.TempDir(), "audit")
	if err := os.CopyFS(filepath.Join(rewritten, keysDir), os.DirFS(filepath.Join(dir, keysDir))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(rewritten, keysDir, signingKey), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		g := start(t, Options{Dir: rewritten, FS: &faulty{}})
		g.requests(t, 3)
		g.close(t)
	}
	for _, c := range []struct {
		name, dir string
		anchor    []byte
		verdict   string
	}{
		{"the log itself", dir, anchor, VerdictComplete},
		{"the log, by an older anchor", dir, oldAnchor, VerdictComplete},
		{"an older copy of it", older, anchor, VerdictTruncated},
		{"written anew with its own key", rewritten, anchor, VerdictAltered},
	} {
		wantVerdict(t, c.dir, VerdictComplete) // nothing in the directory tells it
		rep, err := Verify(t.Context(), c.dir, VerifyOptions{Anchor: c.anchor})
		if err != nil || rep.Verdict != c.verdict || !rep.Anchored {
			t.Errorf("%s: %v, %+v", c.name, err, rep)
		}
	}
	if _, err := Verify(t.Context(), dir, VerifyOptions{Anchor: []byte("{}")}); err == nil {
		t.Error("an empty anchor is taken for one")
	}
}

// F165: an edited line with all hashes computed anew fails on root and signature.
func TestF165ARecomputedChainIsFound(t *testing.T) {
	dir, streams := sampleLog(t)
	name := filepath.Join(dir, streamsDir, streams[3], "1.jsonl")
	edit(t, name, func(b []byte) []byte {
		return rechain(b, func(i int, line []byte) []byte {
			if i == 2 {
				return bytes.Replace(line, []byte("api.allowed.test"), []byte("api.another.test"), 1)
			}
			return line
		})
	})
	rep := wantVerdict(t, dir, VerdictAltered)
	for _, f := range rep.Findings {
		if strings.Contains(f.What, "hash") && f.Segment != 0 {
			t.Errorf("the chain was not recomputed well: %+v", f)
		}
	}
	if !strings.Contains(fmt.Sprint(rep.Findings), "sealed with") {
		t.Errorf("findings: %+v", rep.Findings)
	}
}

// rechain gives lines new hashes, after changing one of them; the chain is right then.
func rechain(b []byte, change func(i int, line []byte) []byte) []byte {
	prev, out := firstPrev, []byte(nil)
	for i, line := range split(bytes.TrimRight(b, "\x00")) {
		line = change(i, line[:len(line)-1])
		body := line[:len(line)-len(lineTail)]
		out = append(out, body...)
		start := len(out) - len(body)
		out = append(out, `,"prev":"`+string(prev[:])+`"`...)
		out = seal(out, start, &prev)
	}
	return out
}

// F165: an open stream has no seal yet; its checkpoint tells a recomputed chain.
func TestF165ARecomputedOpenStreamIsFound(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.requests(t, 2)
	no(t, g.Checkpoint(t.Context()))
	name := g.segment(1)
	g.die(t)
	same := func(_ int, line []byte) []byte { return line }
	edit(t, name, func(b []byte) []byte { return rechain(b, same) })
	wantVerdict(t, g.dir, VerdictComplete) // the tool that recomputes is right
	edit(t, name, func(b []byte) []byte {
		return rechain(b, func(i int, line []byte) []byte {
			if i == 1 {
				return bytes.Replace(line, []byte("api.allowed.test"), []byte("api.another.test"), 1)
			}
			return line
		})
	})
	if rep := wantVerdict(t, g.dir, VerdictAltered); !strings.Contains(fmt.Sprint(rep.Findings), "checkpoint") {
		t.Errorf("%+v", rep.Findings)
	}
}

// The lines of one open stream under the name of another.
func TestAnotherStreamsLinesAreFound(t *testing.T) {
	a := start(t, Options{FS: &faulty{}})
	a.requests(t, 2)
	b := start(t, Options{Dir: a.dir, FS: &faulty{}})
	b.requests(t, 2)
	from, to := a.segment(1), b.segment(1)
	a.die(t)
	b.die(t)
	wantVerdict(t, a.dir, VerdictComplete)
	lines, err := os.ReadFile(from)
	no(t, err)
	edit(t, to, func([]byte) []byte { return lines })
	if rep := wantVerdict(t, a.dir, VerdictAltered); !strings.Contains(fmt.Sprint(rep.Findings), "another stream") {
		t.Errorf("%+v", rep.Findings)
	}
}

// Each proof in the registry stands by itself: what is changed in its last line, which
// no later line and no checkpoint knows, is found.
func TestTheRegistrysLastLineIsProved(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.die(t)
	rehash := func(line []byte) []byte {
		body := line[:bytes.LastIndex(line, []byte(hashKey))]
		out := seal(bytes.Clone(body), 0, new(hexHash))
		return out
	}
	swap := func(from, to string) func([]byte) []byte {
		return func(line []byte) []byte { return bytes.Replace(line, []byte(from), []byte(to), 1) }
	}
	k, err := loadKey(osFS{}, g.dir, signingKey)
	no(t, err)
	stranger, _, err := newKey()
	no(t, err)
	resign := func(change func(l *regLine)) func([]byte) []byte {
		return func(line []byte) []byte {
			l, err := parseRegLine(line)
			no(t, err)
			change(l)
			l.Sig, l.Hash = "", ""
			out, err := l.encode(k)
			no(t, err)
			return out
		}
	}
	for _, c := range []struct {
		name    string
		change  func(line []byte) []byte
		verdict string
	}{
		{"nothing", func(line []byte) []byte { return line }, VerdictComplete},
		{"signed again", resign(func(*regLine) {}), VerdictComplete}, // the tool is right
		{"its hash", swap(hashKey, hashKey+"0"), VerdictAltered},
		{"one digit of its hash", func(line []byte) []byte { line[len(line)-4] ^= 1; return line }, VerdictAltered},
		{"its time, hashed again", func(line []byte) []byte { return rehash(swap(`"time":"2`, `"time":"3`)(line)) }, VerdictAltered},
		{"its signature, hashed again", func(line []byte) []byte { return rehash(swap(`"sig":"`, `"sig":"A`)(line)) }, VerdictAltered},
		{"the name of its key, signed again", resign(func(l *regLine) { l.Key += "0" }), VerdictAltered}, // encode leaves the name alone
		{"what it is chained to, signed again", resign(func(l *regLine) { l.Prev = zeroHash }), VerdictAltered},
		{"its open streams, signed again", resign(func(l *regLine) { l.Live = append(l.Live, "more") }), VerdictAltered},
		{"its event, signed again", resign(func(l *regLine) { l.Event = "close" }), VerdictAltered},
		{"no key, as a key", resign(func(l *regLine) { l.Event, l.VKey = regKey, "x+0+y" }), VerdictAltered},
		{"a key that is not beside the log", resign(func(l *regLine) { l.Event, l.Stream, l.VKey, l.Live = regKey, "", stranger.public, []string{} }), VerdictAltered},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := copyDir(t, g.dir)
			edit(t, filepath.Join(dir, registryFile), func(b []byte) []byte {
				l := split(b)
				last := c.change(bytes.Clone(bytes.TrimSuffix(l[len(l)-1], []byte("\n"))))
				return append(bytes.Join(l[:len(l)-1], nil), append(bytes.TrimSuffix(last, []byte("\n")), '\n')...)
			})
			wantVerdict(t, dir, c.verdict)
		})
	}
}

// F165: the registry written anew with the log's own key does not fit the checkpoints
// of streams that were left as they are.
func TestF165ARewrittenRegistryIsFound(t *testing.T) {
	dir, _ := sampleLog(t)
	k, err := loadKey(osFS{}, dir, signingKey)
	no(t, err)
	edit(t, filepath.Join(dir, registryFile), func(b []byte) []byte {
		prev, out := zeroHash, []byte(nil)
		for _, line := range split(b) {
			l, err := parseRegLine(line[:len(line)-1])
			no(t, err)
			l.Time, l.Prev, l.Sig, l.Hash = "2026-11-29T17:00:00.000000000Z", prev, "", ""
			again, err := l.encode(k)
			no(t, err)
			out = append(out, again...)
			l, err = parseRegLine(bytes.TrimSuffix(again, []byte("\n")))
			no(t, err)
			prev = l.Hash
		}
		return out
	})
	for _, f := range wantVerdict(t, dir, VerdictAltered).Findings {
		if !strings.Contains(f.What, "checkpoint knows another line") {
			t.Errorf("the registry was not rewritten well: %+v", f)
		}
	}
}

// An older copy of one stream in place of the stream.
func TestAnOlderCopyOfAStreamIsFound(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.requests(t, 2)
	older := copyDir(t, g.dir)
	g.requests(t, 2)
	g.close(t)
	stream := filepath.Join(streamsDir, g.stream())
	remove(stream)(t, g.dir)
	if err := os.CopyFS(filepath.Join(g.dir, stream), os.DirFS(filepath.Join(older, stream))); err != nil {
		t.Fatal(err)
	}
	if rep := verify(t, g.dir); rep.Verdict == VerdictComplete {
		t.Errorf("%+v", rep)
	}
}

// An anchor holds the checkpoints of open streams, which then may not be shorter, nor
// hold other records (F165).
func TestAnAnchorKnowsTheOpenStreams(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.requests(t, 2)
	no(t, g.Checkpoint(t.Context()))
	anchor, err := Anchor(t.Context(), g.dir)
	no(t, err)
	k, err := loadKey(osFS{}, g.dir, signingKey)
	no(t, err)
	root := base64.StdEncoding.EncodeToString(rootOf(&g.c.s.tree))
	another := base64.StdEncoding.EncodeToString(make([]byte, 32))
	ref := g.c.s.ref
	for _, c := range []struct {
		name    string
		known   checkpoint
		verdict string
	}{
		{"as it is", checkpoint{g.stream(), 4, root, ref.seq, ref.hash}, VerdictComplete},
		{"longer than what is here", checkpoint{g.stream(), 5, another, ref.seq, ref.hash}, VerdictTruncated},
		{"other records", checkpoint{g.stream(), 4, another, ref.seq, ref.hash}, VerdictAltered},
	} {
		var a anchorFile
		no(t, json.Unmarshal(anchor, &a))
		signed, err := c.known.sign(k)
		no(t, err)
		a.Checkpoints[g.stream()] = string(signed)
		b, err := json.Marshal(a)
		no(t, err)
		rep, err := Verify(t.Context(), g.dir, VerifyOptions{Anchor: b})
		if err != nil || rep.Verdict != c.verdict || !rep.Anchored {
			t.Errorf("%s: %v, %+v", c.name, err, rep)
		}
	}
	g.close(t)
}

// A range is checked by itself: damage in it is found, damage beside it is not.
func TestVerifyOfARange(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.requests(t, 5)
	g.close(t)
	rs := records(t, g.dir, Filter{})
	edit(t, g.segment(1), func(b []byte) []byte {
		lines := split(b)
		lines[6] = bytes.Replace(lines[6], []byte("api.allowed.test"), []byte("api.another.test"), 1)
		return bytes.Join(lines, nil)
	})
	at := func(i int) time.Time {
		when, err := time.Parse(time.RFC3339Nano, rs[i].Time)
		no(t, err)
		return when
	}
	seq := func(n uint64) *uint64 { return &n }
	for _, c := range []struct {
		name    string
		r       Range
		records uint64
		verdict string
	}{
		{"before it", Range{ToSeq: seq(5)}, 6, VerdictComplete},
		{"behind it", Range{FromSeq: seq(7)}, 3, VerdictComplete},
		{"with it", Range{FromSeq: seq(6), ToSeq: seq(6)}, 1, VerdictAltered},
		{"by time, before it", Range{To: at(5)}, 6, VerdictComplete},
		{"by time, behind it", Range{From: at(7), To: at(8)}, 2, VerdictComplete},
		{"by time, with it", Range{From: at(5), To: at(7)}, 3, VerdictAltered},
		{"all", Range{}, 10, VerdictAltered},
	} {
		rep, err := Verify(t.Context(), g.dir, VerifyOptions{Stream: g.stream(), Range: c.r})
		if err != nil || rep.Verdict != c.verdict || rep.Records != c.records || rep.Partial == c.r.all() {
			t.Errorf("%s: %v, %+v", c.name, err, rep)
		}
	}
}
