package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"path/filepath"

	"github.com/spf13/cobra"

	"warder/internal/config"
)

// Exit codes of the verbs other than run (docs/cli.md).
const (
	exitOK      = 0
	exitFailure = 1 // could not do it
	exitUsage   = 1
)

// execute runs one command line and returns the exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	// What libraries print there may quote an upstream, and so a credential that
	// it sent back (I2): net/http tells of bytes that nobody asked for.
	log.SetOutput(io.Discard)
	root := newRootCmd()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	var coded interface{ ExitCode() int }
	code := exitUsage
	if errors.As(err, &coded) {
		code = coded.ExitCode()
	} else if c, _, ferr := root.Find(args); ferr == nil && (c.Name() == "run" || c.Name() == "demo") {
		code = exitRunFailed // a wrong flag of run is our failure, not the task's
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(stderr, "warder:", msg)
	}
	return code
}

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "warder",
		Short: "Run untrusted code in a sandbox whose only way out is judged, credentialed and recorded",
		Long: `Warder runs a command in a fresh gVisor sandbox. Its only way out is a proxy that
judges every request with Rego, adds scoped short-lived credentials on the way
out, so that no secret enters the sandbox, and keeps a record that proves itself.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	root.AddCommand(newRunCmd(), newProxyCmd(), newDemoCmd(), newPsCmd(), newRmCmd(), newGcCmd(), newRevokeCmd(), newDoctorCmd(), newVersionCmd(), newConfigCmd(),
		newAuditCmd(auditDir), newPolicyCmd(policyPath), newCredentialCmd(loadCredentials), newVaultCmd(loadCredentials))
	return root
}

// auditDir is the audit folder that --dir or the configuration names.
func auditDir(flagDir, flagConfig string) (string, error) {
	if flagDir != "" {
		return flagDir, nil
	}
	cfg, err := config.LoadFound(flagConfig)
	if err != nil {
		return "", err
	}
	return cfg.Audit.Dir, nil
}

// policyPath is the policy folder that the configuration names.
func policyPath(flagConfig string) (string, error) {
	cfg, err := config.LoadFound(flagConfig)
	if err != nil {
		return "", err
	}
	if cfg.Policy.Path == "" {
		return "", errors.New("no policy folder; hint: name one, or set policy.path in warder.yaml")
	}
	return cfg.Policy.Path, nil
}

func loadCredentials(flagConfig string) (*config.Config, string, error) {
	cfg, err := config.LoadFound(flagConfig)
	if err != nil {
		return nil, "", err
	}
	return cfg, keyDir(cfg), nil
}

// keyDir is where keys of local credentials live.
func keyDir(*config.Config) string { return filepath.Join(config.StateDir(), "credentials") }
