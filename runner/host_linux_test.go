package runner

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

const sigZero = syscall.Signal(0)

func fakeProc(t *testing.T, mountinfo, cgroup string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "self/mountinfo"), mountinfo, 0o600)
	write(t, filepath.Join(dir, "self/cgroup"), cgroup, 0o600)
	return dir
}

func TestFindCgroupsV1UsesTheCallersOwnGroup(t *testing.T) {
	mem := t.TempDir()
	if err := os.MkdirAll(filepath.Join(mem, "slice/me"), 0o755); err != nil {
		t.Fatal(err)
	}
	h := findCgroups(fakeProc(t,
		"30 20 0:20 / "+mem+" rw - cgroup cgroup rw,memory\n31 20 0:21 / /nonexistent/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
		"4:memory:/slice/me\n1:cpu,cpuacct:/slice/me\n"))
	if h == nil || h.v2 || h.base["memory"] != filepath.Join(mem, "slice/me") || h.base["cpu"] != "/nonexistent/cpu" {
		t.Errorf("%+v", h)
	}
}

func TestFindCgroupsV2(t *testing.T) {
	h := findCgroups(fakeProc(t, "30 20 0:20 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/user.slice\n"))
	if h == nil || !h.v2 || h.base[""] != "/sys/fs/cgroup" {
		t.Errorf("%+v", h)
	}
	if h := findCgroups(fakeProc(t, "30 20 0:20 / / rw - ext4 /dev/x rw\n", "")); h != nil {
		t.Errorf("a host without cgroups: %+v", h)
	}
}

// TestCgroupV2Files drives the v2 code against plain files: this shows what is
// written where, not that a kernel accepts it.
func TestCgroupV2Files(t *testing.T) {
	root := t.TempDir()
	h := &cgroupHost{v2: true, base: map[string]string{"": root}}
	c, err := h.create("r-x", Limits{CPUs: 0.5, Memory: 100 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.held, []string{"memory", "cpus"}) {
		t.Errorf("held %v", c.held)
	}
	for f, want := range map[string]string{"memory.max": "171966464", "memory.swap.max": "0", "cpu.max": "50000 100000"} {
		if b, err := os.ReadFile(filepath.Join(c.dirs[""], f)); err != nil || string(b) != want {
			t.Errorf("%s: %q %v, want %q", f, b, err, want)
		}
	}
	if c.oomKilled() {
		t.Error("an OOM kill without memory.events")
	}
	write(t, filepath.Join(c.dirs[""], "memory.events"), "low 0\noom 1\noom_kill 1\n", 0o600)
	if !c.oomKilled() {
		t.Error("the OOM kill of memory.events was not seen")
	}
}

func TestLimitsThatCannotBeEnforced_F125(t *testing.T) { // F125
	l, err := Limits{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if l.CPUs != DefaultCPUs || l.Memory != DefaultMemory || l.PIDs != DefaultPIDs || l.Disk != DefaultDisk || l.Timeout != DefaultTimeout {
		t.Errorf("defaults: %+v", l)
	}
	if err := l.refuse([]string{"cpus"}); err != nil {
		t.Errorf("best effort: %v", err)
	}
	l.Asked = map[string]bool{"cpus": true}
	if err := l.refuse([]string{"cpus"}); err == nil || !strings.Contains(err.Error(), "--cpus") {
		t.Errorf("by flag: %v", err)
	}
	l.Asked, l.Strict = nil, true
	if err := l.refuse([]string{"cpus"}); err == nil {
		t.Error("strict: accepted")
	}
	if err := l.refuse(nil); err != nil {
		t.Errorf("strict, all enforced: %v", err)
	}
	if rec := l.record([]string{"cpus"}); !slices.Equal(rec["not_enforced"].([]string), []string{"cpus"}) {
		t.Errorf("record: %v", rec)
	}
}

func TestImpossibleLimits(t *testing.T) {
	for name, l := range map[string]Limits{
		"cpus": {CPUs: -1}, "many cpus": {CPUs: 1e9}, "memory": {Memory: 1}, "pids": {PIDs: -1}, "disk": {Disk: 1}, "timeout": {Timeout: -time.Second},
		"no number": {CPUs: math.NaN()}, "zero cpus by flag": {Asked: map[string]bool{"cpus": true}}, "zero pids by flag": {Asked: map[string]bool{"pids": true}},
	} {
		if _, err := l.withDefaults(); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestTheOverlayFollowsTheLimits_I9(t *testing.T) {
	for _, c := range []struct {
		l     Limits
		image bool
		want  int64
	}{
		{Limits{Memory: 512 << 20, Disk: 1 << 30}, false, 64 << 20},
		{Limits{Memory: 512 << 20, Disk: 1 << 30}, true, 256 << 20},
		{Limits{Memory: 32 << 20, Disk: 1 << 30}, true, 64 << 20},
		{Limits{Memory: 8 << 30, Disk: 1 << 30}, true, 1 << 30},
		{Limits{Memory: 8 << 30, Disk: 1 << 20}, false, 1 << 20},
	} {
		if got := c.l.overlay(c.image); got != c.want {
			t.Errorf("%+v, image %v: %d, want %d", c.l, c.image, got, c.want)
		}
	}
}

func TestUsers(t *testing.T) {
	root := os.Geteuid() == 0
	for _, c := range []struct {
		user string
		ok   bool
		o    owner
	}{
		{"0", true, owner{}},
		{"root", true, owner{}},
		{"0:0", true, owner{}},
		{"1000", root, owner{1000, 1000}},
		{"task", root, owner{1000, 1000}},
		{"1234", root, owner{1234, 1234}},
		{"2147483647", root, owner{maxUID, maxUID}},
		{"1234:50", root, owner{1234, 50}},
		{"1234:0", root, owner{1234, 0}},
		{"root:50", root, owner{0, 50}},
		{"task:7", root, owner{1000, 7}},
		{"2147483648", false, owner{}},
		{"0:2147483648", false, owner{}},
		{"nobody", false, owner{}},
		{"0:staff", false, owner{}},
		{"0:", false, owner{}},
		{":0", false, owner{}},
		{"0:0:0", false, owner{}},
		{"0:-1", false, owner{}},
		{"-1", false, owner{}},
		{"99999999999", false, owner{}},
	} {
		s, err := chooseIDs(c.user, [2]uint32{200000, 65536})
		if (err == nil) != c.ok || (c.ok && s.owner != c.o) {
			t.Errorf("user %q: %+v, %v", c.user, s, err)
		}
	}
	if root {
		for _, r := range [][2]uint32{{}, {200000, 1}, {0, 100}} {
			if _, err := chooseIDs("", r); err == nil {
				t.Errorf("range %v was accepted", r)
			}
		}
	}
}

// Each id inside is mapped once, and to a host id of the run's own.
func TestIDsAreMappedToTheRunsOwn_I9(t *testing.T) {
	for _, o := range []owner{{}, {1000, 1000}, {1234, 50}, {1234, 0}, {0, 50}} {
		a := identitySet{owner: o, slots: 8, base: 200000, slot: 3}.sysProcAttr()
		for id, maps := range map[uint32][]syscall.SysProcIDMap{o.uid: a.UidMappings, o.gid: a.GidMappings} {
			if id == 0 {
				id = taskUID
			}
			want := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 200006, Size: 1}, {ContainerID: int(id), HostID: 200007, Size: 1}}
			if !slices.Equal(maps, want) {
				t.Errorf("%+v: %v", o, maps)
			}
		}
	}
}

func TestSpecGrantsNothing(t *testing.T) {
	s := buildSpec(helperConfig{Args: []string{"x"}, UID: 1000, GID: 50, Groups: []uint32{29}, Cwd: "/workspace", NProc: 5, NoFile: 6, Tmp: 7}, "/run")
	caps := s.Process.Capabilities
	if len(caps.Bounding)+len(caps.Effective)+len(caps.Permitted)+len(caps.Inheritable)+len(caps.Ambient) != 0 || !s.Process.NoNewPrivileges {
		t.Errorf("capabilities: %+v", caps)
	}
	if u := s.Process.User; u.UID != 1000 || u.GID != 50 || !slices.Equal(u.AdditionalGids, []uint32{29}) {
		t.Errorf("user: %+v", u)
	}
	if s.Root.Path == "/" {
		t.Error("the host's root is the sandbox's root") // F116
	}
	for _, m := range s.Mounts {
		rw := slices.Contains(m.Options, "rw")
		if m.Type == "bind" && rw != (m.Destination == "/workspace" || m.Destination == "/out") {
			t.Errorf("mount %s: %v", m.Destination, m.Options)
		}
	}
}

func TestEnvironmentKeepsTheCallersValue(t *testing.T) {
	got := mergeEnv([]string{"A=1", "PATH=x", "A=2"})
	if !slices.Equal(got, []string{"A=2", "PATH=x"}) || !slices.Equal(envNames(got), []string{"A", "PATH"}) {
		t.Errorf("%v", got)
	}
}

func TestOnlyAGroupThatNamesUsIsOurs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cgroup.procs")
	write(t, file, "1\n23\n456\n", 0o600)
	if !isMember(file, 23) || isMember(file, 2) || isMember(file, 45) || isMember(file+".absent", 23) {
		t.Error("membership is not read from the list")
	}
}
