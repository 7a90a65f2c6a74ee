// Package early decides which packages this process initialises.
//
// One binary is the command and each part of a sandbox: helper, sentry and gofer.
// The parts use gVisor and little else, yet Go would initialise the policy engine,
// the Vault client and the rest of the command in each of them: a sixth of the CPU
// of a short run. Packages are initialised in the order of their import paths as far
// as their own imports allow (Go specification, "Program initialization"). So this
// one comes before nearly all of those, and marks them as done where they are not
// used; it imports nothing but os, which would only make it wait. docs/adr/0010.
package early

import "os"

// Helper is argv[0] of the helper of a run.
const Helper = "warder-helper"

// Role is what a process of this binary was started as.
type Role int

// The roles.
const (
	Command    Role = iota // the command itself
	HelperRole             // the helper of a run
	Runsc                  // sentry or gofer
)

// RoleOf tells the role by argv[0].
func RoleOf(argv []string) Role {
	if len(argv) == 0 {
		return Command
	}
	base := argv[0]
	for i := range len(base) {
		if argv[0][i] == '/' {
			base = argv[0][i+1:]
		}
	}
	const runsc = "runsc"
	switch {
	case base == Helper:
		return HelperRole
	case len(base) >= len(runsc) && base[:len(runsc)] == runsc, base == "exe": // "exe" is gVisor executing /proc/self/exe again
		return Runsc
	}
	return Command
}

// Part reports that this process is a part of a sandbox. As a variable it is set,
// and packages are left out, before those that come after this one are initialised.
var Part = begin(os.Args)

func begin(argv []string) bool {
	if RoleOf(argv) == Command {
		return false
	}
	for _, t := range unused() {
		t.leaveOut()
	}
	return true
}

// initTask is the head of what Go's runtime keeps for each package that has
// something to initialise (runtime/proc.go); its functions follow.
type initTask struct {
	state uint32
	count uint32 // of functions
}

// States of an initTask.
const (
	waiting = 0
	done    = 2
)

// leaveOut marks a package as initialised. One that is not linked into this program
// has no functions: its name stands for a variable of ours.
func (t *initTask) leaveOut() {
	if t.state == waiting && t.count > 0 {
		t.state = done
	}
}
