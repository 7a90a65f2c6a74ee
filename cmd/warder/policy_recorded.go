package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"warder/audit"
	"warder/internal/config"
	"warder/policies"
)

// recordedDecision finds what the audit log keeps of one decision.
func recordedDecision(cmd *cobra.Command, flags inputFlags, args []string, dir, id string) (*policies.Engine, []byte, error) {
	if len(args) > 0 || flags.floor != "" || cmd.Flags().Changed("input") {
		return nil, nil, unusable(errors.New("policy explain: --decision takes policy and input from the audit log"))
	}
	if flags.output != "text" && flags.output != "json" {
		return nil, nil, unusable(fmt.Errorf("policy: -o %q\nhint: use text or json", flags.output))
	}
	if dir == "" {
		cfg, err := config.LoadFound(flags.config)
		if err != nil {
			return nil, nil, unusable(err)
		}
		dir = cfg.Audit.Dir
	}
	found, err := findDecision(cmd.Context(), dir, id)
	if err != nil {
		return nil, nil, unusable(err)
	}
	document, err := audit.ReadInput(dir, found.InputRef)
	if err != nil {
		return nil, nil, unusable(err)
	}
	engine, err := policies.LoadRecorded(filepath.Join(dir, "policies", strings.TrimPrefix(found.Digest, "sha256:")), found.Digest)
	if err != nil {
		return nil, nil, unusable(err)
	}
	if bytes.Contains(document, []byte(policies.Masked)) {
		fmt.Fprintln(cmd.ErrOrStderr(), "warder: policy explain: parts of the input are masked: conditions on them are not decidable")
	}
	return engine, document, nil
}

func findDecision(ctx context.Context, dir, id string) (*audit.Policy, error) {
	for r, err := range audit.Read(ctx, dir, audit.Filter{}) {
		if err != nil || r.Policy == nil || r.Policy.DecisionID != id {
			continue // a line that is no record is for verify to tell
		}
		if r.Policy.InputRef == "" || r.Policy.Digest == "" {
			return nil, fmt.Errorf("policy explain: decision %s: its input was not kept", id)
		}
		return r.Policy, nil
	}
	return nil, fmt.Errorf("policy explain: decision %s is not in %s\nhint: denials and records have a decision_id", id, dir)
}
