package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// MaxLine is the longest line the log holds, in bytes, newline included.
const MaxLine = 1 << 20

// The encoding of a record whose writer's keys are empty starts and ends like this;
// what lies between is kept as it is and framed by appendLine.
const (
	emptyHead = `{"schema":"","id":"","time":"","seq":0,"stream":"",`
	emptyTail = `,"prev":"","hash":""}`
	hashKey   = `,"hash":"`
	hashHex   = 64
)

// hexHash is a SHA-256 in lower-case hexadecimal digits.
type hexHash [hashHex]byte

// zeroHash is the prev of a stream's first line.
const zeroHash = "0000000000000000000000000000000000000000000000000000000000000000"

// firstPrev is zeroHash.
var firstPrev = hexHash([]byte(zeroHash))

var (
	errNoEvent = errors.New("record has no event")
	errTooLong = errors.New("record is longer than a line may be")
	errLayout  = errors.New("record's keys are not where the format has them")
)

type scratch struct {
	record
	buf bytes.Buffer
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// bodies are buffers for the ids and bodies of entries, from Append until they are in the log.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledBody keeps large bodies out of the pool, in bytes.
const maxPooledBody = 16 << 10

// encodeBody returns the keys of r from "event" up to "prev", cleaned and capped.
// It does not change r.
func encodeBody(r *Record) ([]byte, error) { return encodeInto(nil, r) }

// encodeInto is encodeBody after what dst holds.
func encodeInto(dst []byte, r *Record) ([]byte, error) {
	if r == nil || r.Event == "" {
		return nil, errNoEvent
	}
	if body, ok := appendBody(dst, r); ok {
		return body, nil
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	return s.encode(dst, r)
}

// encode is the general encoder: for every record, and for what does not fit in a line.
func (s *scratch) encode(dst []byte, r *Record) ([]byte, error) {
	for shrink := 1; ; shrink *= 4 {
		s.fill(r, caps{shrink})
		s.buf.Reset()
		enc := json.NewEncoder(&s.buf)
		enc.SetEscapeHTML(false) // U+2028 and U+2029 never get here
		if err := enc.Encode(&s.Record); err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		line := bytes.TrimSuffix(s.buf.Bytes(), []byte("\n"))
		if len(line) > MaxLine-1024 {
			if shrink > 1<<20 {
				return nil, errTooLong
			}
			continue
		}
		body, head := bytes.CutPrefix(line, []byte(emptyHead))
		body, tail := bytes.CutSuffix(body, []byte(emptyTail))
		if !head || !tail {
			return nil, errLayout
		}
		return append(dst, body...), nil
	}
}

// frame is what the writer adds to a record's body.
type frame struct {
	id     []byte // needs no escaping
	at     time.Time
	stream string // needs no escaping
	seq    uint64
}

// appendLine appends the whole line, with its newline, after the one whose hash prev is,
// and makes prev the line's own.
func appendLine(dst []byte, f frame, prev *hexHash, body []byte) []byte {
	start := len(dst)
	dst = append(dst, `{"schema":"`+Schema+`","id":"`...)
	dst = append(dst, f.id...)
	dst = append(dst, `","time":"`...)
	dst = appendStamp(dst, f.at)
	dst = append(dst, `","seq":`...)
	dst = strconv.AppendUint(dst, f.seq, 10)
	dst = append(dst, `,"stream":"`...)
	dst = append(dst, f.stream...)
	dst = append(dst, `",`...)
	dst = append(dst, body...)
	dst = append(dst, `,"prev":"`...)
	dst = append(dst, prev[:]...)
	dst = append(dst, '"')
	return seal(dst, start, prev)
}

// seal appends the hash key over dst[start:], the closing brace and the newline, and
// puts the hash in hash.
func seal(dst []byte, start int, hash *hexHash) []byte {
	sum := sha256.Sum256(dst[start:])
	hex.Encode(hash[:], sum[:])
	dst = append(dst, hashKey...)
	dst = append(dst, hash[:]...)
	return append(dst, "\"}\n"...)
}
