package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"warder/internal/identity"
)

// Values of Options.Durable.
const (
	DurableAll          = "all"          // what callers wait for is on the disk
	DurableCredentialed = "credentialed" // callers use AppendRelaxed for requests without a credential
)

// Options configures Open.
type Options struct {
	Dir         string           // audit directory; made with mode 0700 if it does not exist
	Durable     string           // DurableAll (also when empty) or DurableCredentialed
	Clock       func() time.Time // nil: time.Now
	SegmentSize int64            // bytes preallocated per segment; 0: DefaultSegmentSize, growing
	FS          FS               // nil: the operating system's
	Warn        func(string)     // operator messages (recovery, low space), from any goroutine; nil: dropped

	grows bool // each segment is twice as large as the one before, up to 64 MiB
}

func (o *Options) warn(format string, args ...any) {
	if o.Warn != nil {
		o.Warn(fmt.Sprintf(format, args...))
	}
}

// ErrClosed is the error of futures of records that came after Close.
var ErrClosed = errors.New("audit: the log is closed")

// maxQueue is how many bytes of records may wait for the disk. Append blocks beyond.
const maxQueue = 8 << 20

// calmQueue is how many entries wait for the committer while the disk is at work, or
// while nobody waits for them, before it makes them into lines: waking it for each would
// cost more than the lines.
const calmQueue = 16

// lingers is the longest time that an entry waits for the next that somebody waits for.
const lingers = 2 * time.Millisecond

// entryBytes is what an entry takes beside its body, about, in bytes.
const entryBytes = 512

// Log is one open stream of an audit directory. Its methods may be called from any
// goroutine.
type Log struct {
	o    Options
	sem  *semaphore.Weighted
	wake chan struct{} // capacity 1: there is something in queue
	done chan struct{} // closed when the committer has ended
	c    *committer    // its fields belong to its goroutine

	inputs *inputStore

	told atomic.Bool // somebody is about to take the queue

	mu     sync.Mutex
	queue  []*entry
	since  time.Time   // when the first of queue came
	linger *time.Timer // has the queue taken when nobody waits for what is in it
	armed  bool        // linger runs
	calm   bool        // the disk is at work: the queue is taken afterwards
	wanted bool        // somebody waits for an entry of queue
	closed bool
	fault  error // why the last batch failed; nil when none did since the last success
}

// entry is one record, or one task of the committer, on its way.
type entry struct {
	Future
	rec     *Record
	id      []byte // in room
	body    []byte // in room, after id
	room    *[]byte
	at      time.Time
	relaxed bool // answered for once the kernel has it
	weight  int64
	task    func() error // instead of a record
}

// staged gives the body's room back: its line is in the log.
func (e *entry) staged() {
	if e.room != nil && cap(*e.room) <= maxPooledBody {
		bodies.Put(e.room)
	}
	e.id, e.body, e.room = nil, nil, nil
}

// fill encodes the entry's record, and gives it an id unless it has one.
func (e *entry) fill() error {
	if e.rec == nil {
		return errNoEvent
	}
	e.room = bodies.Get().(*[]byte)
	room := (*e.room)[:0]
	switch {
	case e.rec.ID == "":
		room = identity.AppendID(room)
	case !isID(e.rec.ID):
		return errors.New("id is not 1 to 64 letters, digits, '-', '_' or '.'")
	default:
		room = append(room, e.rec.ID...)
	}
	n := len(room)
	room, err := encodeInto(room, e.rec)
	if err != nil {
		return err
	}
	*e.room, e.id, e.body = room, room[:n], room[n:]
	return nil
}

// Open starts a new stream in o.Dir. Streams whose writer is gone are closed first:
// their open reservations get an interrupted line, and they are sealed; one that is
// damaged is left as it is and named to o.Warn. ctx bounds the waiting for locks.
func Open(ctx context.Context, o Options) (*Log, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("audit: open: %w", err)
	}
	s, dead, err := enter(ctx, &o)
	if err != nil {
		return nil, fmt.Errorf("audit: open %s: %w", o.Dir, err)
	}
	for _, d := range dead {
		err := recoverStream(ctx, d)
		if err = errors.Join(err, d.close()); err != nil {
			o.warn("stream %s: not recovered: %v", d.name, err)
		}
	}
	l := &Log{
		o: o, sem: semaphore.NewWeighted(maxQueue),
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	l.c = newCommitter(l, s)
	l.linger = time.AfterFunc(time.Hour, l.lingered)
	l.linger.Stop()
	l.inputs = newInputStore(&l.o, s.name, l.tellDropped)
	go l.c.run()
	return l, nil
}

func (o *Options) complete() error {
	switch o.Durable {
	case "":
		o.Durable = DurableAll
	case DurableAll, DurableCredentialed:
	default:
		return fmt.Errorf("durable: %q; hint: all or credentialed", o.Durable)
	}
	if o.Dir == "" {
		return errors.New("no directory is given")
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.FS == nil {
		if !canWrite {
			return errors.New("streams are written on Linux only")
		}
		o.FS = osFS{}
	}
	if o.SegmentSize == 0 {
		o.SegmentSize, o.grows = DefaultSegmentSize, true
	}
	o.SegmentSize = max(o.SegmentSize, leastSegment)
	dir, err := filepath.Abs(o.Dir)
	o.Dir = dir
	return err
}

// enter makes the directory if need be, registers a new stream, and takes the dead.
func enter(ctx context.Context, o *Options) (*stream, []*stream, error) {
	for _, name := range []string{streamsDir, tempDir} {
		if err := o.FS.MkdirAll(filepath.Join(o.Dir, name), 0o700); err != nil {
			return nil, nil, err
		}
	}
	st, err := o.FS.Lstat(o.Dir)
	if err != nil {
		return nil, nil, err
	}
	if st.Mode()&fs.ModeSymlink == 0 && st.Mode().Perm()&0o022 != 0 {
		return nil, nil, fmt.Errorf("others may write in it; hint: chmod go-w %s", o.Dir)
	}
	r, err := lockRegistry(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	s, dead, err := register(o, r)
	if err = errors.Join(err, r.close()); err != nil {
		for _, d := range append(dead, s) {
			if d != nil {
				_ = d.close() // the first error is the one to tell
			}
		}
		return nil, nil, err
	}
	return s, dead, nil
}

func register(o *Options, r *registry) (*stream, []*stream, error) {
	if err := r.useKey(); err != nil {
		return nil, nil, err
	}
	if err := dropStrays(o, r); err != nil {
		return nil, nil, err
	}
	dead := claimDead(o, r)
	s, err := makeStream(o, identity.NewID(), r.key)
	if err != nil {
		return nil, dead, err
	}
	live := append(append([]string{}, r.live()...), s.name)
	s.ref, err = r.append(regLine{Event: regOpen, Stream: s.name, Live: live})
	return s, dead, err
}

// Append queues r, in the order of the calls, and returns at once unless maxQueue bytes
// wait already. It goes to the disk when its future or a later one is waited for, within
// 2 ms in any case. The future resolves to nil when r is durable, else to the reason; a
// record whose future failed may become durable all the same, and one that closes a
// reservation or a run is written as soon as the disk allows. r must not be changed
// afterwards.
func (l *Log) Append(ctx context.Context, r *Record) *Future { return l.add(ctx, &entry{rec: r}) }

// AppendRelaxed is Append with a future that resolves once the kernel has the record:
// it then outlives this process, but not a loss of power within the next moments.
// Under DurableAll it is Append.
func (l *Log) AppendRelaxed(ctx context.Context, r *Record) *Future {
	waits := l.o.Durable == DurableCredentialed
	return l.add(ctx, &entry{rec: r, relaxed: waits, Future: Future{urgent: waits}})
}

func (l *Log) add(ctx context.Context, e *entry) *Future {
	if err := l.enqueue(ctx, e); err != nil {
		e.answer(fmt.Errorf("audit: append: %w", err))
	}
	return &e.Future
}

func (l *Log) enqueue(ctx context.Context, e *entry) error {
	if err := e.fill(); err != nil {
		return err
	}
	e.weight = min(int64(len(*e.room))+entryBytes, maxQueue)
	if !l.sem.TryAcquire(e.weight) { // with room, a context that has ended loses no record
		if err := l.sem.Acquire(ctx, e.weight); err != nil {
			return err
		}
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.sem.Release(e.weight)
		return ErrClosed
	}
	e.at, e.log = l.o.Clock(), l
	l.queue = append(l.queue, e)
	due := len(l.queue) == calmQueue && !l.told.Load()
	switch {
	case due:
		l.told.Store(true)
	case len(l.queue) == 1:
		l.since = time.Now()
		if !l.armed {
			l.armed = true
			l.linger.Reset(lingers)
		}
	}
	l.mu.Unlock()
	if due {
		l.signal()
	}
	return nil
}

// press sees to it that an entry somebody waits for is written without delay: by the
// caller itself if nobody else is at it.
func (l *Log) press(f *Future) {
	if l.told.Load() { // the entry is in the queue that is about to be taken
		return
	}
	l.mu.Lock()
	due := len(l.queue) > 0 && !l.told.Load() && (!l.calm || f.urgent || len(l.queue) >= calmQueue)
	if due {
		l.told.Store(true)
	}
	l.wanted = len(l.queue) > 0
	l.mu.Unlock()
	if due && !l.c.lead(f.urgent) {
		l.signal()
	}
}

// lingered has the queue taken, for which nobody has waited in time.
func (l *Log) lingered() {
	l.mu.Lock()
	left := lingers - time.Since(l.since)
	l.armed = len(l.queue) > 0 && left > 0
	due := len(l.queue) > 0 && left <= 0
	if l.armed {
		l.linger.Reset(left) // those that it was set for went with another
	}
	if due {
		l.told.Store(true)
	}
	l.mu.Unlock()
	if due {
		l.signal()
	}
}

func (l *Log) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take empties the queue; room is for the next one.
func (l *Log) take(room []*entry) []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queue
	l.queue = room[:0]
	l.told.Store(false)
	l.wanted = false
	return q
}

// settle says whether the disk is at work, so that nobody need be told of a few entries;
// if it is not, ready says that somebody waits already.
func (l *Log) settle(calm bool) (ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calm = calm
	return !calm && l.wanted && len(l.queue) > 0
}

func isID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.' {
			return false
		}
	}
	return true
}

// Durable is Options.Durable, never empty.
func (l *Log) Durable() string { return l.o.Durable }

// Healthy returns nil, or why what must be durable is refused now.
func (l *Log) Healthy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == nil && l.closed {
		return ErrClosed
	}
	return l.fault
}

func (l *Log) setFault(err error) {
	l.mu.Lock()
	l.fault = err
	l.mu.Unlock()
}

// Checkpoint makes what was appended so far durable and signs for it.
func (l *Log) Checkpoint(ctx context.Context) error {
	if err := l.ask(ctx, false, l.c.checkpoint); err != nil {
		return fmt.Errorf("audit: checkpoint: %w", err)
	}
	return nil
}

// Close writes what is queued, closes reservations and runs that are open as
// interrupted, seals the stream and gives its lock back. A stream that could not be
// sealed, because of the disk or because ctx ended first, is left to the next Open.
// Further calls do nothing.
func (l *Log) Close(ctx context.Context) error {
	l.inputs.close(ctx)
	err := l.ask(ctx, true, func() error { return l.c.close(ctx) })
	if err != nil && !errors.Is(err, ErrClosed) {
		return fmt.Errorf("audit: close: %w", err)
	}
	return nil
}

// ask has the committer do a task after what is queued, and waits for it.
func (l *Log) ask(ctx context.Context, last bool, task func() error) error {
	e := &entry{task: task}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return ErrClosed
	}
	l.closed = last
	l.queue = append(l.queue, e)
	l.told.Store(true)
	l.mu.Unlock()
	l.signal()
	if err := e.Wait(ctx); err != nil || !last {
		return err
	}
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
