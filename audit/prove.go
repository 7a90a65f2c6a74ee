package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const proofSchema = "warder.audit.proof/v1"

// Proof shows that one record is in a stream that a checkpoint signs for, to somebody
// who has the public key and nothing else of the log.
type Proof struct {
	Schema     string           `json:"schema"`
	Record     string           `json:"record"`     // the line, without its newline
	Checkpoint string           `json:"checkpoint"` // signed note
	Path       tlog.RecordProof `json:"path"`       // RFC 6962 audit path
}

// Prove returns the proof of the record with that id, by its stream's checkpoint.
func Prove(ctx context.Context, dir, id string) (Proof, error) {
	p, err := prove(ctx, dir, id)
	if err != nil {
		return Proof{}, fmt.Errorf("audit: prove %s: %w", Clean(id, capWord), err)
	}
	return p, nil
}

func prove(ctx context.Context, dir, id string) (Proof, error) {
	var found *Record
	for r, err := range Read(ctx, dir, Filter{}) {
		if err == nil && r.ID == id {
			found = r
			break
		}
		if ctx.Err() != nil {
			return Proof{}, ctx.Err()
		}
	}
	if found == nil {
		return Proof{}, errors.New("there is no such record")
	}
	stream := filepath.Join(dir, streamsDir, filepath.Base(found.Stream))
	signed, err := os.ReadFile(filepath.Join(stream, checkpointFile))
	if err != nil {
		return Proof{}, err
	}
	text, _, _ := strings.Cut(string(signed), "\n\n")
	cp, err := parseCheckpoint(text + "\n")
	if err != nil {
		return Proof{}, err
	}
	if found.Seq >= cp.size {
		return Proof{}, fmt.Errorf("no checkpoint covers it yet: the latest is over %d records", cp.size)
	}
	hashes, err := storedHashes(stream, found.Stream, cp.size)
	if err != nil {
		return Proof{}, err
	}
	path, err := tlog.ProveRecord(int64(cp.size), int64(found.Seq), hashes)
	if err != nil {
		return Proof{}, err
	}
	return Proof{Schema: proofSchema, Record: string(found.Line()), Checkpoint: string(signed), Path: path}, nil
}

// hashList is the hashes of a tree in tlog's order, in memory: 64 bytes a record.
type hashList []tlog.Hash

// ReadHashes implements tlog.HashReader.
func (l hashList) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, 0, len(indexes))
	for _, i := range indexes {
		if i < 0 || i >= int64(len(l)) {
			return nil, fmt.Errorf("hash %d is not stored", i)
		}
		out = append(out, l[i])
	}
	return out, nil
}

// storedHashes returns the hashes of a stream's first size records.
func storedHashes(dir, name string, size uint64) (hashList, error) {
	var list hashList
	var failed error
	leaves := uint64(0)
	c := newChain(name)
	c.find = func(string, int, uint64, string) {} // a wrong hash makes a wrong root, which is found below
	c.leaf = func(h tlog.Hash) {
		if leaves == size || failed != nil {
			return
		}
		more, err := tlog.StoredHashesForRecordHash(int64(leaves), h, list)
		list, failed = append(list, more...), err
		leaves++
	}
	if _, err := c.walk(dir, true); err != nil {
		return nil, err
	}
	if failed == nil && leaves < size {
		failed = fmt.Errorf("the checkpoint is over %d records, of which %d are here", size, leaves)
	}
	return list, failed
}

// CheckProof checks a proof by the public key (a note verifier key) of the log's
// owner, and returns its record.
func CheckProof(p Proof, public string) (*Record, error) {
	r, err := checkProof(p, public)
	if err != nil {
		return nil, fmt.Errorf("audit: proof: %w", err)
	}
	return r, nil
}

func checkProof(p Proof, public string) (*Record, error) {
	if p.Schema != proofSchema {
		return nil, fmt.Errorf("schema is not %s", proofSchema)
	}
	v, err := note.NewVerifier(strings.TrimSpace(public))
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	n, err := note.Open([]byte(p.Checkpoint), note.VerifierList(v))
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	cp, err := parseCheckpoint(n.Text)
	if err != nil {
		return nil, err
	}
	line := []byte(p.Record)
	parts, why := parseLine(line)
	if why != "" {
		return nil, fmt.Errorf("record: %s", why)
	}
	r := new(Record)
	if why := decode(line, parts, r); why != "" {
		return nil, fmt.Errorf("record: %s", why)
	}
	r.line = line
	root, err := tlog.ParseHash(cp.root)
	if err != nil {
		return nil, err
	}
	if r.Stream != cp.stream {
		return nil, errors.New("the checkpoint is another stream's")
	}
	err = tlog.CheckRecord(p.Path, int64(cp.size), root, int64(r.Seq), tlog.RecordHash(line))
	if err != nil {
		return nil, err
	}
	return r, nil
}

// ParseProof reads a proof's JSON.
func ParseProof(b []byte) (Proof, error) {
	var p Proof
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("audit: proof: not JSON: %w", err)
	}
	return p, nil
}
