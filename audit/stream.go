package audit

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Sizes of segments, in bytes.
const (
	DefaultSegmentSize = 8 << 20   // of a stream's first segment; Options.SegmentSize replaces it
	mostDoublings      = 3         // of the later ones, so that a busy log seldom pauses for the next
	leastSegment       = 4 << 10   // the least that Options.SegmentSize may be
	nearlyFull         = 256 << 10 // the least that is taken on a disk nearly full
	reserve            = 64 << 10  // the last part of a segment, at most a quarter, kept for closing lines
)

// lookEvery is how long relaxed records may go to a file that somebody has removed, before
// it is put back.
const lookEvery = 50 * time.Millisecond

const (
	segmentExt     = ".jsonl"
	checkpointFile = "checkpoint"
	tempDir        = "tmp" // files on their way to a stream, "<stream>.<name>"; of no meaning
)

// state is a stream's end: what the next line and a checkpoint are made from.
type state struct {
	seq  uint64  // of the next line
	prev hexHash // of the last line
	tree tree
}

// stream is the files of one stream, in the hands of its only writer.
type stream struct {
	o    *Options
	name string
	dir  string
	lock Handle
	ref  regRef // the registry's line that this writer wrote last
	key  key
	state

	seg      Handle
	segNo    int
	segID    FileID
	segSize  int64     // bytes that may be written without asking for space
	durable  int64     // end of what fdatasync has confirmed
	keeps    bool      // whether what is written and not durable is kept in unsynced; else flying counts it
	flying   int64     // bytes after durable that the kernel has and nobody was told of
	unsynced []byte    // whole lines after durable that the kernel has, and that callers may have been told of
	reach    int64     // end of what any write may have touched
	waited   int       // short writes that somebody waited for
	blank    int64     // end of what was blanked ahead in this segment
	ahead    int64     // bytes that were blanked at once, last
	looked   time.Time // when segID was last compared with what the name leads to
	restored bool      // heal has put the segment back under its name
	dirty    bool      // bytes after end may be left from a failed write, or what is before it be lost
}

func (s *stream) path(n int) string { return filepath.Join(s.dir, strconv.Itoa(n)+segmentExt) }

// temp is where a file of the stream is made ready.
func (s *stream) temp(name string) string {
	return filepath.Join(s.o.Dir, tempDir, s.name+"."+name)
}

// end is where the next line goes.
func (s *stream) end() int64 { return s.durable + s.flying + int64(len(s.unsynced)) }

// room says whether n more bytes fit in what is allocated.
func (s *stream) room(n int, closing bool) bool {
	most := s.segSize
	if !closing {
		most -= min(reserve, s.segSize/4)
	}
	return s.end()+int64(n) <= most
}

// makeStream makes and locks the directory of a new stream; the caller holds the
// registry's lock, so that nobody takes the stream for a dead one.
func makeStream(o *Options, name string, k key) (*stream, error) {
	s := &stream{o: o, name: name, dir: filepath.Join(o.Dir, streamsDir, name), key: k, state: state{prev: firstPrev}}
	if err := o.FS.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.take(); err != nil {
		return nil, err
	}
	err := s.newSegment()
	if err == nil {
		err = syncDir(o.FS, filepath.Dir(s.dir))
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// take locks the stream's directory.
func (s *stream) take() error {
	d, err := s.o.FS.OpenDir(s.dir)
	if err != nil {
		return err
	}
	if err := d.Lock(); err != nil {
		return errors.Join(err, d.Close())
	}
	s.lock = d
	return nil
}

// newSegment makes the next segment and goes on in it.
func (s *stream) newSegment() error {
	name := s.path(s.segNo + 1)
	size := s.o.SegmentSize
	if s.o.grows {
		size <<= min(s.segNo, mostDoublings)
	}
	f, size, err := s.allocated(name, size)
	if err != nil {
		return err
	}
	id, err := idOf(f)
	if err == nil {
		err = syncDir(s.o.FS, s.dir)
	}
	if err == nil && s.seg != nil {
		err = s.trim()
	}
	if err != nil {
		return errors.Join(err, f.Close(), s.o.FS.Remove(name))
	}
	if s.seg != nil {
		_ = s.seg.Close() // durable already, and nothing more to write
	}
	s.seg, s.segID, s.segSize = f, id, size
	s.segNo++
	s.durable, s.reach, s.unsynced, s.blank = 0, 0, nil, 0
	return nil
}

// allocated opens an empty segment with room for lines; less when the disk is nearly full.
func (s *stream) allocated(name string, size int64) (Handle, int64, error) {
	f, err := s.o.FS.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) { // left by a rotation that failed; it holds no line
		if err = s.o.FS.Remove(name); err == nil {
			f, err = s.o.FS.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	for {
		err = f.Allocate(size)
		if !errors.Is(err, syscall.ENOSPC) || size/2 < nearlyFull {
			break
		}
		size /= 2
		if err = f.Truncate(0); err != nil {
			break
		}
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close(), s.o.FS.Remove(name))
	}
	return f, size, nil
}

// trim takes the unused end off the segment; it is sealed then.
func (s *stream) trim() error {
	end := s.end()
	if err := s.seg.Truncate(end); err != nil {
		return err
	}
	s.segSize = end
	return s.seg.Datasync()
}

// write hands whole lines to the kernel, after what is there. Where nobody is to be told
// that they are on the disk, the file's place is looked at now and then only.
func (s *stream) write(b []byte, relaxed bool) error {
	s.reach = max(s.reach, s.end()+int64(len(b)))
	s.dirty = true
	if err := writeFull(s.seg, b, s.end()); err != nil {
		return err
	}
	if now := time.Now(); !relaxed || now.Sub(s.looked) > lookEvery {
		if err := s.inPlace(); err != nil {
			return err
		}
		s.looked = now
	}
	s.dirty = false
	return nil
}

// sync makes everything written durable. After an error nothing may be taken for
// written: the kernel may have dropped pages and will not say so again.
func (s *stream) sync() error {
	s.dirty = true
	if err := s.seg.Datasync(); err != nil {
		return err
	}
	s.dirty = false
	return nil
}

// wrote takes in lines that write has handed to the kernel.
func (s *stream) wrote(b []byte) {
	if s.keeps {
		s.unsynced = append(s.unsynced, b...)
	} else {
		s.flying += int64(len(b))
	}
}

// synced takes the first n bytes after durable for durable.
func (s *stream) synced(n int64) {
	s.durable += n
	if s.keeps {
		s.unsynced = append(s.unsynced[:0], s.unsynced[n:]...)
	} else {
		s.flying -= n
	}
}

// lost forgets all but the first n bytes after durable, which are whole lines; heal makes
// the file so. It returns the hash of the last of them, if there is one.
func (s *stream) lost(n int64) (last hexHash) {
	s.flying = 0
	if s.keeps {
		s.unsynced = s.unsynced[:n]
	}
	if n > 0 {
		end := s.unsynced[:n-int64(len("\"}\n"))]
		last = hexHash(end[len(end)-hashHex:])
	}
	return last
}

// settle takes everything written for durable.
func (s *stream) settle() {
	s.durable, s.unsynced = s.end(), s.unsynced[:0]
}

var errReplaced = errors.New("the segment was removed or replaced")

// inPlace checks that the segment's name still leads to the open file.
func (s *stream) inPlace() error {
	id, err := s.o.FS.Identify(s.path(s.segNo))
	if err == nil && id == s.segID {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%s: %w", s.path(s.segNo), errReplaced)
}

// heal writes what callers were told of once more, wipes what failed, and syncs.
func (s *stream) heal() error {
	if err := s.inPlace(); errors.Is(err, errReplaced) {
		return s.restore()
	} else if err != nil {
		return err
	}
	if err := s.sameDir(); err != nil {
		return err
	}
	b := make([]byte, max(s.reach-s.durable, int64(len(s.unsynced))))
	copy(b, s.unsynced)
	if err := writeFull(s.seg, b, s.durable); err != nil {
		return err
	}
	if err := s.sync(); err != nil {
		return err
	}
	s.settle()
	s.reach = s.durable
	return nil
}

// restore puts the open file's lines back under its name.
func (s *stream) restore() error {
	if err := s.sameDir(); err != nil {
		return err
	}
	temp := s.temp(filepath.Base(s.path(s.segNo)))
	if err := s.o.FS.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, size, err := s.allocated(temp, max(s.segSize, s.o.SegmentSize))
	if err != nil {
		return err
	}
	id, err := s.refill(f)
	if err == nil {
		err = s.o.FS.Rename(temp, s.path(s.segNo))
	}
	if err == nil {
		err = syncDir(s.o.FS, s.dir)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	_ = s.seg.Close() // nothing leads to it any more
	s.seg, s.segID, s.segSize = f, id, max(size, s.end())
	s.settle()
	s.reach, s.dirty, s.restored = s.end(), false, true
	return nil
}

// refill copies the durable lines from the open segment, and the others from memory.
func (s *stream) refill(to Handle) (FileID, error) {
	old := io.NewSectionReader(s.seg, 0, s.durable)
	buf := make([]byte, 256<<10)
	for off := int64(0); off < s.durable; {
		n, err := old.Read(buf)
		if n == 0 && err != nil {
			return FileID{}, err
		}
		if err := writeFull(to, buf[:n], off); err != nil {
			return FileID{}, err
		}
		off += int64(n)
	}
	if err := writeFull(to, s.unsynced, s.durable); err != nil {
		return FileID{}, err
	}
	if err := to.Datasync(); err != nil {
		return FileID{}, err
	}
	return idOf(to)
}

// sameDir checks that the stream's name still leads to the locked directory.
func (s *stream) sameDir() error {
	held, err := s.lock.Stat()
	if err != nil {
		return err
	}
	named, err := s.o.FS.Lstat(s.dir)
	if err != nil {
		return err
	}
	if !os.SameFile(held, named) {
		return fmt.Errorf("%s: the stream's directory was replaced", s.dir)
	}
	return nil
}

// checkpoint signs the durable state and puts it in the stream's directory.
func (s *stream) checkpoint() error {
	c := checkpoint{s.name, s.tree.size, base64.StdEncoding.EncodeToString(rootOf(&s.tree)), s.ref.seq, s.ref.hash}
	signed, err := c.sign(s.key)
	if err != nil {
		return err
	}
	temp := s.temp(checkpointFile)
	if err := s.o.FS.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeNew(s.o.FS, temp, string(signed), 0o600); err != nil {
		return err
	}
	return s.o.FS.Rename(temp, filepath.Join(s.dir, checkpointFile))
}

// sealed is the stream's final state. Everything written must be durable.
func (s *stream) sealed() *sealed {
	return &sealed{s.tree.size, s.segNo, base64.StdEncoding.EncodeToString(rootOf(&s.tree)), string(s.prev[:])}
}

// register seals the stream in the registry, then signs a checkpoint that names the
// registry's line, so that cutting that line off is seen.
func (s *stream) register(r *registry, event string, lost *cut) error {
	if err := r.useKey(); err != nil {
		return err
	}
	s.key = r.key
	ref, err := r.append(regLine{
		Event: event, Stream: s.name, Sealed: s.sealed(), Cut: lost, Live: r.without(s.name),
	})
	if err != nil {
		return err
	}
	s.ref = ref
	return s.checkpoint()
}

// close gives files and lock back.
func (s *stream) close() error {
	var err error
	if s.seg != nil {
		err = s.seg.Close()
	}
	return errors.Join(err, s.lock.Close())
}

func rootOf(t *tree) []byte {
	h := t.root()
	return h[:]
}
