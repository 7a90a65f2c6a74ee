// Command warder runs untrusted code in a gVisor sandbox whose only way out is
// a proxy that judges every request, adds credentials on the way out and keeps
// a record that proves itself.
package main

import (
	"os"
	"runtime/debug"

	"warder/runner"
)

func main() {
	runner.Reexec() // must come first: this binary is also the sandbox's helper, sentry and gofer
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	noCore()
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// gcPercent trades memory for time: a run's live heap is a few megabytes, and
// collecting it often is a tenth of the start and of each request.
const gcPercent = 400
