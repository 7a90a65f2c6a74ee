package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"warder/policies"
)

func newPolicyFmtCmd(policyPathOf func(string) (string, error)) *cobra.Command {
	var flags policyFlags
	var check bool
	cmd := &cobra.Command{
		Use:   "fmt [DIR]",
		Short: "Lay out the Rego of a policy folder",
		Long: `Fmt lays out every *.rego file of the folder as "opa fmt" does, and names those
that it changed.

Exit codes: 0 done, 1 a file does not parse, 2 with --check: a file would change.`,
		Example: `  warder policy fmt ./policies
  warder policy fmt --check ./policies`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := flags.folder(args, policyPathOf)
			if err != nil {
				return err
			}
			files, err := policies.Format(dir)
			if err != nil {
				return unusable(err)
			}
			changed := []string{}
			for _, f := range files {
				if !f.Changed {
					continue
				}
				changed = append(changed, f.Path)
				if check {
					continue
				}
				if err := f.Write(); err != nil {
					return unusable(fmt.Errorf("policy fmt: %w", err))
				}
			}
			if err := reportFormatted(cmd, changed, flags.output); err != nil {
				return unusable(err)
			}
			if check && len(changed) > 0 {
				return &exitError{exitPolicyFailed, fmt.Errorf("policy fmt: %s: %d files are laid out otherwise\nhint: warder policy fmt %s", dir, len(changed), dir)}
			}
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&check, "check", false, "change nothing; exit 2 if a file would change")
	return cmd
}

func reportFormatted(cmd *cobra.Command, changed []string, output string) error {
	if output == "json" {
		return writeJSON(cmd.OutOrStdout(), struct {
			Changed []string `json:"changed"`
		}{changed})
	}
	for _, name := range changed {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), name); err != nil {
			return err
		}
	}
	return nil
}
