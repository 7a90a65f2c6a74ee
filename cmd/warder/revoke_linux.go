package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"warder/broker"
	"warder/runner"
)

type revokeFlags struct {
	config, run, credential, output string
	all                             bool
	timeout                         time.Duration
}

// revokeResult is what `revoke -o json` prints.
type revokeResult struct {
	Stopped string           `json:"stopped"` // whose use has ended: "run ID", "credential NAME" or "all"
	Revoked []broker.Outcome `json:"revoked"`
	Error   string           `json:"error,omitempty"` // what is not confirmed revoked
}

func newRevokeCmd() *cobra.Command {
	var f revokeFlags
	cmd := &cobra.Command{
		Use:   "revoke (--run RUN | --credential NAME | --all)",
		Short: "Stop the use of credentials by runs that live, and revoke them",
		Long: `Revoke ends the use of credentials: of a run, of one credential in every run, or of
everything. Requests with them are refused, and answers under way are cut within a
second. Then it revokes at Vault what the state folder names: with --run and --all the runs' leases and tokens, with --credential its
leases. The runs go on; runs that begin later are not affected.

Exit codes: 0 done, 1 not possible, 2 the use has ended but not everything is
confirmed revoked.`,
		Example: `  warder revoke --run r-01a228da-70c1-79c9-b8f5-52c3dbd1145e
  warder revoke --credential github-read
  warder revoke --all -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return revokeNow(cmd, f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.config, "config", "", "configuration `file`")
	fl.StringVar(&f.run, "run", "", "the `run`")
	fl.StringVar(&f.credential, "credential", "", "the `name` of a credential")
	fl.BoolVar(&f.all, "all", false, "everything")
	fl.StringVarP(&f.output, "output", "o", "text", "text or json")
	fl.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long revocation is tried for")
	cmd.MarkFlagsOneRequired("run", "credential", "all")
	cmd.MarkFlagsMutuallyExclusive("run", "credential", "all")
	return cmd
}

func revokeNow(cmd *cobra.Command, f revokeFlags) error {
	if f.output != "text" && f.output != "json" {
		return badOutput(f.output)
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	a, err := openApp(ctx, appOptions{config: f.config, oneShot: true, stderr: cmd.ErrOrStderr()})
	if err != nil {
		return &exitError{exitFailure, err}
	}
	res, err := a.revoke(ctx, f)
	if res == nil {
		return &exitError{exitFailure, errors.Join(fmt.Errorf("revoke: %w", err), a.close())}
	}
	if err = errors.Join(err, a.close()); err != nil {
		res.Error = err.Error()
	}
	perr := printAs(cmd.OutOrStdout(), f.output, res, func(w io.Writer) {
		fmt.Fprintln(w, "stopped\t"+res.Stopped)
		for _, o := range res.Revoked {
			if o.LeaseID != "" {
				fmt.Fprintln(w, "revoked\tlease "+o.LeaseID)
			} else {
				fmt.Fprintln(w, "revoked\ttoken "+o.Accessor)
			}
		}
	})
	switch {
	case err != nil && f.output == "json":
		return &exitError{2, nil}
	case err != nil:
		return &exitError{2, fmt.Errorf("revoke: %w", err)}
	}
	return perr
}

// revoke stops first, so that nothing is fetched anew meanwhile. A nil result
// says that nothing was stopped.
func (a *app) revoke(ctx context.Context, f revokeFlags) (*revokeResult, error) {
	res := &revokeResult{Stopped: "all", Revoked: []broker.Outcome{}}
	switch {
	case f.run != "":
		res.Stopped = "run " + f.run
		if _, err := a.state.Journals(f.run); err != nil {
			return nil, err
		}
	case f.credential != "":
		res.Stopped = "credential " + f.credential
		if _, ok := a.cfg.Credentials[f.credential]; !ok {
			return nil, fmt.Errorf("credential %q is not configured; hint: `warder credential list` shows the names", f.credential)
		}
	}
	if err := a.state.Stop(f.run, f.credential); err != nil {
		return nil, err
	}
	entries, err := a.state.Journals(f.run)
	if errors.Is(err, runner.ErrNoRun) { // it ended meanwhile, and with it what it had
		return res, nil
	}
	if err != nil {
		return res, err
	}
	done, err := a.broker.Revoke(ctx, entries, f.credential)
	res.Revoked = append(res.Revoked, done...)
	return res, err
}
