package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"warder/audit"
)

// disk is the host's file system with a fault in one kind of call, and what of the
// reservations is safe on it.
type disk struct {
	audit.FS

	mu      sync.Mutex
	op      string // the kind of call that fails
	err     error
	every   int // each so-maniest call fails; 0: none
	calls   int
	hits    int
	gate    chan struct{}   // writes wait for it, once a reservation has been written
	written map[string]bool // paths whose reservation the kernel has
	synced  map[string]bool // paths whose reservation fdatasync has confirmed
}

var errShort = errors.New("only half was written")

func (d *disk) set(op string, err error, every int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.op, d.err, d.every, d.calls = op, err, every, 0
}

// hold has the kernel take nothing after the next reservation until release.
func (d *disk) hold() (release func()) {
	gate := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gate = gate
	return sync.OnceFunc(func() { close(gate) })
}

func (d *disk) held() {
	d.mu.Lock()
	gate, any := d.gate, len(d.written) > 0
	d.mu.Unlock()
	if gate != nil && any {
		<-gate
	}
}

func (d *disk) faults() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hits
}

func (d *disk) fault(op string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.every == 0 || op != d.op {
		return nil
	}
	if d.calls++; d.calls%d.every != 0 {
		return nil
	}
	d.hits++
	return d.err
}

func (d *disk) OpenFile(name string, flag int, perm fs.FileMode) (audit.Handle, error) {
	if err := d.fault("open"); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	h, err := d.FS.OpenFile(name, flag, perm)
	return &diskFile{Handle: h, d: d, segment: strings.HasSuffix(name, ".jsonl")}, err
}

func (d *disk) OpenDir(name string) (audit.Handle, error) {
	h, err := d.FS.OpenDir(name)
	return &diskFile{Handle: h, d: d}, err
}

func (d *disk) Rename(from, to string) error {
	if err := d.fault("rename"); err != nil {
		return err
	}
	return d.FS.Rename(from, to)
}

func (d *disk) Identify(name string) (audit.FileID, error) {
	if err := d.fault("statx"); err != nil {
		return audit.FileID{}, err
	}
	return d.FS.Identify(name)
}

// diskFile notes which reservations were written to a segment since its last fdatasync.
type diskFile struct {
	audit.Handle
	d       *disk
	segment bool
	pending []string
}

var reservedPath = regexp.MustCompile(`"stage":"reserved".*?"path":"(/[^"]*)"`)

func (f *diskFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.d.fault("write"); errors.Is(err, errShort) {
		return f.Handle.WriteAt(b[:len(b)/2], off)
	} else if err != nil {
		return 0, err
	}
	if f.segment {
		f.d.held()
	}
	n, err := f.Handle.WriteAt(b, off)
	if err == nil && f.segment {
		f.d.mu.Lock()
		for _, m := range reservedPath.FindAllSubmatch(b, -1) {
			f.d.written[string(m[1])] = true
			f.pending = append(f.pending, string(m[1]))
		}
		f.d.mu.Unlock()
	}
	return n, err
}

func (f *diskFile) Datasync() error {
	if err := f.d.fault("fdatasync"); err != nil {
		return err
	}
	err := f.Handle.Datasync()
	if err == nil && f.segment {
		f.d.mu.Lock()
		for _, p := range f.pending {
			f.d.synced[p] = true
		}
		f.pending = nil
		f.d.mu.Unlock()
	}
	return err
}

func (f *diskFile) Truncate(size int64) error {
	if err := f.d.fault("truncate"); err != nil {
		return err
	}
	return f.Handle.Truncate(size)
}

func (f *diskFile) Allocate(size int64) error {
	if err := f.d.fault("allocate"); err != nil {
		return err
	}
	return f.Handle.Allocate(size)
}

// diskRig is a proxy whose log stands on a disk that can fail, and an upstream that asks
// the disk, when a request arrives, whether it knows of it.
type diskRig struct {
	*env
	disk *disk
	log  *audit.Log
	dir  string

	mu     sync.Mutex
	seen   map[string]bool // at the upstream
	served map[string]int  // status by path
}

func newDiskRig(t *testing.T, durable string) *diskRig {
	d := &diskRig{
		disk: &disk{FS: audit.HostFS, written: map[string]bool{}, synced: map[string]bool{}},
		dir:  filepath.Join(t.TempDir(), "audit"), seen: map[string]bool{}, served: map[string]int{},
	}
	log, err := audit.Open(t.Context(), audit.Options{Dir: d.dir, Durable: durable, SegmentSize: 32 << 10, FS: d.disk})
	if err != nil {
		t.Fatal(err)
	}
	d.log = log
	d.env = newEnv(t, func(_ http.ResponseWriter, r *http.Request) {
		safe := d.disk.synced
		if durable == audit.DurableCredentialed && r.Header.Get("Authorization") == "" {
			safe = d.disk.written
		}
		d.disk.mu.Lock()
		ok := safe[r.URL.Path]
		d.disk.mu.Unlock()
		if !ok {
			t.Errorf("%s came to the upstream, and no record of it was on the disk", r.URL.Path)
		}
		d.mu.Lock()
		d.seen[r.URL.Path] = true
		d.mu.Unlock()
	}, func(e *env, o *Options, _ *RunOptions) {
		e.tape = &tape{Log: log, more: make(chan struct{})}
		o.Audit = e.tape
	})
	return d
}

// traffic sends n requests on each of some connections at once, and returns how many
// were answered with each status.
func (d *diskRig) traffic(t *testing.T, phase string, n int) map[int]int {
	t.Helper()
	var wg sync.WaitGroup
	for w := range 4 {
		host := []string{"api.allowed.test", "plain.allowed.test"}[w%2]
		c := d.tls(host)
		wg.Go(func() {
			br := bufio.NewReader(c)
			for i := range n {
				path := fmt.Sprintf("/%s/%d/%d", phase, w, i)
				send(t, c, get(path, host))
				r := readReply(t, br, "GET")
				if r.StatusCode != 200 && r.reason() != "audit-unavailable" {
					t.Errorf("%s: %d %s", path, r.StatusCode, r.body)
				}
				d.mu.Lock()
				d.served[path] = r.StatusCode
				d.mu.Unlock()
			}
		})
	}
	wg.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	got := map[int]int{}
	for path, status := range d.served {
		if strings.HasPrefix(path, "/"+phase+"/") {
			got[status]++
		}
		if d.seen[path] != (status == 200) {
			t.Errorf("%s was answered %d, and at the upstream: %v", path, status, d.seen[path])
		}
	}
	return got
}

// settle closes everything and says what the log holds of the requests.
func (d *diskRig) settle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := d.p.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := d.log.Close(ctx); err != nil {
		t.Errorf("close log: %v", err)
	}
	rep, err := audit.Verify(ctx, d.dir, audit.VerifyOptions{})
	if err != nil || rep.Verdict != audit.VerdictComplete || len(rep.OpenStreams) > 0 {
		t.Errorf("verify: %v, %+v", err, rep)
	}
	stages := map[string]string{}
	for r, err := range audit.Read(ctx, d.dir, audit.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Request != nil {
			stages[r.Request.Path] += r.Stage + " "
		}
	}
	for path := range d.seen {
		if s := stages[path]; s != "reserved completed " {
			t.Errorf("%s was forwarded, and the log says %q", path, s)
		}
	}
}

// Each call of the log's writer fails in turn, now and then and then always, under a
// proxy at work: what comes to the upstream has its record on the disk before it, what
// has none is refused with 503, and all is well again without a restart (F159, I6, I10).
func TestNoCallOfTheDiskLetsARequestOutUnrecorded_I6_F159(t *testing.T) {
	for _, durable := range []string{audit.DurableAll, audit.DurableCredentialed} {
		for _, c := range []struct {
			op     string
			err    error
			refuse bool // failing always, it stops requests
		}{
			{"write", syscall.EIO, true},
			{"write", syscall.ENOSPC, true},
			{"write", errShort, true},
			{"fdatasync", syscall.EIO, true},
			{"open", syscall.EMFILE, false}, // only at a rotation, as the next three
			{"allocate", syscall.ENOSPC, false},
			{"truncate", syscall.EIO, false},
			{"rename", syscall.EROFS, false}, // of a checkpoint
			{"statx", syscall.EIO, true},
		} {
			t.Run(fmt.Sprintf("%s %s %v", durable, c.op, c.err), func(t *testing.T) {
				d := newDiskRig(t, durable)
				d.disk.set(c.op, c.err, 0)
				if got := d.traffic(t, "before", 8); got[200] != 32 {
					t.Fatalf("without a fault: %v", got)
				}
				d.disk.set(c.op, c.err, 3)
				d.traffic(t, "now-and-then", 20)
				d.disk.set(c.op, c.err, 1)
				if got := d.traffic(t, "always", 20); c.refuse && got[503] == 0 {
					t.Errorf("with the fault always there: %v", got)
				}
				if d.disk.faults() == 0 {
					t.Error("the fault never came about")
				}
				d.disk.set(c.op, c.err, 0)
				if got := d.traffic(t, "after", 8); got[200] != 32 {
					t.Errorf("after the fault: %v", got)
				}
				d.settle(t)
			})
		}
	}
}
