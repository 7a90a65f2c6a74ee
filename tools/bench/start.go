package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const trueCmd = "/usr/bin/true"

// startCell is the median of one way to run a trivial command.
type startCell struct {
	Name   string  `json:"name"`
	WallMS float64 `json:"wall_ms"`
	MinMS  float64 `json:"wall_min_ms"`
	CPUMS  float64 `json:"cpu_ms"` // of every process it started, user and system
}

type variant struct {
	name      string
	argv, env []string
	wall, cpu []float64
}

func benchStart(o options) ([]startCell, error) {
	variants, err := startVariants(o)
	if err != nil {
		return nil, err
	}
	return interleave(o, variants)
}

// interleave runs the variants in turn, round by round, so that a slow moment
// of the machine falls on all of them. The first round only warms caches.
func interleave(o options, variants []*variant) ([]startCell, error) {
	for round := range o.rounds + 1 {
		for _, v := range variants {
			wall, cpu, err := measure(v)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			if round > 0 {
				v.wall, v.cpu = append(v.wall, wall), append(v.cpu, cpu)
			}
		}
	}
	var cells []startCell
	for _, v := range variants {
		cells = append(cells, startCell{v.name, median(v.wall), quantile(v.wall, 0), median(v.cpu)})
	}
	return cells, nil
}

func startVariants(o options) ([]*variant, error) {
	root, err := curatedRoot(filepath.Join(o.dir, "root"))
	if err != nil {
		return nil, err
	}
	config := filepath.Join(o.dir, "start.yaml")
	if err := os.WriteFile(config, []byte("version: 1\naudit: {dir: ./start-audit}\n"), 0o600); err != nil {
		return nil, err
	}
	runsc := []string{
		o.runsc, "--root=" + filepath.Join(o.dir, "runsc"), "--platform=systrap", "--network=none",
		"--host-settings=ignore", "--ignore-cgroups",
	}
	if os.Geteuid() != 0 {
		runsc = append(runsc, "--rootless")
	}
	// The same root: an empty folder with the host's /usr; the same overlay:
	// memory, which is what `do` sets.
	runsc = append(runsc, "do", "--quiet", "--root="+root, "--cwd=/", "--volume=/usr:/usr", trueCmd)
	env := append(os.Environ(), "WARDER_STATE_DIR="+filepath.Join(o.dir, "state"))
	variants := []*variant{
		{name: "unsandboxed", argv: []string{trueCmd}, env: env},
		{name: "runsc do", argv: runsc, env: env},
		{name: "warder run", argv: []string{o.warder, "run", "--config", config, "--", trueCmd}, env: env},
	}
	others, err := otherSandboxes(o, root)
	return append(variants, others...), err
}

// otherSandboxes are containers, which share the host's kernel with the task: what
// gVisor's own kernel costs is the distance to them.
func otherSandboxes(o options, root string) (out []*variant, err error) {
	if bwrap, err := exec.LookPath("bwrap"); err == nil {
		argv := []string{bwrap, "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"}
		for _, name := range []string{"bin", "lib", "lib64"} {
			if target, err := os.Readlink("/" + name); err == nil {
				argv = append(argv, "--symlink", target, "/"+name)
			}
		}
		out = append(out, &variant{name: "bubblewrap", argv: append(argv, trueCmd), env: os.Environ()})
	} else {
		fmt.Fprintln(os.Stderr, "bench: bubblewrap is not there and left out")
	}
	runc, err := exec.LookPath("runc")
	if err != nil || os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "bench: runc is left out: it is not there, or this is not root")
		return out, nil
	}
	bundle := filepath.Join(o.dir, "runc-bundle")
	if err := writeBundle(bundle, root, "", nil, trueCmd); err != nil {
		return nil, err
	}
	argv := []string{runc, "--root", filepath.Join(o.dir, "runc"), "run", "--bundle", bundle, "bench"}
	return append(out, &variant{name: "runc", argv: argv, env: os.Environ()}), nil
}

// curatedRoot makes a folder whose /bin and /lib point into /usr, as the
// product's root does; /usr itself is mounted by the caller.
func curatedRoot(dir string) (string, error) {
	for _, d := range []string{"usr", "etc", "dev", "proc", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		target, err := os.Readlink("/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("this host's /%s is not a link into /usr: %w", name, err)
		}
		err = os.Symlink(target, filepath.Join(dir, name))
		if err != nil && !errors.Is(err, os.ErrExist) { // made for an earlier part
			return "", err
		}
	}
	return dir, nil
}

// spent is what a command took.
type spent struct {
	WallMS float64 `json:"wall_ms"` // to its end
	CPUMS  float64 `json:"cpu_ms"`  // of it and of every process that it left to be reaped
}

// measure runs a variant once, under a process of its own (see once).
func measure(v *variant) (wallMS, cpuMS float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(self, append([]string{"once"}, v.argv...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = v.env, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return 0, 0, fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var s spent
	if err := json.Unmarshal(stdout.Bytes(), &s); err != nil {
		return 0, 0, err
	}
	return s.WallMS, s.CPUMS, nil
}

// once runs one command and says what it took. Orphans come to this process, so
// that a sandbox whose parent died is counted too, and no other child is here.
func once(argv []string) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	begin := time.Now()
	err := cmd.Run()
	wall := time.Since(begin)
	if err != nil {
		return err
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	orphans, err := reap()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(spent{float64(wall) / 1e6, float64(cpu+orphans) / 1e6})
}

// reap waits for the orphans that came to us, and adds up what they used.
func reap() (cpu time.Duration, err error) {
	for {
		var ru syscall.Rusage
		_, err := syscall.Wait4(-1, nil, 0, &ru)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ECHILD):
			return cpu, nil
		case err != nil:
			return 0, err
		}
		cpu += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	}
}

func startRatios(cells []startCell) []ratio {
	by := map[string]startCell{}
	for _, c := range cells {
		by[c.Name] = c
	}
	w, r := by["warder run"], by["runsc do"]
	if w.WallMS == 0 || r.WallMS == 0 {
		return nil
	}
	return []ratio{
		bound("start to finish, wall: warder run / runsc do", w.WallMS/r.WallMS, "<=", 1.2),
		bound("start to finish, CPU: warder run / runsc do", w.CPUMS/r.CPUMS, "<=", 1.2),
	}
}
