package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"os/user"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"warder/audit"
	"warder/internal/config"
	"warder/internal/identity"
	"warder/runner"
)

const exitRunFailed = runner.ExitWarder

// sweepWait is how long a run that is over waits for the sweep of dead runs.
const sweepWait = 10 * time.Second

type runFlags struct {
	config, policy, artifactsDir, workdir, user, image, entrypoint string
	task, agent, output, trace                                     string
	inputs, artifacts, env, labels, credentials                    []string
	cpus                                                           float64
	memory, disk                                                   config.Size
	pids                                                           int
	timeout                                                        config.Duration
	interactive, tty                                               bool
	told                                                           bool // the result object is on stdout
}

func newRunCmd() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] CMD [ARG…]",
		Short: "Run a command in a fresh sandbox",
		Long: `Run starts CMD in a fresh gVisor sandbox with copies of the inputs and no way out
but the proxy. The task's output and exit code are passed on unchanged.

Exit codes: the task's own; 124 time limit, 125 Warder failed, 126 not
executable, 127 not found, 128+n ended by signal n, 137 out of memory.`,
		Example: `  warder run -- python3 -c 'print("hello")'
  warder run --input ./src:src --artifact /out --artifacts-dir ./result -- make -C src
  warder run -o json --timeout 30s --memory 256Mi -- ./agent-step
  warder run --image registry.example/python@sha256:… -- python3 -V`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.image != "" {
				return nil // it may bring its own command
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return runTask(cmd, &f, args) },
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false) // options end at the first word of the command
	fl.StringVar(&f.config, "config", "", "configuration `file`")
	fl.StringVar(&f.policy, "policy", "", "policy `folder`, in place of the file's")
	fl.StringArrayVar(&f.inputs, "input", nil, "copy `SRC[:DST]` in; a relative DST is below /workspace. tar:SRC and zip:SRC unpack an archive, - is standard input")
	fl.StringArrayVar(&f.artifacts, "artifact", nil, "collect `PATH` (file, folder or glob below /workspace or /out)")
	fl.StringVar(&f.artifactsDir, "artifacts-dir", "", "`folder` for artefacts (default ./artifacts)")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "set `NAME=VALUE` inside")
	fl.StringVarP(&f.workdir, "workdir", "w", "", "working `directory` inside (default /workspace)")
	fl.StringVarP(&f.user, "user", "u", "", "`user` inside: root, task or a number, and a group's number after a colon")
	fl.StringVar(&f.image, "image", "", "root file system: a registry's `reference`, or docker-archive:, oci-archive:, oci:, dir: or erofs: with a path")
	fl.StringVar(&f.entrypoint, "entrypoint", "", "`program` in place of the image's entry point; empty for none")
	fl.StringArrayVar(&f.credentials, "credential", nil, "offer only this credential `name` (may be repeated)")
	fl.Float64Var(&f.cpus, "cpus", 0, "CPU limit in cores")
	fl.VarP(&f.memory, "memory", "m", "memory limit (bytes, Ki, Mi, Gi)")
	fl.IntVar(&f.pids, "pids-limit", 0, "limit of processes and threads")
	fl.Var(&f.disk, "disk", "limit of /workspace and /out together")
	fl.Var(&f.timeout, "timeout", "wall clock limit, such as 90s or 10m")
	fl.StringArrayVar(&f.labels, "label", nil, "label `K=V` for policy and log")
	fl.StringVar(&f.task, "task", "", "task `id` for policy and log")
	fl.StringVar(&f.agent, "agent", "", "agent `name` for policy and log")
	fl.BoolVarP(&f.interactive, "interactive", "i", false, "pass standard input on")
	fl.BoolVarP(&f.tty, "tty", "t", false, "allocate a terminal")
	fl.StringVarP(&f.output, "output", "o", "text", "text or json")
	fl.StringVar(&f.trace, "trace", "", "append the run's phases as JSON lines to this `file`")
	_ = fl.MarkHidden("trace")
	return cmd
}

func runTask(cmd *cobra.Command, f *runFlags, args []string) error {
	fail := func(err error) error { return &exitError{runner.ExitWarder, err} }
	switch {
	case f.output != "text" && f.output != "json":
		return fail(fmt.Errorf("run: -o %q; hint: use text or json", f.output))
	case f.tty && f.output == "json":
		return fail(errors.New("run: -t and -o json exclude each other"))
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	// A reader of our output that goes away must not kill us before the end of
	// the run: the write fails, and that ends the task's stream.
	signal.Ignore(syscall.SIGPIPE)
	err := startTask(ctx, cmd, f, args)
	if err != nil && f.output == "json" && !f.told {
		res := runner.Result{ExitCode: runner.ExitWarder, Cause: runner.CauseError, Detail: err.Error()}
		return errors.Join(err, json.NewEncoder(cmd.OutOrStdout()).Encode(res))
	}
	return err
}

func startTask(ctx context.Context, cmd *cobra.Command, f *runFlags, args []string) error {
	go runner.WarmCgroups()
	a, err := newApp(appOptions{config: f.config, policy: f.policy, oneShot: true, stderr: cmd.ErrOrStderr()})
	if err != nil {
		return &exitError{runner.ExitWarder, err}
	}
	return a.run(ctx, cmd, f, args)
}

// run executes one task on the opened parts and closes them.
func (a *app) run(ctx context.Context, cmd *cobra.Command, f *runFlags, args []string) (err error) {
	fail := func(err error) error { return &exitError{runner.ExitWarder, err} }
	defer func() {
		if cerr := a.close(); cerr != nil {
			err = errors.Join(err, fail(fmt.Errorf("close: %w", cerr)))
		}
	}()
	t, err := a.task(cmd, f, args)
	if err != nil {
		return fail(err)
	}
	// The sweep of dead runs begins when this one's sandbox is made, to be out of
	// its way, and at the latest now when there is none.
	sweep := sync.OnceValue(func() (wait func()) { return a.sweep(ctx, cmd.ErrOrStderr()) })
	defer func() { sweep()() }()
	if t.Trace, err = openTrace(f.trace); err != nil {
		return fail(err)
	}
	a.trace = t.Trace
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(sigs)
	t.Signals = sigs
	r := &runner.Runner{State: a.state, Log: a.log}
	r.Open = func(ctx context.Context) error {
		err := a.open(ctx)
		r.Proxy, r.Broker = a.proxy, a.broker
		return err
	}
	r.Ready = func(ctx context.Context) (*audit.Log, error) {
		sweep()
		defer settle(t.Limits.CPUs)
		return a.ready(ctx)
	}
	r.Outside = a.outside
	if f.image != "" {
		if r.Images, err = a.images(); err != nil {
			return fail(err)
		}
	}
	restore := func() {}
	if f.tty {
		t.Terminal, restore = callerTerminal(f.interactive)
	}
	res, rerr := r.Run(ctx, t)
	restore() // before a word of ours
	if f.output == "json" {
		if err := json.NewEncoder(cmd.OutOrStdout()).Encode(res); err != nil {
			return fail(fmt.Errorf("result: %w", err))
		}
		f.told = true
	}
	return outcome(res, rerr, cmd.ErrOrStderr())
}

// outcome turns the result into the exit code, with one line for a person where
// the task itself did not say why it ended.
func outcome(res runner.Result, err error, stderr io.Writer) error {
	tellRefused(res.Artifacts, stderr)
	if err != nil {
		return &exitError{res.ExitCode, withHint(fmt.Errorf("run %s: %w", res.RunID, err))}
	}
	if why, failed := strings.CutPrefix(res.Network, runner.NetworkSocket+": "); failed {
		fmt.Fprintf(stderr, "warder: the run had no network card (%s), and a Unix socket in its place; hint: warder doctor\n", why)
	}
	switch res.Cause {
	case runner.CauseTimeout:
		fmt.Fprintln(stderr, "warder: the time limit ended the run; hint: --timeout")
	case runner.CauseOOM:
		fmt.Fprintln(stderr, "warder: the memory limit ended the run; hint: --memory")
	}
	if res.ExitCode != 0 {
		return &exitError{res.ExitCode, errors.New("")}
	}
	return nil
}

// task builds the task from flags over configuration over defaults.
func (a *app) task(cmd *cobra.Command, f *runFlags, args []string) (runner.Task, error) {
	t := runner.Task{
		Run:  identity.Run{ID: identity.NewRunID(), Task: f.task, Agent: f.agent, User: callerName()},
		Argv: args, Workdir: f.workdir, User: f.user, UIDRange: a.cfg.Sandbox.UIDRange, Network: a.cfg.Sandbox.Network,
		Image: f.image, Artifacts: f.artifacts, ArtifactsDir: f.artifactsDir, Credentials: f.credentials, Limits: a.limits(cmd, f),
	}
	var err error
	if t.Run.Labels, err = pairs("label", f.labels); err != nil {
		return t, err
	}
	env, err := pairs("env", f.env)
	if err != nil {
		return t, err
	}
	for k, v := range maps.All(env) {
		t.Env = append(t.Env, k+"="+v)
	}
	for _, s := range f.inputs {
		in, err := runner.ParseInput(s)
		if err != nil {
			return t, err
		}
		if in.FromStdin() {
			t.InputStdin = os.Stdin
		}
		t.Inputs = append(t.Inputs, in)
	}
	if t.ArtifactsDir != "" && len(t.Artifacts) == 0 {
		t.Artifacts = []string{"/out"}
	}
	if t.ArtifactsDir == "" {
		t.ArtifactsDir = "artifacts"
	}
	if cmd.Flags().Changed("entrypoint") {
		t.Entrypoint = &f.entrypoint
	}
	if f.interactive {
		t.Stdin = os.Stdin
	}
	if f.output == "text" {
		t.Stdout, t.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	}
	return t, nil
}

func (a *app) limits(cmd *cobra.Command, f *runFlags) runner.Limits {
	s := a.cfg.Sandbox
	l := runner.Limits{
		CPUs: s.CPUs, Memory: int64(s.Memory), PIDs: s.PIDs, Disk: int64(s.Disk), Timeout: time.Duration(s.Timeout),
		Strict: s.Limits == config.LimitsStrict, Asked: map[string]bool{},
	}
	set := func(flag, name string, apply func()) {
		if cmd.Flags().Changed(flag) {
			l.Asked[name] = true
			apply()
		}
	}
	set("cpus", "cpus", func() { l.CPUs = f.cpus })
	set("memory", "memory", func() { l.Memory = int64(f.memory) })
	set("pids-limit", "pids", func() { l.PIDs = f.pids })
	set("disk", "disk", func() { l.Disk = int64(f.disk) })
	set("timeout", "timeout", func() { l.Timeout = time.Duration(f.timeout) })
	return l
}

// pairs reads NAME=VALUE flags. A bare NAME is refused: nothing of the host's
// environment is passed on by name alone.
func pairs(flag string, list []string) (map[string]string, error) {
	m := map[string]string{}
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			hint := "write it out, such as --" + flag + " team=platform"
			if flag == "env" {
				hint = "the host's environment is never passed on"
			}
			return nil, fmt.Errorf("run: --%s wants NAME=VALUE; hint: %s", flag, hint)
		}
		m[k] = v
	}
	return m, nil
}

func callerName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid-%d", os.Getuid())
}

// openTrace appends phases to a file as they happen.
func openTrace(path string) (func(runner.Phase), error) {
	if path == "" {
		return nil, nil
	}
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	var mu sync.Mutex
	return func(p runner.Phase) {
		mu.Lock()
		defer mu.Unlock()
		_ = json.NewEncoder(w).Encode(p) // a trace that cannot be written must not stop the run
	}, nil
}
