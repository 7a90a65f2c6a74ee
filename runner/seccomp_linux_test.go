package runner

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/format"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/bpf"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	sentryfilter "gvisor.dev/gvisor/runsc/boot/filter"
	sentryconfig "gvisor.dev/gvisor/runsc/boot/filter/config"
	"gvisor.dev/gvisor/runsc/config"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter"
	goferconfig "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

var updateFilters = flag.Bool("update-filters", false, "write the compiled filters of this architecture")

// The rules with any values of their variables; the exported functions take those
// of this process.

//go:linkname sentryRules gvisor.dev/gvisor/runsc/boot/filter/config.rules
func sentryRules(sentryconfig.Options, precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)

//go:linkname goferRules gvisor.dev/gvisor/runsc/fsgofer/filter/config.rules
func goferRules(goferconfig.Options, precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)

// compiledFilter is one filter with what it is made from.
type compiledFilter struct {
	name string
	vars precompiledseccomp.Values
	opts seccomp.ProgramOptions
	make func(precompiledseccomp.Values) (allow, deny seccomp.SyscallRules)
}

func (f compiledFilter) program(vars precompiledseccomp.Values) *seccomp.Program {
	allow, deny := f.make(vars)
	return &seccomp.Program{
		RuleSets: []seccomp.RuleSet{{Rules: deny.Copy()}, {Rules: allow.Copy(), Action: seccomp.Allow}},
		Options:  f.opts,
	}
}

// compile is what gVisor's own build does: with placeholders for the variables.
// One rule of systrap names the process without one (rt_tgsigqueueinfo), which
// would forbid the call to every process but the compiler: its place is found by
// the number of this process, and is a place of the variable.
func (f compiledFilter) compile(t *testing.T) precompiledseccomp.Program {
	t.Helper()
	p, err := precompiledseccomp.Precompile(f.name, slices.Sorted(maps.Keys(f.vars)), f.program)
	if err != nil {
		t.Fatal(err)
	}
	if _, known := p.VarOffsets[selfPID]; known && len(p.VarOffsets[selfPID]) == 0 {
		for i := 1; i < len(p.Bytecode32); i += 2 { // a pair is an instruction and its operand
			if p.Bytecode32[i] == uint32(os.Getpid()) {
				p.VarOffsets[selfPID] = append(p.VarOffsets[selfPID], i)
			}
		}
	}
	for _, i := range p.VarOffsets[selfPID] {
		p.Bytecode32[i] = 0
	}
	return p
}

const selfPID = "self_pid_low32bits"

// ourFilters are those that our runs ask for: the options are those of the
// configuration that every helper makes.
func ourFilters(t *testing.T) (sentry, gofer []compiledFilter) {
	t.Helper()
	conf, err := runscConfig(helperConfig{Overlay: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	systrap, err := platform.Lookup(conf.Platform)
	if err != nil {
		t.Fatal(err)
	}
	so := sentryconfig.Options{
		Platform: systrap.PrecompiledSeccompInfo()[0], HostFilesystem: conf.DirectFS, HostNetwork: conf.Network == config.NetworkHost,
		ProfileEnable: conf.ProfileEnable, CgoEnabled: config.CgoEnabled, ControllerFD: 23,
	}
	sentry = []compiledFilter{{so.ConfigKey(), so.Vars(), sentryconfig.SeccompOptions(so), func(v precompiledseccomp.Values) (allow, deny seccomp.SyscallRules) {
		return sentryRules(so, v)
	}}}
	for _, lisafs := range []bool{false, true} { // which depends on the mounts
		g := goferconfig.Options{
			DirectFS: conf.DirectFS, LisafsNeeded: lisafs, CgoEnabled: config.CgoEnabled, ProfileEnabled: conf.ProfileEnable,
			UDSOpenEnabled: conf.GetHostUDS().AllowOpen(), UDSCreateEnabled: conf.GetHostUDS().AllowCreate(),
		}
		gofer = append(gofer, compiledFilter{g.ConfigKey(), g.Vars(), seccomp.ProgramOptions{}, func(v precompiledseccomp.Values) (allow, deny seccomp.SyscallRules) {
			return goferRules(g, v)
		}})
	}
	return sentry, gofer
}

// TestCompiledFiltersAreThoseOfGVisor: what our processes are confined by is what
// this version of gVisor would compile, instruction by instruction.
func TestCompiledFiltersAreThoseOfGVisor(t *testing.T) { // I1, I9
	sentry, gofer := ourFilters(t)
	if *updateFilters {
		writeFilters(t, sentry, gofer)
	}
	if runtime.GOARCH != "amd64" {
		if len(compiledSentryFilters())+len(compiledGoferFilters()) > 0 {
			t.Error("filters of another architecture are offered")
		}
		return
	}
	usePrecompiledFilters()
	for _, c := range []struct {
		filters []compiledFilter
		lookup  func(string) (precompiledseccomp.Program, bool)
	}{{sentry, sentryfilter.GetPrecompiled}, {gofer, goferfilter.GetPrecompiled}} {
		for _, f := range c.filters {
			p, ok := c.lookup(f.name)
			if !ok {
				t.Errorf("%s: not offered; hint: %s", f.name, updateHint)
				continue
			}
			if !reflect.DeepEqual(p, f.compile(t)) {
				t.Errorf("%s: differs; hint: %s", f.name, updateHint)
			}
			got, err := p.RenderInstructions(f.vars)
			if err != nil {
				t.Fatal(err)
			}
			mustJudgeAlike(t, f, got)
		}
	}
}

// mustJudgeAlike asks the filter and one that is compiled from scratch, with the
// values of this process, about calls of every number.
func mustJudgeAlike(t *testing.T, f compiledFilter, insns []bpf.Instruction) {
	t.Helper()
	scratch, _, err := f.program(f.vars).Build()
	if err != nil {
		t.Fatal(err)
	}
	ours, err1 := bpf.Compile(insns, false)
	theirs, err2 := bpf.Compile(scratch, false)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	interesting := []uint64{0, 1, 2, 3, 8, 9, 23, 24, uint64(os.Getpid()), uint64(os.Getpid()) + 1, 1 << 31, 1 << 32, 1<<64 - 1, unix.O_CLOEXEC, unix.F_GETFL, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS, unix.AT_EMPTY_PATH}
	verdicts := map[uint32]int{}
	buf := make([]byte, (&linux.SeccompData{}).SizeBytes())
	for nr := range int32(470) {
		for range 100 {
			d := linux.SeccompData{Nr: nr, Arch: seccomp.LINUX_AUDIT_ARCH}
			for i := range d.Args {
				d.Args[i] = interesting[rng.IntN(len(interesting))]
			}
			in := seccomp.DataAsBPFInput(&d, buf)
			a, err1 := bpf.Exec[bpf.NativeEndian](ours, in)
			b, err2 := bpf.Exec[bpf.NativeEndian](theirs, in)
			if err1 != nil || err2 != nil || a != b {
				t.Fatalf("%s: call %+v: %#x, %v; compiled anew: %#x, %v", f.name, d, a, err1, b, err2)
			}
			verdicts[a]++
		}
	}
	if len(verdicts) < 2 {
		t.Errorf("control: one verdict for all: %v", verdicts)
	}
}

const updateHint = "go test ./runner -run TestCompiledFilters -update-filters"

// writeFilters writes seccomp_linux_GOARCH.go.
func writeFilters(t *testing.T, sentry, gofer []compiledFilter) {
	t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, "// Code generated by %s; DO NOT EDIT.\n\npackage runner\n\nimport \"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp\"\n", updateHint)
	for _, g := range []struct {
		fn      string
		filters []compiledFilter
	}{{"compiledSentryFilters", sentry}, {"compiledGoferFilters", gofer}} {
		fmt.Fprintf(&b, "\nfunc %s() []precompiledseccomp.Program {\nreturn []precompiledseccomp.Program{\n", g.fn)
		for _, f := range g.filters {
			p := f.compile(t)
			offsets := strings.TrimPrefix(fmt.Sprintf("%#v", p.VarOffsets), "map[string][]int")
			offsets = strings.NewReplacer("[]int(nil)", "nil", "[]int{", "{").Replace(offsets)
			fmt.Fprintf(&b, "{\nName: %q,\nVarOffsets: map[string][]int%s,\nBytecode32: []uint32{", p.Name, offsets)
			for i, w := range p.Bytecode32 {
				if i%16 == 0 {
					b.WriteString("\n")
				}
				fmt.Fprintf(&b, "%#x, ", w)
			}
			b.WriteString("\n},\n},\n")
		}
		b.WriteString("}\n}\n")
	}
	src, err := format.Source(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("seccomp_linux_"+runtime.GOARCH+".go", src, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Fatal("written; run again without -update-filters")
}
