// Package runner runs one task in a fresh gVisor sandbox whose only way out is
// the proxy.
//
// Shape: the calling process holds the proxy, the credentials and the userspace
// TCP/IP stack. One helper process per run (this binary again, under another
// argv[0]) owns the sandbox and nothing else. The sandbox's only network
// interface is one end of a socketpair whose other end feeds the stack.
//
// Where the sentry refuses that interface the run has a Unix socket of the proxy in its
// place (fallback_linux.go), and says so.
//
// Invariants:
//   - Nothing of the host is mounted writable; inputs are copied, artefacts are
//     read only after the sandbox is dead, and never through a link.
//   - No packet but IPv4 TCP and DNS to the resolver address reaches the stack;
//     everything else is counted. DNS is answered here and never forwarded.
//   - Everything a run makes lives in the helper's own mount namespace, in its
//     state file, or in its cgroups; the state file is locked for the life of
//     the run, and a sweep touches only files whose lock it gets.
//   - A limit that was asked for and cannot be enforced refuses the run.
//   - Only this package imports gVisor, so main must call Reexec first.
package runner
