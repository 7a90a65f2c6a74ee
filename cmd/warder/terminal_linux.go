package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"warder/runner"
)

// callerTerminal makes the task's terminal like the caller's. The caller's own
// is in raw mode until restore: keys reach the task as they are pressed, and its
// terminal turns them into signals.
func callerTerminal(interactive bool) (t *runner.Terminal, restore func()) {
	t = &runner.Terminal{Name: os.Getenv("TERM")}
	restore = func() {}
	out := int(os.Stdout.Fd())
	if !term.IsTerminal(out) {
		return t, restore
	}
	t.Size = func() (rows, cols uint16) {
		w, h, err := term.GetSize(out)
		if err != nil || w < 0 || h < 0 || w > 1<<15 || h > 1<<15 {
			return 0, 0
		}
		return uint16(h), uint16(w)
	}
	winch := make(chan os.Signal, 1)
	signal.Notify(winch, syscall.SIGWINCH)
	t.Resized = winch
	restore = func() { signal.Stop(winch) }
	in := int(os.Stdin.Fd())
	if !interactive || !term.IsTerminal(in) {
		return t, restore
	}
	old, err := term.MakeRaw(in)
	if err != nil {
		return t, restore
	}
	return t, func() {
		signal.Stop(winch)
		_ = term.Restore(in, old) // the terminal is gone then
	}
}
