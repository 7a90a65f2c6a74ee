// Command warder runs untrusted code in a gVisor sandbox whose only way out is
// a proxy that judges every request, adds credentials on the way out and keeps
// a record that proves itself.
package main

import (
	"os"

	_ "a.warder/early/heap" // decides what is initialised and collected, before it is

	"warder/runner"
)

func main() {
	runner.Reexec() // must come first: this binary is also the sandbox's helper, sentry and gofer
	noCore()
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}
