package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// commandsOwn are packages that no part of a sandbox uses.
var commandsOwn = []string{
	"github.com/open-policy-agent/opa/v1/ast", "github.com/open-policy-agent/opa/v1/topdown", "github.com/hashicorp/vault/api",
	"github.com/elazarl/goproxy", "github.com/prometheus/client_golang/prometheus", "github.com/google/go-containerregistry/pkg/name",
	"github.com/lestrrat-go/jwx/v3/jwk", "warder/policies",
}

// TestPartsInitialiseLittle: every start of a sandbox starts this binary three more
// times, and each pays for what is initialised before its main. The sandbox's own
// code is left as it is.
func TestPartsInitialiseLittle(t *testing.T) {
	command := initialised(t, "warder")
	for _, p := range slices.Concat(commandsOwn, []string{"gvisor.dev/gvisor/pkg/sentry/syscalls/linux", "a.warder/early"}) {
		if !slices.Contains(command, p) {
			t.Errorf("control: the command does not initialise %s", p)
		}
	}
	for _, part := range []string{"warder-helper", "runsc-sandbox", "runsc-gofer", "exe"} {
		got := initialised(t, part)
		for _, p := range commandsOwn {
			if slices.Contains(got, p) {
				t.Errorf("%s initialises %s", part, p)
			}
		}
		for _, p := range command {
			if strings.HasPrefix(p, "gvisor.dev/") && !slices.Contains(got, p) {
				t.Errorf("%s does not initialise %s", part, p)
			}
		}
		if n := len(command) - len(got); n < 80 {
			t.Errorf("%s initialises %d packages, the command %d", part, len(got), len(command))
		}
	}
}

var initLine = regexp.MustCompile(`(?m)^init (\S+) @`)

// initialised are the packages that this binary initialises under a name, in
// order (runtime: GODEBUG=inittrace). What it does then is to refuse its arguments.
func initialised(t *testing.T, name string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: self, Args: []string{name, "--no-such-flag"}, Env: []string{"GODEBUG=inittrace=1"}}
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("%s accepted a flag that it does not have", name)
	}
	var list []string
	for _, m := range initLine.FindAllSubmatch(out, -1) {
		list = append(list, string(m[1]))
	}
	if len(list) == 0 {
		t.Fatalf("%s says nothing of packages: %s", name, out)
	}
	return list
}
