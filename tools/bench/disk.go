package main

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// measureDisk is what one fdatasync of half a KiB takes, in a file that has its
// room already, as a segment of the log has.
func measureDisk(name string) (s sample, err error) {
	f, err := os.Create(name)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, 1<<20); err != nil {
		return s, err
	}
	line := make([]byte, 512)
	var all []float64
	for i := range 300 {
		begin := time.Now()
		if _, err := f.WriteAt(line, int64(i*len(line))); err != nil {
			return s, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return s, err
		}
		all = append(all, float64(time.Since(begin).Nanoseconds())/1e3)
	}
	return sample{p50US: quantile(all, .5), p99US: quantile(all, .99)}, nil
}
