package audit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"warder/internal/identity"
)

// writerDir makes the test binary a writer of its own in that directory.
const writerDir = "WARDER_TEST_AUDIT_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		if err := writeUntilToldOff(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// writeUntilToldOff makes requests and prints the id of each once it is durable, until
// its standard input ends; then it closes the log.
func writeUntilToldOff(dir string) error {
	ctx := context.Background()
	l, err := Open(ctx, Options{Dir: dir, SegmentSize: 64 << 10})
	if err != nil {
		return err
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	fmt.Println("stream", l.c.s.name)
	run := &identity.Run{ID: identity.NewRunID()}
	for i := 0; ; i++ {
		id := identity.NewID()
		r := &Record{ID: id, Event: EventRequest, Stage: StageReserved, Run: run, Request: &Request{ID: id, Host: "api.allowed.test"}}
		if err := l.Append(ctx, r).Wait(ctx); err != nil {
			return err
		}
		fmt.Println(id) // the request goes out
		l.Append(ctx, &Record{Event: EventRequest, Stage: StageCompleted, Run: run, Verdict: "allow", Request: &Request{ID: id, Host: "api.allowed.test"}})
		select {
		case <-told:
			return l.Close(ctx)
		default:
		}
	}
}

// writer is one process that writes.
type writer struct {
	cmd    *exec.Cmd
	in     io.Closer
	out    *bufio.Scanner
	stream string
	sent   []string
}

func startWriter(t *testing.T, dir string) *writer {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{cmd: exec.Command(exe)}
	w.cmd.Env = append(os.Environ(), writerDir+"="+dir)
	w.cmd.Stderr = t.Output()
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewScanner(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

// read takes n more lines of the writer, or all when n is negative.
func (w *writer) read(n int) {
	for ; n != 0 && w.out.Scan(); n-- {
		if name, ok := strings.CutPrefix(w.out.Text(), "stream "); ok {
			w.stream = name
			continue
		}
		w.sent = append(w.sent, w.out.Text())
	}
}

// F165, F166, I6: many processes write at once, some are killed while they do. No request
// that went out is without its record, live streams are not touched by recovery, and
// the log is right before and after it.
func TestF166ManyWritersSomeKilled(t *testing.T) {
	dir := t.TempDir() + "/audit"
	const all, killed, requests = 50, 10, 4
	writers := make([]*writer, all)
	var wg sync.WaitGroup
	for i := range writers {
		w := startWriter(t, dir)
		writers[i] = w
		wg.Go(func() {
			w.read(1 + requests)
			if i < killed {
				if err := w.cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
				w.read(-1)
				_ = w.cmd.Wait() // it was killed
			}
		})
	}
	wg.Wait()
	// A start in the middle: it recovers the dead, beside writers that go on.
	start(t, Options{Dir: dir}).close(t)
	rep := wantVerdict(t, dir, VerdictComplete)
	for i, w := range writers {
		open := strings.Contains(strings.Join(rep.OpenStreams, " "), w.stream)
		if open != (i >= killed) || w.stream == "" {
			t.Errorf("writer %d (killed: %v): stream %q open: %v", i, i < killed, w.stream, open)
		}
	}
	for _, w := range writers[killed:] {
		wg.Go(func() {
			if err := w.in.Close(); err != nil {
				t.Error(err)
			}
			w.read(-1)
			if err := w.cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	rep = wantVerdict(t, dir, VerdictComplete)
	if len(rep.OpenStreams) > 0 {
		t.Errorf("open streams: %v", rep.OpenStreams)
	}
	stages := map[string]string{}
	for _, r := range records(t, dir, Filter{}) {
		stages[r.Request.ID] += r.Stage + " "
	}
	sent := 0
	for _, w := range writers {
		for _, id := range w.sent {
			sent++
			if s := stages[id]; s != "reserved completed " && s != "reserved interrupted " {
				t.Errorf("request %s went out, and the log has %q", id, s)
			}
		}
	}
	if sent < all*requests {
		t.Errorf("only %d requests went out", sent)
	}
}

// F165: the lock refuses a second writer of a stream.
func TestF165OneWriterAStream(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	g.requests(t, 1)
	second := &stream{o: &g.o, name: g.stream(), dir: g.c.s.dir}
	if err := second.take(); err == nil {
		t.Error("a second writer got the lock of a live stream")
	}
	g.die(t)
	if err := second.take(); err != nil {
		t.Errorf("the lock of a dead stream: %v", err)
	}
	if err := second.close(); err != nil {
		t.Error(err)
	}
}
