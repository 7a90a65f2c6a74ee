package audit

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// streamCheck is one pass over one stream.
type streamCheck struct {
	v        *verifier
	name     string
	dir      string
	entry    *streamEntry
	chain    *chain
	findings []Finding
	runs     map[string]bool
	owed     map[string]bool // "q" + request id, or "r" + run id
	cp       *checkpoint
	cpRoot   string // root at the checkpoint's size
	err      error

	anchorRoot string // root at the size that the anchor knows
}

func (v *verifier) newStream(name string, entry *streamEntry) *streamCheck {
	s := &streamCheck{
		v: v, name: name, dir: filepath.Join(v.dir, streamsDir, name), entry: entry,
		chain: newChain(name), runs: map[string]bool{}, owed: map[string]bool{},
	}
	s.chain.find = func(kind string, segment int, seq uint64, what string) {
		if len(s.findings) > maxFindings {
			return
		}
		s.findings = append(s.findings, Finding{Kind: kind, Stream: name, Segment: segment, Seq: seq, What: what})
	}
	s.chain.line = s.record
	s.chain.within = v.o.Range.within()
	return s
}

func (s *streamCheck) find(kind, what string) { s.chain.find(kind, 0, s.chain.seq, what) }

func (s *streamCheck) check() error {
	if _, err := os.Lstat(s.dir); errors.Is(err, fs.ErrNotExist) {
		s.find(VerdictGap, "the stream is missing")
		return nil
	}
	if err := s.readCheckpoint(); err != nil {
		return err
	}
	s.chain.grown = s.grown
	open := s.entry == nil || s.entry.sealed == nil
	s.grown()
	w, err := s.chain.walk(s.dir, open)
	if err = errors.Join(err, s.err, s.v.ctx.Err()); err != nil {
		return err
	}
	if s.v.report.Partial {
		return nil
	}
	s.compareCheckpoint()
	s.compareAnchor()
	switch {
	case s.entry == nil:
		s.unregistered(w)
	case s.entry.sealed != nil:
		s.compareSeal(w)
	}
	return nil
}

// unregistered judges a stream that the registry does not know. Its writer may have
// died before it was registered: then it holds nothing.
func (s *streamCheck) unregistered(w walked) {
	if s.chain.records == 0 && w.torn == nil && s.cp == nil {
		s.findings = slices.DeleteFunc(s.findings, func(f Finding) bool { return f.Kind != VerdictAltered })
		return
	}
	s.find(VerdictGap, "the registry does not know the stream: its lines are missing there")
}

func (s *streamCheck) compareSeal(w walked) {
	want, tree := s.entry.sealed, &s.chain.tree
	switch root := s.root64(); {
	case tree.size < want.Records:
		s.find(VerdictTruncated, fmt.Sprintf("it was sealed with %d records, of which %d are here", want.Records, tree.size))
	case tree.size > want.Records:
		s.find(VerdictAltered, fmt.Sprintf("it was sealed with %d records, and %d are here", want.Records, tree.size))
	case root != want.Root || string(s.chain.prev[:]) != want.Last:
		s.find(VerdictAltered, "its records are not those it was sealed with")
	}
	if w.segments < want.Segments {
		s.find(VerdictTruncated, fmt.Sprintf("it was sealed with %d segments, of which %d are here", want.Segments, w.segments))
	}
	if w.segments > want.Segments {
		s.find(VerdictAltered, fmt.Sprintf("it was sealed with %d segments, and %d are here", want.Segments, w.segments))
	}
	for _, id := range sortedKeys(s.owed) {
		kind := "request "
		if id[0] == 'r' {
			kind = "run "
		}
		s.find(VerdictGap, kind+Clean(id[1:], capWord)+" was begun and never closed")
		if len(s.findings) > maxFindings {
			break
		}
	}
}

func (s *streamCheck) readCheckpoint() error {
	f, err := openRegular(filepath.Join(s.dir, checkpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		s.find(VerdictAltered, "checkpoint: not a regular file")
		return nil
	}
	defer f.Close()
	b := make([]byte, 64<<10)
	n, _ := f.ReadAt(b, 0)
	opened, err := note.Open(b[:n], s.v.reg.verifiers())
	if err != nil {
		s.find(VerdictAltered, "checkpoint: "+Clean(err.Error(), capWord))
		return nil
	}
	cp, err := parseCheckpoint(opened.Text)
	if err == nil && cp.stream != s.name {
		err = errors.New("it is another stream's")
	}
	if err == nil && !canonical(opened, b[:n]) {
		err = errors.New("it is not written the one way it can be")
	}
	if err != nil {
		s.find(VerdictAltered, "checkpoint: "+Clean(err.Error(), capWord))
		return nil
	}
	s.cp = &cp
	return nil
}

// canonical says whether text is the one way to write a note with one signature:
// Base64 leaves a few bits that decoders ignore.
func canonical(n *note.Note, text []byte) bool {
	if len(n.Sigs) != 1 || len(n.UnverifiedSigs) != 0 {
		return false
	}
	sig, err := base64.StdEncoding.Strict().DecodeString(n.Sigs[0].Base64)
	if err != nil {
		return false
	}
	again := n.Text + "\n— " + n.Sigs[0].Name + " " + base64.StdEncoding.EncodeToString(sig) + "\n"
	return again == string(text)
}

// grown looks at the tree whenever it has a new size.
func (s *streamCheck) grown() {
	if s.cp != nil && s.chain.tree.size == s.cp.size {
		s.cpRoot = s.root64()
	}
	if cp, ok := s.v.anchored[s.name]; ok && s.chain.tree.size == cp.size {
		s.anchorRoot = s.root64()
	}
	if s.chain.records%4096 == 0 && s.chain.records > 0 {
		s.err = s.v.ctx.Err()
		if s.v.o.Progress != nil {
			s.v.o.Progress(s.v.report.Records + s.chain.records)
		}
	}
}

func (s *streamCheck) compareCheckpoint() {
	if s.cp == nil {
		return
	}
	switch {
	case s.chain.tree.size < s.cp.size:
		s.find(VerdictTruncated, fmt.Sprintf("its checkpoint is over %d records, of which %d are here", s.cp.size, s.chain.tree.size))
	case s.cpRoot != s.cp.root:
		s.find(VerdictAltered, fmt.Sprintf("its first %d records are not those of its checkpoint", s.cp.size))
	}
	switch lines := s.v.reg.lines; {
	case s.cp.regSeq >= uint64(len(lines)):
		s.find(VerdictTruncated, fmt.Sprintf("its checkpoint knows line %d of the registry, which ends before", s.cp.regSeq))
	case lines[s.cp.regSeq] != s.cp.regHash:
		s.find(VerdictAltered, fmt.Sprintf("its checkpoint knows another line %d of the registry", s.cp.regSeq))
	}
}

// record checks what a sound line says.
func (s *streamCheck) record(line []byte, p parsed) {
	var r Record
	if why := decode(line, p, &r); why != "" {
		s.chain.find(VerdictAltered, s.chain.segment, p.seq, why)
		return
	}
	if r.Run != nil {
		s.runs[r.Run.ID] = true
	}
	switch {
	case r.Event == EventRequest && r.Stage == StageReserved:
		s.owed["q"+r.Request.ID] = true
	case r.Event == EventRequest:
		delete(s.owed, "q"+r.Request.ID)
	case r.Event == EventRunStart && r.Run != nil:
		s.owed["r"+r.Run.ID] = true
	case r.Event == EventRunEnd && r.Run != nil:
		delete(s.owed, "r"+r.Run.ID)
	}
}

// decode reads a sound line and says what in it is not of the format.
func decode(line []byte, p parsed, r *Record) string {
	if err := json.Unmarshal(line, r); err != nil {
		return "not a record: " + Clean(err.Error(), capWord)
	}
	if _, err := time.Parse(time.RFC3339Nano, r.Time); err != nil {
		return "its time is not RFC 3339"
	}
	switch {
	case r.Seq != p.seq || r.Stream != string(p.stream) || r.Prev != string(p.prev) || r.Hash != string(p.hash):
		return "a key stands in it twice"
	case r.ID == "":
		return "it has no id"
	case r.Event == "":
		return "it has no event"
	case r.Event == EventRequest && (r.Request == nil || r.Request.ID == ""):
		return "a request without an id"
	case r.Event == EventRequest && r.Stage != StageReserved && r.Stage != StageCompleted && r.Stage != StageInterrupted:
		return "a request's stage is " + Clean(r.Stage, capWord)
	}
	return ""
}
