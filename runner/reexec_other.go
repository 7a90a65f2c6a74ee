//go:build !linux

package runner

// Reexec does nothing where there is no sandbox.
func Reexec() {}
