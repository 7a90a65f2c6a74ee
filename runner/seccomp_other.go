//go:build linux && !amd64

package runner

import "gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

// None were compiled for this architecture: gVisor compiles them at each start.

func compiledSentryFilters() []precompiledseccomp.Program { return nil }

func compiledGoferFilters() []precompiledseccomp.Program { return nil }
