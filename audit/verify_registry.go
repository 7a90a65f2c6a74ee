package audit

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// registryView is the registry as an auditor reads it.
type registryView struct {
	streams  map[string]*streamEntry
	lines    []string // hash of each line
	findings []Finding
	known    map[string]note.Verifier // public keys in the directory, by name
	named    []note.Verifier          // those the registry names

	prev    string
	current string // name of the key that signs
	live    []string
}

// streamEntry is what the registry says of a stream.
type streamEntry struct {
	sealed *sealed // nil while it is open
}

func (g *registryView) find(kind, what string, args ...any) {
	if len(g.findings) <= maxFindings {
		what = "registry: " + fmt.Sprintf(what, args...)
		g.findings = append(g.findings, Finding{Kind: kind, Seq: uint64(len(g.lines)), What: what})
	}
}

// verifiers are the keys that may have signed a checkpoint: those the registry names.
// Without any line of it, those in the directory, so that the one fault is not told twice.
func (g *registryView) verifiers() note.Verifiers {
	keys := g.named
	if len(g.lines) == 0 {
		keys = slices.Collect(maps.Values(g.known))
	}
	return note.VerifierList(keys...)
}

// readRegistry reads and checks the registry in dir. The error is for what cannot be
// read; no registry at all is a finding when there are keys.
func readRegistry(dir string) (*registryView, error) {
	g := &registryView{streams: map[string]*streamEntry{}, prev: zeroHash, live: []string{}}
	var err error
	if g.known, err = publicKeys(dir); err != nil {
		return nil, err
	}
	_, keyErr := os.Lstat(filepath.Join(dir, keysDir, signingKey))
	f, err := openRegular(filepath.Join(dir, registryFile))
	if errors.Is(err, fs.ErrNotExist) {
		if len(g.known) > 0 || keyErr == nil {
			g.find(VerdictTruncated, "it is missing")
		}
		return g, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l := newLines(f, make([]byte, 256<<10))
	for {
		line, ok := l.next()
		if l.err != nil {
			return nil, l.err
		}
		if !ok {
			break
		}
		g.take(line)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, l.off, maxRegLine))
	if err != nil {
		return nil, err
	}
	// A line that a dying process, or one that is at it right now, has not finished.
	head := fmt.Sprintf(`{"schema":"%s","seq":%d,`, registrySchema, len(g.lines))
	if n := min(len(data), len(head)); bytes.IndexByte(data, '\n') >= 0 || string(data[:n]) != head[:n] {
		g.find(VerdictAltered, "bytes that are no line of it")
	}
	if len(g.lines) == 0 && keyErr == nil {
		g.find(VerdictTruncated, "it is empty")
	}
	return g, nil
}

// take judges one line.
func (g *registryView) take(line []byte) {
	l, err := parseRegLine(line)
	if err != nil {
		g.find(VerdictAltered, "line %d: %v", len(g.lines), err)
		g.lines = append(g.lines, "")
		g.prev = ""
		return
	}
	g.frame(line, l)
	g.signature(line, l)
	g.event(l)
	if !slices.Equal(l.Live, g.live) {
		g.find(VerdictAltered, "line %d: the open streams are not those of the lines before", l.Seq)
		g.live = l.Live
	}
	g.prev = l.Hash
	g.lines = append(g.lines, l.Hash)
}

// frame checks place, chain and hash.
func (g *registryView) frame(line []byte, l *regLine) {
	n := uint64(len(g.lines))
	switch {
	case l.Seq > n && l.Prev != g.prev && g.prev != "":
		g.find(VerdictGap, "lines %s are missing", span(n, l.Seq-1))
		for uint64(len(g.lines)) < l.Seq && l.Seq-n < 1<<20 {
			g.lines = append(g.lines, "")
		}
	case l.Seq != n:
		g.find(VerdictAltered, "line %d stands where %d was due", l.Seq, n)
	case l.Prev != g.prev && g.prev != "":
		g.find(VerdictAltered, "line %d: prev is not the hash of the line before", n)
	}
	tail := hashKey + l.Hash + `"}`
	body, ok := bytes.CutSuffix(line, []byte(tail))
	if !ok || hexSum(body) != l.Hash {
		g.find(VerdictAltered, "line %d: its hash is not that of its bytes", n)
	}
}

// signature checks that the key in force signed the line. A key line is signed by the
// key before; the first by the key that it names.
func (g *registryView) signature(line []byte, l *regLine) {
	n := len(g.lines)
	signer := g.current
	if l.Event == regKey {
		v, err := note.NewVerifier(l.VKey)
		if err != nil {
			g.find(VerdictAltered, "line %d: names no key", n)
			return
		}
		if same := g.known[v.Name()]; same == nil || same.KeyHash() != v.KeyHash() {
			g.find(VerdictAltered, "line %d: key %s is not in %s/", n, Clean(v.Name(), capWord), keysDir)
			return
		}
		g.named = append(g.named, v)
		if signer == "" {
			signer = v.Name()
		}
		g.current = v.Name()
	}
	v := g.known[signer]
	switch {
	case v == nil:
		g.find(VerdictAltered, "line %d: no public key in %s/ belongs to it", n, keysDir)
	case l.Key != signer:
		g.find(VerdictAltered, "line %d: signed with %s, where %s was in force", n, Clean(l.Key, capWord), signer)
	default:
		body, ok := bytes.CutSuffix(line, []byte(`,"sig":"`+l.Sig+`"`+hashKey+l.Hash+`"}`))
		sig, err := base64.StdEncoding.Strict().DecodeString(l.Sig)
		if !ok || err != nil || !v.Verify(signedBytes(body), sig) {
			g.find(VerdictAltered, "line %d: the signature is not good", n)
		}
	}
}

func (g *registryView) event(l *regLine) {
	known := g.streams[l.Stream]
	switch l.Event {
	case regKey:
		return
	case regOpen:
		if known != nil || l.Stream == "" || strings.ContainsAny(l.Stream, "/\\") || strings.HasPrefix(l.Stream, ".") {
			g.find(VerdictAltered, "line %d: opens a stream that cannot be opened", l.Seq)
			return
		}
		g.streams[l.Stream] = &streamEntry{}
		g.live = append(slices.Clone(g.live), l.Stream)
	case regSeal, regRecover:
		if known == nil || known.sealed != nil || l.Sealed == nil {
			g.find(VerdictAltered, "line %d: seals a stream that is not open", l.Seq)
			return
		}
		known.sealed = l.Sealed
		g.live = slices.DeleteFunc(slices.Clone(g.live), func(s string) bool { return s == l.Stream })
	default:
		g.find(VerdictAltered, "line %d: unknown event", l.Seq)
	}
}
