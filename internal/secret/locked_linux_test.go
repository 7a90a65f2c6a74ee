package secret

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pagesOf is what the kernel says of the memory in which b lies (proc(5), smaps).
func pagesOf(t *testing.T, b []byte) (flags string, lockedKB int) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at, err := strconv.ParseUint(strings.TrimPrefix(fmt.Sprintf("%p", b), "0x"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	header := regexp.MustCompile(`^([0-9a-f]+)-([0-9a-f]+) `)
	inside := false
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		if m := header.FindStringSubmatch(line); m != nil {
			lo, _ := strconv.ParseUint(m[1], 16, 64)
			hi, _ := strconv.ParseUint(m[2], 16, 64)
			inside = at >= lo && at < hi
		}
		switch f := strings.Fields(line); {
		case inside && f[0] == "Locked:":
			lockedKB, _ = strconv.Atoi(f[1])
		case inside && f[0] == "VmFlags:":
			flags = line
		}
	}
	return flags, lockedKB
}

func TestKeptValuesAreNotSwappedAndNotDumped(t *testing.T) {
	s := New("S3CR3T-CANARY-locked")
	kept := *s.v.cell()
	flags, kb := pagesOf(t, kept)
	if !strings.Contains(flags, " lo") || !strings.Contains(flags, " dd") || kb == 0 {
		t.Errorf("a kept value lies in pages with %q, %d kB locked", flags, kb)
	}
	heap := Brief("S3CR3T-CANARY-brief")
	if flags, _ := pagesOf(t, *heap.v.cell()); strings.Contains(flags, " lo") || flags == "" {
		t.Errorf("control: ordinary memory is %q", flags)
	}
	if s.Reveal() != "S3CR3T-CANARY-locked" || s.Len() != 20 {
		t.Fatal("another value")
	}
	s.Wipe()
	if bytes.Contains(kept[:cap(kept)], []byte("CANARY")) || !s.IsZero() {
		t.Error("the value is still there after Wipe")
	}
}

func TestTheCallersBytesAreCleared(t *testing.T) {
	b := []byte("S3CR3T-CANARY-mine")
	s := FromBytes(b)
	if bytes.Contains(b, []byte("CANARY")) || s.Reveal() != "S3CR3T-CANARY-mine" {
		t.Error("the bytes that were handed over still hold the value")
	}
}

// TestSlotsComeBack: also of values that nobody wiped, and never twice.
func TestSlotsComeBack(t *testing.T) {
	r := &locked
	free := func() (n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.free[1])
	}
	New(strings.Repeat("a", 1000)).Wipe() // there is a block
	before := free()
	func() {
		wiped, dropped := New(strings.Repeat("b", 1000)), New(strings.Repeat("c", 1000))
		if free() != before-2 {
			t.Error("not out of the block")
		}
		wiped.Wipe()
		wiped.Wipe()
		runtime.KeepAlive(dropped)
	}()
	for end := time.Now().Add(time.Minute); free() != before; {
		if time.Now().After(end) {
			t.Fatalf("%d slots of %d came back", free(), before)
		}
		runtime.GC()
	}
	two, three := New(strings.Repeat("d", 1000)), New(strings.Repeat("e", 1000))
	if two.Reveal() == three.Reveal() {
		t.Error("a slot was given out twice")
	}
}

// TestWithoutLockedMemoryValuesAreKeptAllTheSame: long ones, and where the host
// gives none.
func TestWithoutLockedMemoryValuesAreKeptAllTheSame(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	if s := New(long); s.Reveal() != long {
		t.Error("a long value is another")
	}
	none := &room{off: true}
	if slot, _ := none.take(10); slot != nil {
		t.Error("a slot from nowhere")
	}
	if New("").Len() != 0 {
		t.Error("an empty value is not empty")
	}
}
