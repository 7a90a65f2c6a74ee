package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"warder/audit"
)

func newAuditProveCmd(f *auditFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "prove ID",
		Short: "Prove one record to somebody who has only the public key",
		Long: `Prove prints the record with that id, the checkpoint that signs for its stream, and
the path between them in the stream's Merkle tree. Nothing else of the log is shown.`,
		Example: `  warder audit prove 01a228ed-62b0-7d56-a3eb-f6f110c2c998 > proof.json`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := f.open()
			if err != nil {
				return err
			}
			p, err := audit.Prove(cmd.Context(), dir, args[0])
			if err != nil {
				return unread(err)
			}
			b, err := json.MarshalIndent(p, "", "  ")
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", b)
			}
			if err != nil {
				return unread(err)
			}
			return nil
		},
	}
}

func newAuditCheckProofCmd() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use:   "check-proof FILE",
		Short: "Check what prove printed",
		Long: `Check-proof needs the proof and the public key of the log's owner (a file of the
log's keys folder, got from somebody who is trusted), and prints the record.

Exit codes: 0 it holds, 2 it does not, 1 could not read.`,
		Example: `  warder audit check-proof proof.json --key warder-audit-fa6c8c0c.pub`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := os.ReadFile(args[0])
			if err != nil {
				return unread(err)
			}
			public, err := os.ReadFile(key)
			if err != nil {
				return unread(err)
			}
			p, err := audit.ParseProof(b)
			if err != nil {
				return unread(err)
			}
			r, err := audit.CheckProof(p, string(public))
			if err != nil {
				return &exitError{exitAuditFound, err}
			}
			if err := audit.Tell(cmd.OutOrStdout(), r); err != nil {
				return unread(err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "public key `file`")
	if err := cmd.MarkFlagRequired("key"); err != nil {
		panic(err) // the flag is defined on the line above
	}
	return cmd
}
