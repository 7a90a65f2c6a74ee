package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"warder/broker"
	"warder/internal/config"
)

// newVaultCmd returns the verbs for those who operate Vault.
func newVaultCmd(load func(flagConfig string) (*config.Config, string, error)) *cobra.Command {
	cmd := &cobra.Command{Use: "vault", Short: "What Vault needs for this configuration", Args: cobra.NoArgs}
	var file, output string
	var show, check bool
	setup := &cobra.Command{
		Use:   "setup (--print | --check)",
		Short: "Print, or check, the policies, token role and login that Vault needs",
		Long: `Setup --print derives from the configuration what an operator applies to Vault, as a
shell script that is to be read first: policies, engines, token role, login. It
asks nobody.

Setup --check logs in and does what a run would do with each credential of Vault,
once, and takes everything back. It also tries that the broker's own token reads
no stored value. Each failing line has a fix. No value is shown.

Exit codes: 0 good, 1 not possible with this configuration, 2 something is missing.`,
		Example: "  warder vault setup --print | less\n  warder vault setup --check -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return badOutput(output)
			}
			b, err := openBroker(load, file)
			if err != nil {
				return &exitError{exitFailure, err}
			}
			if show {
				return printSetup(cmd.OutOrStdout(), output, b)
			}
			return checkSetup(cmd, output, b)
		},
	}
	fl := setup.Flags()
	fl.StringVar(&file, "config", "", "configuration `file`")
	fl.BoolVar(&show, "print", false, "print what to apply")
	fl.BoolVar(&check, "check", false, "check what is applied")
	fl.StringVarP(&output, "output", "o", "text", "text or json")
	setup.MarkFlagsOneRequired("print", "check")
	setup.MarkFlagsMutuallyExclusive("print", "check")
	cmd.AddCommand(setup)
	return cmd
}

func printSetup(w io.Writer, output string, b *broker.Broker) error {
	s, err := b.Setup()
	if err != nil {
		return &exitError{exitFailure, err}
	}
	if output == "json" {
		return printJSON(w, s)
	}
	var out strings.Builder
	out.WriteString("# What Vault needs for this configuration. Read it before you apply it.\nset -e\n")
	for _, p := range s.Policies {
		fmt.Fprintf(&out, "\nvault policy write %s - <<'EOF'\n%sEOF\n", p.Name, p.HCL)
	}
	if len(s.Engines) > 0 {
		out.WriteString("\n# Where they are not there yet:\n")
	}
	for _, e := range s.Engines {
		out.WriteString("# " + e + "\n")
	}
	out.WriteString("\n")
	for _, c := range s.Commands {
		if strings.HasPrefix(c, "vault auth enable") {
			c = "# " + c // fails where it is there
		}
		out.WriteString(c + "\n")
	}
	_, err = io.WriteString(w, out.String())
	return err
}

func checkSetup(cmd *cobra.Command, output string, b *broker.Broker) error {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	checks := b.CheckSetup(ctx, &memoryJournal{})
	cctx, stop := context.WithTimeout(context.WithoutCancel(ctx), credentialTimeout)
	defer stop()
	err := b.Close(cctx)
	bad := 0
	for _, c := range checks {
		if !c.OK {
			bad++
		}
	}
	if output == "json" {
		err = errors.Join(err, printJSON(cmd.OutOrStdout(), checks))
	} else {
		err = errors.Join(err, tableOfChecks(cmd.OutOrStdout(), checks))
	}
	if bad > 0 {
		err = errors.Join(err, fmt.Errorf("vault setup: %d of %d checks failed", bad, len(checks)))
	}
	if err != nil {
		return &exitError{2, err}
	}
	return nil
}

func tableOfChecks(w io.Writer, checks []broker.SetupCheck) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, c := range checks {
		state := "ok"
		if !c.OK {
			state = "fail"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", state, c.Name, c.Detail)
		if c.Fix != "" {
			fmt.Fprintf(tw, "\t\tfix: %s\n", c.Fix)
		}
	}
	return tw.Flush()
}
