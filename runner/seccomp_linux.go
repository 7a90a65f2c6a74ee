package runner

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	sentry "gvisor.dev/gvisor/runsc/boot/filter"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

// gVisor compiles the system-call filters (seccomp(2)) of sentry and gofer at
// every start, which is an eighth of the CPU of a short run, unless it finds them
// compiled. Its own build puts them there; its Go module leaves the tables empty.
// These are the tables, which have no other door.

//go:linkname sentryPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var sentryPrograms map[string]precompiledseccomp.Program

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

// usePrecompiledFilters offers gVisor the filters of this architecture, compiled
// (seccomp_linux_amd64.go). A test compiles them anew and compares. gVisor asks by name,
// which is all that a filter depends on; for a name that is not offered it compiles
// as ever.
func usePrecompiledFilters() {
	// Asking makes the tables, once; after that they are only read.
	sentry.ListPrecompiled()
	gofer.ListPrecompiled()
	for _, p := range compiledSentryFilters() {
		sentryPrograms[p.Name] = p
	}
	for _, p := range compiledGoferFilters() {
		goferPrograms[p.Name] = p
	}
}
