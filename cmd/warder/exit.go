package main

// exitError carries the exit code of a command to main.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// ExitCode is what the process exits with.
func (e *exitError) ExitCode() int { return e.code }
