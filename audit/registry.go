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
)

// registrySchema is the "schema" of the registry's lines.
const registrySchema = "warder.audit.registry/v1"

// Events of the registry.
const (
	regKey     = "key"     // "vkey" signs from the next line on
	regOpen    = "open"    // "stream" exists and is locked by its writer
	regSeal    = "seal"    // "stream" was closed by its writer
	regRecover = "recover" // "stream" was closed by a later start, after its writer's death
)

const (
	registryFile = "registry.jsonl"
	streamsDir   = "streams"
	maxRegLine   = 1 << 20
)

// regLine is one line of the registry. It is followed by sig and hash: sig is the
// Base64 Ed25519 signature, by the key named in "key", of registrySchema, a newline
// and the line's bytes before `,"sig"`; hash is the SHA-256 of those before `,"hash"`.
type regLine struct {
	Schema string   `json:"schema"`
	Seq    uint64   `json:"seq"`
	Time   string   `json:"time"`
	Event  string   `json:"event"`
	Stream string   `json:"stream,omitempty"`
	Sealed *sealed  `json:"sealed,omitempty"`
	Cut    *cut     `json:"cut,omitempty"`
	VKey   string   `json:"vkey,omitempty"`
	Live   []string `json:"live"` // streams open after this line
	Key    string   `json:"key"`
	Prev   string   `json:"prev"`
	Sig    string   `json:"sig,omitempty"`
	Hash   string   `json:"hash,omitempty"`
}

// sealed is what a closed stream holds, for ever.
type sealed struct {
	Records  uint64 `json:"records"`
	Segments int    `json:"segments"`
	Root     string `json:"root"` // RFC 6962, Base64
	Last     string `json:"last"` // hash of the last record; 64 zeros without any
}

// cut is the torn tail that recovery took off: bytes that no future had answered for.
type cut struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// regRef names a line of the registry.
type regRef struct {
	seq  uint64
	hash string
}

// registry is the registry while its lock is held.
type registry struct {
	o    *Options
	f    Handle
	end  int64 // where the next line starts
	last *regLine
	key  key
}

// lockRegistry waits for the registry's lock, until ctx ends, and reads its last line.
func lockRegistry(ctx context.Context, o *Options) (*registry, error) {
	name := filepath.Join(o.Dir, registryFile)
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		r, err := tryRegistry(o, name)
		if !errors.Is(err, errLocked) {
			return r, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lock %s: %w", name, ctx.Err())
		case <-time.After(wait):
		}
	}
}

func tryRegistry(o *Options, name string) (*registry, error) {
	f, err := o.FS.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	r := &registry{o: o, f: f}
	if err := r.take(name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

func (r *registry) take(name string) error {
	if err := r.f.Lock(); err != nil {
		return err
	}
	open, err := r.f.Stat()
	if err != nil {
		return err
	}
	named, err := r.o.FS.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(open, named) {
		return errLocked // replaced between open and lock: take the new one
	}
	if err != nil {
		return err
	}
	if !open.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", name)
	}
	return r.readLast(open.Size())
}

// readLast finds the last whole line. What follows it was never acknowledged.
func (r *registry) readLast(size int64) error {
	if size == 0 {
		return syncDir(r.o.FS, r.o.Dir)
	}
	tail := make([]byte, min(size, 2*maxRegLine))
	start := size - int64(len(tail))
	if n, err := r.f.ReadAt(tail, start); n < len(tail) {
		return err
	}
	whole := bytes.LastIndexByte(tail, '\n') + 1
	r.end = start + int64(whole)
	if r.end < size {
		r.o.warn("registry: %d bytes of an unfinished line removed", size-r.end)
		if err := r.f.Truncate(r.end); err != nil {
			return err
		}
	}
	if whole == 0 {
		if start > 0 {
			return errors.New("registry.jsonl: damaged at its end; hint: warder audit verify")
		}
		return nil
	}
	line := tail[:whole-1]
	line = line[bytes.LastIndexByte(line, '\n')+1:]
	last, err := parseRegLine(line)
	if err != nil {
		return fmt.Errorf("registry.jsonl: last line: %w; hint: warder audit verify", err)
	}
	r.last = last
	return nil
}

func parseRegLine(line []byte) (*regLine, error) {
	var l regLine
	if err := json.Unmarshal(line, &l); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if l.Schema != registrySchema {
		return nil, fmt.Errorf("schema is not %s", registrySchema)
	}
	if len(l.Hash) != hashHex {
		return nil, errors.New("no hash")
	}
	return &l, nil
}

// live returns the streams that nobody has closed.
func (r *registry) live() []string {
	if r.last == nil {
		return nil
	}
	return r.last.Live
}

// current is the name of the key that signs the next line; "" before the first.
func (r *registry) current() string {
	switch {
	case r.last == nil:
		return ""
	case r.last.Event == regKey:
		name, _, _ := strings.Cut(r.last.VKey, "+")
		return name
	}
	return r.last.Key
}

// append adds one line, durable when it returns nil, and returns its place.
func (r *registry) append(l regLine) (regRef, error) {
	l.Schema, l.Time, l.Key, l.Prev = registrySchema, stamp(r.o.Clock()), r.key.Name(), zeroHash
	if r.last != nil {
		l.Seq, l.Prev = r.last.Seq+1, r.last.Hash
	}
	if l.Live == nil {
		l.Live = []string{}
	}
	line, err := l.encode(r.key)
	if err != nil {
		return regRef{}, err
	}
	if err := r.write(line); err != nil {
		return regRef{}, fmt.Errorf("registry: %w", err)
	}
	r.end += int64(len(line))
	r.last, err = parseRegLine(line)
	if err != nil {
		return regRef{}, err
	}
	return regRef{l.Seq, r.last.Hash}, nil
}

func (r *registry) write(line []byte) error {
	err := writeFull(r.f, line, r.end)
	if err == nil {
		err = r.f.Datasync()
	}
	if err != nil {
		return errors.Join(err, r.f.Truncate(r.end))
	}
	return nil
}

func (l regLine) encode(k key) ([]byte, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	if len(b) > maxRegLine-1024 {
		return nil, errTooLong
	}
	b = b[:len(b)-1]
	sig, err := k.Sign(signedBytes(b))
	if err != nil {
		return nil, err
	}
	b = append(b, `,"sig":"`...)
	b = append(b, base64.StdEncoding.EncodeToString(sig)...)
	b = append(b, '"')
	b = seal(b, 0, new(hexHash))
	return b, nil
}

func signedBytes(line []byte) []byte {
	return append([]byte(registrySchema+"\n"), line...)
}

// close gives the lock back.
func (r *registry) close() error { return r.f.Close() }

// without returns the live streams but for one.
func (r *registry) without(stream string) []string {
	return slices.DeleteFunc(slices.Clone(r.live()), func(s string) bool { return s == stream })
}

// useKey loads the signing key, makes it at first use, and has the registry name it.
func (r *registry) useKey() error {
	if err := r.o.FS.MkdirAll(filepath.Join(r.o.Dir, keysDir), 0o700); err != nil {
		return err
	}
	k, err := loadKey(r.o.FS, r.o.Dir, signingKey)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && r.last != nil && k.Name() == r.current() {
		r.key = k
		return nil
	}
	next, nextErr := loadKey(r.o.FS, r.o.Dir, comingKey)
	if nextErr == nil && next.Name() == r.current() { // named, and the writer died before it was moved
		return r.adopt(next)
	}
	if err == nil {
		r.key = k
		return r.nameKey()
	}
	if nextErr != nil { // missing, or torn by a crash
		if next, err = makeKey(r.o.FS, r.o.Dir); err != nil {
			return err
		}
	}
	r.key = next
	if err := r.nameKey(); err != nil {
		return err
	}
	return r.adopt(next)
}

// adopt moves the coming key, which the registry names, into its place.
func (r *registry) adopt(k key) error {
	keys := filepath.Join(r.o.Dir, keysDir)
	if err := r.o.FS.Rename(filepath.Join(keys, comingKey), filepath.Join(keys, signingKey)); err != nil {
		return err
	}
	r.key = k
	return syncDir(r.o.FS, keys)
}

func (r *registry) nameKey() error {
	if r.current() == r.key.Name() {
		return nil
	}
	if r.last != nil {
		r.o.warn("registry: the signing key of before is gone; %s signs from here on", r.key.Name())
	}
	_, err := r.append(regLine{Event: regKey, VKey: r.key.public, Live: r.live()})
	return err
}

const stampLayout = "2006-01-02T15:04:05.000000000Z"

// stamp is t in UTC by stampLayout, and written without it: every record has one.
func stamp(t time.Time) string { return string(appendStamp(nil, t)) }

// appendStamp appends what stamp returns.
func appendStamp(dst []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(dst, stampLayout)
	}
	hour, minute, second := t.Clock()
	start := len(dst)
	dst = append(dst, stampLayout...)
	b := dst[start:]
	for _, part := range [...]struct{ at, digits, n int }{
		{0, 4, year}, {5, 2, int(month)}, {8, 2, day}, {11, 2, hour}, {14, 2, minute}, {17, 2, second}, {20, 9, t.Nanosecond()},
	} {
		for i, n := part.at+part.digits-1, part.n; i >= part.at; i, n = i-1, n/10 {
			b[i] = byte('0' + n%10)
		}
	}
	return dst
}
