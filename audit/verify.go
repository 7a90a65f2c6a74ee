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
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// Verdicts, from good to bad. A report has the worst of its findings.
const (
	VerdictComplete  = "complete"  // every record that was promised is there, as it was written
	VerdictGap       = "gap"       // records are missing between others, or a whole stream is
	VerdictTruncated = "truncated" // records are missing at an end that was signed for
	VerdictAltered   = "altered"   // bytes are not as they were written
)

// maxFindings is how many findings a report tells; Report.More counts the rest.
const maxFindings = 1000

// VerifyOptions configures Verify. The zero value checks everything in the directory.
type VerifyOptions struct {
	// Anchor is what Anchor wrote, kept outside of the directory; nil: none. It finds
	// what nothing in the directory can tell: an older copy of all of it, or all of it
	// written anew with its own key.
	Anchor []byte
	// Stream limits the records that are read to one stream; the registry is checked
	// in any case.
	Stream string
	// Progress is told the number of records read so far, now and then; nil: nobody.
	Progress func(records uint64)
}

// Report is what Verify found.
type Report struct {
	Verdict     string    `json:"verdict"` // complete | gap | truncated | altered
	Records     uint64    `json:"records"`
	Runs        int       `json:"runs"`         // distinct runs that a record names
	OpenStreams []string  `json:"open_streams"` // not sealed: live, or dead and not yet recovered
	Streams     int       `json:"streams"`
	Findings    []Finding `json:"findings"`
	More        int       `json:"more_findings,omitempty"`
	Anchored    bool      `json:"anchored"` // an anchor was checked
}

// Finding is one thing that is not as it was written. Stream is empty for the registry.
type Finding struct {
	Kind    string `json:"kind"` // gap | truncated | altered
	Stream  string `json:"stream,omitempty"`
	Segment int    `json:"segment,omitempty"` // 0: not in one segment
	Seq     uint64 `json:"seq"`               // where: the record that was due, or the registry's line
	What    string `json:"what"`
}

// Verify checks every byte of the records in dir: layout, hashes, chains, signatures,
// Merkle roots, and that what the registry promises is there. It needs no lock and no
// private key, and may run beside live writers. The error is for what could not be
// read; what was found is in the report.
func Verify(ctx context.Context, dir string, o VerifyOptions) (Report, error) {
	v := &verifier{ctx: ctx, dir: dir, o: o, runs: map[string]bool{}}
	v.report = Report{Verdict: VerdictComplete, OpenStreams: []string{}, Findings: []Finding{}}
	if err := v.verify(); err != nil {
		return v.report, fmt.Errorf("audit: verify %s: %w", dir, err)
	}
	v.report.Runs = len(v.runs)
	return v.report, nil
}

type verifier struct {
	ctx    context.Context
	dir    string
	o      VerifyOptions
	report Report
	runs   map[string]bool
	reg    *registryView

	anchored map[string]checkpoint // by stream
}

func (v *verifier) find(f Finding) {
	rank := []string{VerdictComplete, VerdictGap, VerdictTruncated, VerdictAltered}
	if slices.Index(rank, f.Kind) > slices.Index(rank, v.report.Verdict) {
		v.report.Verdict = f.Kind
	}
	if len(v.report.Findings) == maxFindings {
		v.report.More++
		return
	}
	v.report.Findings = append(v.report.Findings, f)
}

func (v *verifier) verify() error {
	if st, err := os.Stat(v.dir); err != nil {
		return err
	} else if !st.IsDir() {
		return errors.New("not a directory")
	}
	names, err := v.streams() // before the registry, which then knows them all
	if err != nil {
		return err
	}
	if v.reg, err = readRegistry(v.dir); err != nil {
		return err
	}
	if len(names)+len(v.reg.lines)+len(v.reg.findings)+len(v.report.Findings) == 0 {
		return errors.New("there is no log in it")
	}
	for _, f := range v.reg.findings {
		v.find(f)
	}
	if err := v.anchors(); err != nil {
		return err
	}
	for name := range v.reg.streams {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if v.o.Stream != "" && v.o.Stream != name {
			continue
		}
		if err := v.stream(name); err != nil {
			return err
		}
	}
	return nil
}

// streams lists the directories of streams.
func (v *verifier) streams() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(v.dir, streamsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			v.find(Finding{Kind: VerdictAltered, What: fmt.Sprintf("%s/%q is not a stream", streamsDir, e.Name())})
			continue
		}
		names = append(names, e.Name())
	}
	return names, err
}

// stream checks one stream. One that was open and does not look right may have been
// sealed or recovered meanwhile: then it is looked at once more.
func (v *verifier) stream(name string) error {
	for {
		entry := v.reg.streams[name]
		s := v.newStream(name, entry)
		if err := s.check(); err != nil {
			return err
		}
		if len(s.findings) > 0 && (entry == nil || entry.sealed == nil) {
			now, err := readRegistry(v.dir)
			if err != nil {
				return err
			}
			if again := now.streams[name]; again != nil && again.sealed != nil && len(now.lines) > len(v.reg.lines) {
				v.reg = now
				continue
			}
		}
		v.merge(s)
		return nil
	}
}

func (v *verifier) merge(s *streamCheck) {
	for _, f := range s.findings {
		v.find(f)
	}
	v.report.Records += s.chain.records
	if s.entry != nil {
		v.report.Streams++
	}
	if s.entry != nil && s.entry.sealed == nil {
		v.report.OpenStreams = append(v.report.OpenStreams, s.name)
	}
	for id := range s.runs {
		v.runs[id] = true
	}
	if v.o.Progress != nil {
		v.o.Progress(v.report.Records)
	}
}

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
	case root != want.Root || s.chain.prev != want.Last:
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

func sortedKeys(m map[string]bool) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// publicKeys reads DIR/keys/*.pub. A key's file is named like the key.
func publicKeys(dir string) (map[string]note.Verifier, error) {
	known := map[string]note.Verifier{}
	entries, err := os.ReadDir(filepath.Join(dir, keysDir))
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), publicExt)
		if !ok {
			continue
		}
		f, err := openRegular(filepath.Join(dir, keysDir, e.Name()))
		if err != nil {
			return nil, err
		}
		b := make([]byte, 4096)
		n, _ := f.ReadAt(b, 0)
		_ = f.Close()
		if v, err := note.NewVerifier(string(bytes.TrimSpace(b[:n]))); err == nil && v.Name() == name {
			known[name] = v
		}
	}
	return known, err
}
