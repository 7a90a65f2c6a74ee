package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"warder/policies"
)

// maxInputDocument bounds what is read as an input document, in bytes.
const maxInputDocument = 64 << 20

// inputFlags are common to the verbs that judge an input document.
type inputFlags struct {
	policyFlags
	input string
}

func (f *inputFlags) add(cmd *cobra.Command) {
	f.policyFlags.add(cmd)
	f.addFloor(cmd)
	cmd.Flags().StringVarP(&f.input, "input", "i", "-", "input document `file`, - for standard input")
}

// open loads the policy and reads the document.
func (f *inputFlags) open(cmd *cobra.Command, args []string, policyPathOf func(string) (string, error)) (*policies.Engine, []byte, error) {
	options, err := f.options(args, policyPathOf)
	if err != nil {
		return nil, nil, err
	}
	engine, err := policies.Load(options)
	if err != nil {
		return nil, nil, unusable(err)
	}
	source := cmd.InOrStdin()
	if f.input != "-" {
		file, err := os.Open(f.input)
		if err != nil {
			return nil, nil, unusable(fmt.Errorf("policy: input: %w", err))
		}
		defer file.Close()
		source = file
	}
	document, err := io.ReadAll(io.LimitReader(source, maxInputDocument+1))
	if err == nil && len(document) > maxInputDocument {
		err = fmt.Errorf("larger than %d MiB", maxInputDocument>>20)
	}
	if err != nil {
		return nil, nil, unusable(fmt.Errorf("policy: input: %w", err))
	}
	return engine, document, nil
}

func newPolicyEvalCmd(policyPathOf func(string) (string, error)) *cobra.Command {
	var flags inputFlags
	cmd := &cobra.Command{
		Use:   "eval [DIR]",
		Short: "Judge one input document",
		Long: `Eval judges an input document, JSON as policies/schemas/input.json describes it,
with the engine that judges requests, and prints the decision. What the document
does not hold is undefined for the policy; credentials are offered only when the
document lists them.

Exit codes: 0 judged, whatever the verdict; 1 the policy or the document is not usable.`,
		Example: `  echo '{"stage": "request", "request": {"method": "GET", "host": "api.github.com", "path": "/user"}}' |
    warder policy eval ./policies`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			engine, document, err := flags.open(cmd, args, policyPathOf)
			if err != nil {
				return err
			}
			d, err := engine.DecideDocument(cmd.Context(), document)
			if err != nil {
				return unusable(err)
			}
			if flags.output == "json" {
				err = writeJSON(cmd.OutOrStdout(), reportOf(d))
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), decisionText(d))
			}
			if err != nil {
				return unusable(err)
			}
			return nil
		},
	}
	flags.add(cmd)
	return cmd
}

// decisionReport is the JSON of a decision.
type decisionReport struct {
	Verdict      policies.Verdict `json:"verdict"`
	Reason       string           `json:"reason"`
	Rule         string           `json:"rule"`
	Rules        []string         `json:"rules"`
	Credential   string           `json:"credential"`
	Limits       []policies.Limit `json:"limits"`
	Message      string           `json:"message"`
	Hint         string           `json:"hint"`
	EncodedSlash bool             `json:"encoded_slash"`
	Scope        string           `json:"scope,omitempty"`
	Timeout      string           `json:"timeout,omitempty"`
	Detail       string           `json:"detail,omitempty"`
	Revision     string           `json:"revision"`
	Digest       string           `json:"digest"`
}

func reportOf(d policies.Decision) decisionReport {
	r := decisionReport{
		Verdict: d.Verdict, Reason: d.Reason, Rule: d.Rule, Rules: d.Rules, Credential: d.Credential, Limits: d.Limits,
		Message: d.Message, Hint: d.Hint, EncodedSlash: d.EncodedSlash, Scope: d.Scope, Timeout: d.Timeout,
		Detail: d.Detail, Revision: d.Revision, Digest: d.Digest,
	}
	if r.Rules == nil {
		r.Rules = []string{}
	}
	if r.Limits == nil {
		r.Limits = []policies.Limit{}
	}
	return r
}

// decisionText is a decision on one line.
func decisionText(d policies.Decision) string {
	var b strings.Builder
	b.WriteString(string(d.Verdict))
	for _, part := range []struct{ name, value string }{
		{"reason", d.Reason}, {"rule", d.Rule}, {"credential", d.Credential}, {"message", d.Message}, {"hint", d.Hint}, {"detail", d.Detail},
	} {
		if part.value != "" {
			fmt.Fprintf(&b, " %s=%q", part.name, part.value)
		}
	}
	return b.String()
}

func newPolicyExplainCmd(policyPathOf func(string) (string, error)) *cobra.Command {
	var flags inputFlags
	var decision, auditDir string
	cmd := &cobra.Command{
		Use:   "explain [DIR]",
		Short: "Say which rules matched an input document, and where the others stopped",
		Long: `Explain judges an input document as eval does, and says of every rule whether it
matched or on which condition it stopped; the rules that came nearest first.
With --decision it takes what the audit log keeps of a decision: the input, in
which what may be a secret is masked, and the policy that was in force.

Exit codes: 0 explained, 1 the policy or the document is not usable.`,
		Example: `  warder policy explain ./policies --input request.json
  warder policy explain --decision 01a228ed-629b-7429-9d3c-6a47c71feb19`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var engine *policies.Engine
			var document []byte
			var err error
			if decision == "" {
				engine, document, err = flags.open(cmd, args, policyPathOf)
			} else {
				engine, document, err = recordedDecision(cmd, flags, args, auditDir, decision)
			}
			if err != nil {
				return err
			}
			x, err := engine.Explain(cmd.Context(), document)
			if err != nil {
				return unusable(err)
			}
			if flags.output == "json" {
				err = writeJSON(cmd.OutOrStdout(), struct {
					Decision decisionReport       `json:"decision"`
					Rules    []policies.RuleTrace `json:"rules"`
				}{reportOf(x.Decision), x.Rules})
			} else {
				err = writeExplanation(cmd.OutOrStdout(), x)
			}
			if err != nil {
				return unusable(err)
			}
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&decision, "decision", "", "`id` of a decision in the audit log")
	cmd.Flags().StringVar(&auditDir, "audit", "", "audit `folder`, in place of the configuration's")
	return cmd
}

func writeExplanation(w io.Writer, x policies.Explanation) error {
	var b strings.Builder
	b.WriteString(decisionText(x.Decision) + "\n")
	for _, r := range nearestFirst(x.Rules) {
		name := cmp.Or(r.Rule, "(computed)")
		if r.Matched {
			fmt.Fprintf(&b, "\nmatched  %s %s (%s:%d)\n", r.Kind, name, r.File, r.Line)
			continue
		}
		fmt.Fprintf(&b, "\n%d of %d   %s %s (%s:%d)\n", r.Held, r.Conditions, r.Kind, name, r.File, r.Line)
		if r.Failed == nil {
			continue
		}
		fmt.Fprintf(&b, "  stopped at %s:%d: %s\n", r.Failed.File, r.Failed.Line, r.Failed.Text)
		for _, v := range r.Failed.Values {
			fmt.Fprintf(&b, "    %s = %s\n", v.Path, v.Value)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// nearestFirst puts rules that matched before those that did not, and those
// before the others of which more conditions held.
func nearestFirst(rules []policies.RuleTrace) []policies.RuleTrace {
	list := slices.Clone(rules)
	slices.SortStableFunc(list, func(a, b policies.RuleTrace) int {
		if a.Matched != b.Matched {
			if a.Matched {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.Held*max(a.Conditions, 1), a.Held*max(b.Conditions, 1))
	})
	return list
}
