package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"warder/audit"
)

// maxRefusedTold bounds the lines about artefacts; the JSON and the log have all.
const maxRefusedTold = 10

// tellRefused names the artefacts that are not there, and why. The task chose the
// names: they are quoted, so that none of them commands a terminal.
func tellRefused(files []audit.File, stderr io.Writer) {
	n := 0
	for _, f := range files {
		if f.Refused == "" {
			continue
		}
		if n++; n <= maxRefusedTold {
			fmt.Fprintf(stderr, "warder: artefact %q: %s\n", f.Path, f.Refused)
		}
	}
	if n > maxRefusedTold {
		fmt.Fprintf(stderr, "warder: %d artefacts more are refused; hint: -o json\n", n-maxRefusedTold)
	}
}

// withHint adds what to do about a disk, where the error does not say it.
func withHint(err error) error {
	hint := ""
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		hint = "make room there, or use another folder (WARDER_STATE_DIR, WARDER_CACHE_DIR, audit.dir)"
	case errors.Is(err, syscall.EROFS):
		hint = "use a folder that can be written to (WARDER_STATE_DIR, WARDER_CACHE_DIR, audit.dir)"
	}
	if hint == "" || strings.Contains(err.Error(), "hint:") {
		return err
	}
	return fmt.Errorf("%w; hint: %s", err, hint)
}
