package secret

import (
	"sync"

	"golang.org/x/sys/unix"
)

const blockSize = 64 << 10 // bytes that are mapped and locked at once

// slotSizes are what a block is cut into; longer values lie in ordinary memory.
var slotSizes = [...]int{256, 4 << 10, 32 << 10}

// locked is memory that the kernel neither swaps out nor writes into a core file.
// It is not Go's, so nothing is left behind where the collector moves or frees.
var locked room

type room struct {
	mu   sync.Mutex
	free [len(slotSizes)][][]byte
	off  bool // the host gives no more (RLIMIT_MEMLOCK)
}

// take returns a slot of n bytes and what gives it back, or nil.
func (r *room) take(n int) (slot []byte, release func()) {
	class := 0
	for class < len(slotSizes) && n > slotSizes[class] {
		class++
	}
	if n == 0 || class == len(slotSizes) {
		return nil, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.free[class]) == 0 && !r.more(class) {
		return nil, nil
	}
	last := len(r.free[class]) - 1
	whole := r.free[class][last]
	r.free[class] = r.free[class][:last]
	return whole[:n], sync.OnceFunc(func() {
		clear(whole)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.free[class] = append(r.free[class], whole)
	})
}

// more maps another block for a class. r.mu is held.
func (r *room) more(class int) bool {
	if r.off {
		return false
	}
	block, err := unix.Mmap(-1, 0, blockSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		r.off = true
		return false
	}
	if unix.Mlock(block) != nil || unix.Madvise(block, unix.MADV_DONTDUMP) != nil {
		_ = unix.Munmap(block)
		r.off = true
		return false
	}
	for size := slotSizes[class]; len(block) >= size; block = block[size:] {
		r.free[class] = append(r.free[class], block[:size:size])
	}
	return true
}
