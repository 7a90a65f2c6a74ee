package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"warder/policies"
)

func newPolicyBundleCmd(policyPathOf func(string) (string, error)) *cobra.Command {
	var flags policyFlags
	var keyFile, algorithm, out string
	cmd := &cobra.Command{
		Use:   "bundle [DIR]",
		Short: "Build and sign a bundle of a policy folder",
		Long: `Bundle makes a signed OPA bundle of the folder, without its tests, for
policy.bundle of the configuration. "opa build -b DIR --signing-key …" does too.

Exit codes: 0 done, 1 the folder does not load, or the key cannot be used.`,
		Example: "  warder policy bundle ./policies --key bundle.key --algorithm ES256 --out bundle.tar.gz",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := flags.folder(args, policyPathOf)
			if err != nil {
				return err
			}
			if keyFile == "" || out == "" {
				return unusable(errors.New("policy bundle: --key and --out are required"))
			}
			key, err := os.ReadFile(keyFile)
			if err != nil {
				return unusable(fmt.Errorf("policy bundle: %w", err))
			}
			content, err := policies.BuildBundle(dir, key, algorithm)
			if err != nil {
				return unusable(err)
			}
			if err := os.WriteFile(out, content, 0o644); err != nil {
				return unusable(fmt.Errorf("policy bundle: %w", err))
			}
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&keyFile, "key", "", "private key `file` (PEM)")
	cmd.Flags().StringVar(&algorithm, "algorithm", "RS256", "`name` of the signature's algorithm (RFC 7518)")
	cmd.Flags().StringVar(&out, "out", "", "bundle `file` to write")
	return cmd
}
