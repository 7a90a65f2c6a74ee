package audit

import (
	"bytes"
	"context"
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
	// Range limits what is checked of the streams to some of their records. Roots, seals
	// and checkpoints are of whole streams, and then not compared.
	Range Range
	// Progress is told the number of records read so far, now and then; nil: nobody.
	Progress func(records uint64)
}

// Range is a part of a log; both ends belong to it. The zero Range is all of it.
type Range struct {
	FromSeq, ToSeq *uint64   // sequence numbers, which count in each stream; nil: from the start, to the end
	From, To       time.Time // zero: likewise
}

func (r Range) all() bool {
	return r.FromSeq == nil && r.ToSeq == nil && r.From.IsZero() && r.To.IsZero()
}

// within is chain.within for r; nil for all. Times of records are all of one form, in
// which order is that of the letters.
func (r Range) within() func(parsed) bool {
	if r.all() {
		return nil
	}
	from, to := "", ""
	if !r.From.IsZero() {
		from = stamp(r.From)
	}
	if !r.To.IsZero() {
		to = stamp(r.To)
	}
	return func(p parsed) bool {
		return (r.FromSeq == nil || p.seq >= *r.FromSeq) && (r.ToSeq == nil || p.seq <= *r.ToSeq) &&
			string(p.time) >= from && (to == "" || string(p.time) <= to)
	}
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
	Anchored    bool      `json:"anchored"`          // an anchor was checked
	Partial     bool      `json:"partial,omitempty"` // only a range was checked: nothing is said of the rest
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
	v.report = Report{Verdict: VerdictComplete, OpenStreams: []string{}, Findings: []Finding{}, Partial: !o.Range.all()}
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
