package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"warder/broker"
	"warder/internal/config"
	"warder/internal/identity"
	"warder/policies"
	"warder/runner"
	"warder/runner/image"
)

func newPsCmd() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "ps",
		Short:   "List the runs that live, and the dead ones that no start has cleaned up yet",
		Example: "  warder ps -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := runner.OpenState(config.StateDir())
			if err != nil {
				return err
			}
			runs, err := state.List()
			if err != nil {
				return err
			}
			return printAs(cmd.OutOrStdout(), output, runs, func(w io.Writer) {
				fmt.Fprintln(w, "RUN\tSTATE\tSTARTED\tCREDENTIALS")
				for _, r := range runs {
					s := "dead"
					if r.Live {
						s = "live"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", r.ID, s, r.Started.Format(time.RFC3339), r.Credentials)
				}
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// printAs writes v as JSON, or a table.
func printAs(w io.Writer, format string, v any, table func(io.Writer)) error {
	switch format {
	case "json":
		return json.NewEncoder(w).Encode(v)
	case "text":
		tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		table(tw)
		return tw.Flush()
	}
	return fmt.Errorf("-o %q; hint: use text or json", format)
}

func newRmCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "rm RUN…",
		Short:   "End runs: kill what lives, take back and remove what is left",
		Example: "  warder rm r-01a228da-70c1-79c9-b8f5-52c3dbd1145e",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return withRevoker(file, cmd.ErrOrStderr(), func(ctx context.Context, state *runner.StateDir, revoke runner.Revoker) error {
				var errs []error
				for _, id := range ids {
					if err := state.Remove(ctx, id, revoke); err != nil {
						errs = append(errs, fmt.Errorf("rm: %w", err))
						continue
					}
					fmt.Fprintln(cmd.OutOrStdout(), id)
				}
				return errors.Join(errs...)
			})
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `file`")
	return cmd
}

func newGcCmd() *cobra.Command {
	var file string
	var images bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Clean up after runs whose process died",
		Long:  "Gc does at once what every start does beside its run: it ends what dead runs left, and has their credentials revoked.\nWith --images it also removes every cached image that no run uses.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withRevoker(file, cmd.ErrOrStderr(), func(ctx context.Context, state *runner.StateDir, revoke runner.Revoker) error {
				rep, err := state.Sweep(ctx, revoke)
				for _, id := range rep.Ended {
					fmt.Fprintln(cmd.OutOrStdout(), id)
				}
				if err != nil {
					return fmt.Errorf("gc: %d runs unconfirmed: %w", len(rep.Unconfirmed), err)
				}
				if !images {
					return nil
				}
				n, err := image.NewStore(image.Options{Dir: config.ImageDir()}).Prune(ctx)
				fmt.Fprintf(cmd.ErrOrStderr(), "%d images removed\n", n)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `file`")
	cmd.Flags().BoolVar(&images, "images", false, "remove cached images too")
	return cmd
}

// withRevoker opens state and log and gives f what takes credentials back. The
// log is opened because that closes the records of dead runs.
func withRevoker(file string, stderr io.Writer, f func(context.Context, *runner.StateDir, runner.Revoker) error) error {
	ctx := context.Background()
	a, err := openApp(ctx, appOptions{config: file, stderr: stderr})
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, a.state, a.broker.Recover), a.close())
}

func newDoctorCmd() *cobra.Command {
	var file, output, image string
	var trust bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what a sandbox needs, with a fix for each failing line",
		Long: `Doctor checks the host, the configuration and the policy, and tests a
sandbox and its network. With --trust it tries the HTTPS clients of a root file system instead, and
prints which of them believe the CA of their run, and the variables that are set.
Exit codes: 0 everything needed is there, 2 something is missing.`,
		Example: "  warder doctor\n  warder doctor -o json\n  warder doctor --trust --image registry.example/python:3",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if trust {
				return reportTrust(file, image, output, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			checks := runner.CheckHost("/proc", config.StateDir())
			checks = append(checks, checkSettings(file)...)
			if runner.Verdict(checks) == nil {
				checks = append(checks, checkSandbox(file)...)
			}
			err := printAs(cmd.OutOrStdout(), output, checks, func(w io.Writer) {
				for _, c := range checks {
					fmt.Fprintf(w, "%s\t%s\t%s\n", c.Status, c.Name, c.Detail)
					if c.Fix != "" {
						fmt.Fprintf(w, "\t\tfix: %s\n", c.Fix)
					}
				}
			})
			if err != nil {
				return err
			}
			if err := runner.Verdict(checks); err != nil {
				return &exitError{2, err}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `file`")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&trust, "trust", false, "try the HTTPS clients of a root file system")
	cmd.Flags().StringVar(&image, "image", "", "with --trust: that of this `reference`, in place of the host's /usr")
	return cmd
}

// checkSettings looks at configuration, credentials and policy.
func checkSettings(file string) []runner.Check {
	cfg, err := config.LoadFound(file)
	if err != nil {
		return []runner.Check{{Name: "configuration", Status: runner.CheckFail, Detail: err.Error(), Fix: "warder config check"}}
	}
	if cfg.File == "" {
		return []runner.Check{{Name: "configuration", Status: runner.CheckWarn, Detail: "there is none: every request is denied", Fix: "write ~/.config/warder/warder.yaml"}}
	}
	checks := []runner.Check{{Name: "configuration", Status: runner.CheckOK, Detail: cfg.File}}
	if _, err := broker.New(broker.Options{Credentials: cfg.Credentials, ConfigFile: cfg.File, StateDir: keyDir(cfg)}); cfg.Vault == nil && err != nil {
		checks = append(checks, runner.Check{Name: "credentials", Status: runner.CheckFail, Detail: err.Error(), Fix: "warder credential list"})
	}
	if cfg.Policy.Path == "" {
		return append(checks, runner.Check{Name: "policy", Status: runner.CheckWarn, Detail: "there is none: every request is denied", Fix: "set policy.path"})
	}
	e, err := policies.Load(policies.Options{Dir: cfg.Policy.Path, Mode: cfg.Policy.Mode})
	if err != nil {
		return append(checks, runner.Check{Name: "policy", Status: runner.CheckFail, Detail: err.Error(), Fix: "warder policy check"})
	}
	return append(checks, runner.Check{Name: "policy", Status: runner.CheckOK, Detail: cfg.Policy.Path + ", revision " + e.Revision()})
}

// checkSandbox runs a command that does nothing.
func checkSandbox(file string) []runner.Check {
	c := runner.Check{Name: "sandbox", Status: runner.CheckFail, Fix: "see the detail; the checks above passed"}
	ctx := context.Background()
	a, err := openApp(ctx, appOptions{config: file, stderr: io.Discard})
	if err != nil {
		c.Detail = err.Error()
		return []runner.Check{c}
	}
	r := &runner.Runner{Proxy: a.proxy, Broker: a.broker, State: a.state, Log: a.log, Ready: a.ready}
	checks := r.SelfTest(ctx, runner.Task{
		Run:      identity.Run{ID: identity.NewRunID(), Task: "doctor", User: callerName()},
		UIDRange: a.cfg.Sandbox.UIDRange, Network: a.cfg.Sandbox.Network, Limits: runner.Limits{Timeout: time.Minute},
	})
	if err := a.close(); err != nil {
		c.Detail = err.Error()
		return []runner.Check{c}
	}
	return checks
}
