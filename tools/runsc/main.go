// Runsc is gVisor's own command, alone, from the module version that the
// product embeds: what `make bench` compares the start of a sandbox with.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
