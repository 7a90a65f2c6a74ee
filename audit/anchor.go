package audit

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/note"
)

// An anchor is a JSON object of the registry's state and of the open streams'
// checkpoints, each a signed note as it stands in the log. The registry's state is its
// last line, whose signature and place in the chain stand for all lines before.
type anchorFile struct {
	Schema      string            `json:"schema"`
	Registry    json.RawMessage   `json:"registry"`    // the registry's last line
	Checkpoints map[string]string `json:"checkpoints"` // of the open streams that have one
}

const anchorSchema = "warder.audit.anchor/v1"

// Anchor returns the state of the log in dir, to be kept where its owner cannot write
// and given to Verify. It needs no key: it holds what the log's writers signed.
func Anchor(_ context.Context, dir string) ([]byte, error) {
	b, err := anchorOf(dir)
	if err != nil {
		return nil, fmt.Errorf("audit: anchor %s: %w", dir, err)
	}
	return b, nil
}

func anchorOf(dir string) ([]byte, error) {
	f, err := openRegular(filepath.Join(dir, registryFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a := anchorFile{Schema: anchorSchema, Checkpoints: map[string]string{}}
	l := newLines(f, make([]byte, 256<<10))
	for {
		line, ok := l.next()
		if !ok {
			break
		}
		a.Registry = bytes.Clone(line)
	}
	if l.err != nil {
		return nil, l.err
	}
	if a.Registry == nil {
		return nil, errors.New("the registry is empty")
	}
	last, err := parseRegLine(a.Registry)
	if err != nil {
		return nil, fmt.Errorf("registry: %w; hint: warder audit verify", err)
	}
	for _, name := range last.Live {
		b, err := os.ReadFile(filepath.Join(dir, streamsDir, filepath.Base(name), checkpointFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		a.Checkpoints[name] = string(b)
	}
	b, err := json.MarshalIndent(a, "", "  ")
	return append(b, '\n'), err
}

// anchors reads VerifyOptions.Anchor: its checkpoints by stream, and the registry's
// line that it knows.
func (v *verifier) anchors() error {
	if v.o.Anchor == nil {
		return nil
	}
	var a anchorFile
	if err := json.Unmarshal(v.o.Anchor, &a); err != nil {
		return fmt.Errorf("anchor: not JSON: %w", err)
	}
	if a.Schema != anchorSchema {
		return fmt.Errorf("anchor: schema is not %s", anchorSchema)
	}
	var line bytes.Buffer
	if err := json.Compact(&line, a.Registry); err != nil {
		return fmt.Errorf("anchor: registry: %w", err)
	}
	last, err := parseRegLine(line.Bytes())
	if err != nil {
		return fmt.Errorf("anchor: registry: %w", err)
	}
	v.anchored = map[string]checkpoint{}
	for name, text := range a.Checkpoints {
		n, err := note.Open([]byte(text), v.reg.verifiers())
		if err != nil {
			v.find(Finding{Kind: VerdictAltered, Stream: name, What: "the anchor's checkpoint is signed with a key the log does not name"})
			continue
		}
		cp, err := parseCheckpoint(n.Text)
		if err != nil || cp.stream != name {
			return fmt.Errorf("anchor: not a checkpoint of %s", Clean(name, capWord))
		}
		v.anchored[name] = cp
		if v.reg.streams[name] == nil {
			v.find(Finding{Kind: VerdictGap, Stream: name, What: "the anchor knows the stream, and the registry does not"})
		}
	}
	v.report.Anchored = true
	v.anchorRegistry(last)
	return nil
}

func (v *verifier) anchorRegistry(last *regLine) {
	switch lines := v.reg.lines; {
	case last.Seq >= uint64(len(lines)):
		v.find(Finding{Kind: VerdictTruncated, Seq: last.Seq, What: fmt.Sprintf(
			"registry: the anchor knows line %d, and it has %d: this is an older copy, or it was cut", last.Seq, len(lines))})
	case lines[last.Seq] != last.Hash:
		v.find(Finding{Kind: VerdictAltered, Seq: last.Seq, What: fmt.Sprintf(
			"registry: line %d is not the one the anchor knows: the log was written anew", last.Seq)})
	}
}

// compareAnchor compares a stream with what the anchor knows of it.
func (s *streamCheck) compareAnchor() {
	cp, ok := s.v.anchored[s.name]
	if !ok {
		return
	}
	switch {
	case s.chain.tree.size < cp.size:
		s.find(VerdictTruncated, fmt.Sprintf("the anchor knows %d records, of which %d are here", cp.size, s.chain.tree.size))
	case s.anchorRoot != cp.root:
		s.find(VerdictAltered, fmt.Sprintf("its first %d records are not those the anchor knows", cp.size))
	}
}

func (s *streamCheck) root64() string {
	return base64.StdEncoding.EncodeToString(rootOf(&s.chain.tree))
}
