package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"warder/internal/config"
	"warder/policies"
)

// Exit codes of the policy verbs, fixed: scripts rely on them.
const (
	exitPolicyUnusable = 1 // does not load or compile; tests could not run
	exitPolicyFailed   = 2 // loads, but a check or test failed, or there was no test
)

// newPolicyCmd is `warder policy`. policyPathOf names the folder when none is
// given; flagConfig is the value of --config. Results go to stdout, talk to stderr.
func newPolicyCmd(policyPathOf func(flagConfig string) (string, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, test, explain and document policies",
		Long: `The policy verbs judge a folder of Rego with the engine that judges requests,
so no other program is needed. They work without a configuration.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(
		newPolicyCheckCmd(policyPathOf), newPolicyTestCmd(policyPathOf), newPolicyFmtCmd(policyPathOf),
		newPolicyEvalCmd(policyPathOf), newPolicyExplainCmd(policyPathOf), newPolicyDocsCmd(policyPathOf),
		newPolicyBundleCmd(policyPathOf),
	)
	return cmd
}

// policyFlags are common to the policy verbs.
type policyFlags struct {
	config, output, floor string
}

// addFloor is for the verbs that judge with the operator's floor.
func (f *policyFlags) addFloor(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.floor, "floor", "", "the operator's policy `folder`, in place of the configuration's")
}

// options name all that is loaded. A folder given by hand stands alone, except
// for --floor; without one it is what the configuration names.
func (f *policyFlags) options(args []string, policyPathOf func(string) (string, error)) (policies.Options, error) {
	dir, err := f.folder(args, policyPathOf)
	if err != nil {
		return policies.Options{}, err
	}
	o := policies.Options{Dir: dir, Floor: f.floor}
	if len(args) == 1 {
		return o, nil
	}
	cfg, err := config.LoadFound(f.config)
	if err != nil {
		return policies.Options{}, unusable(err)
	}
	o.Roots = cfg.Policy.Roots
	if o.Floor == "" {
		o.Floor = cfg.Policy.Floor
	}
	return o, nil
}

func (f *policyFlags) add(cmd *cobra.Command) {
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.Flags().StringVar(&f.config, "config", "", "configuration `file` that names the policy folder")
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", "output format: text or json")
}

// folder checks the flags and picks the policy folder.
func (f *policyFlags) folder(args []string, policyPathOf func(string) (string, error)) (string, error) {
	if f.output != "text" && f.output != "json" {
		return "", unusable(fmt.Errorf("policy: -o %q\nhint: use text or json", f.output))
	}
	if len(args) == 1 {
		return args[0], nil
	}
	dir, err := policyPathOf(f.config)
	if err != nil {
		return "", unusable(err)
	}
	return dir, nil
}

func unusable(err error) error { return &exitError{exitPolicyUnusable, err} }

func newPolicyCheckCmd(policyPathOf func(string) (string, error)) *cobra.Command {
	var flags policyFlags
	cmd := &cobra.Command{
		Use:   "check [DIR]",
		Short: "Compile a policy folder and look for what is provably wrong",
		Long: `Check compiles the folder as the proxy does (reduced built-ins, typed input) and
looks for entries and comparisons that cannot work. With a configuration it also
checks the credentials that rules name. Warnings never change the exit code.

Exit codes: 0 good, 1 does not load or compile, 2 loads but a check failed.`,
		Example: `  warder policy check ./policies
  warder policy check -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := flags.options(args, policyPathOf)
			if err != nil {
				return err
			}
			return checkPolicy(cmd.OutOrStdout(), cmd.ErrOrStderr(), options, flags)
		},
	}
	flags.add(cmd)
	flags.addFloor(cmd)
	return cmd
}

// policyReport is the JSON of `warder policy check`.
type policyReport struct {
	Valid    bool               `json:"valid"`
	Dir      string             `json:"dir"`
	Revision string             `json:"revision,omitempty"`
	Digest   string             `json:"digest,omitempty"`
	Files    []string           `json:"files,omitempty"`
	Rules    []policies.RuleDoc `json:"rules,omitempty"`
	Reads    []string           `json:"reads,omitempty"` // parts of the input that the policy refers to
	Body     bool               `json:"body"`            // bodies are read ahead for it
	Findings []policies.Finding `json:"findings,omitempty"`
	Errors   []policies.Problem `json:"errors,omitempty"`
}

func checkPolicy(stdout, stderr io.Writer, options policies.Options, flags policyFlags) error {
	report := policyReport{Dir: options.Dir}
	var err error
	if options.Credentials, err = knownCredentials(stderr, flags.config); err != nil {
		return unusable(err)
	}
	engine, err := policies.Load(options)
	if err != nil {
		var failure *policies.LoadError
		if errors.As(err, &failure) {
			report.Errors = failure.Problems
		}
		if flags.output == "json" {
			if err := writeJSON(stdout, report); err != nil {
				return unusable(err)
			}
		}
		return unusable(err)
	}
	report.Findings = engine.Check()
	failed := 0
	for _, f := range report.Findings {
		if f.Severity == policies.SeverityError {
			failed++
		}
	}
	report.Valid = failed == 0
	report.Revision, report.Digest, report.Rules = engine.Revision(), engine.Digest(), engine.Catalogue()
	report.Reads, report.Body = engine.Reads(), engine.Needs().Body
	for _, s := range engine.Sources() {
		report.Files = append(report.Files, s.Path)
	}
	if flags.output == "json" {
		err = writeJSON(stdout, report)
	} else {
		err = writePolicyReport(stdout, report)
	}
	if err != nil {
		return unusable(err)
	}
	if failed > 0 {
		return &exitError{exitPolicyFailed, fmt.Errorf("policy check: %s: %d failed", options.Dir, failed)}
	}
	return nil
}

func writePolicyReport(w io.Writer, r policyReport) error {
	var b strings.Builder
	for _, f := range r.Findings {
		b.WriteString(f.String() + "\n")
	}
	fmt.Fprintf(&b, "%s: %d files, %d rules, revision %s\n", r.Dir, len(r.Files), len(r.Rules), r.Revision)
	fmt.Fprintf(&b, "reads: %s\n", strings.Join(r.Reads, ", "))
	_, err := io.WriteString(w, b.String())
	return err
}

// knownCredentials are those of the configuration, nil when there is none. A
// configuration that nobody named and that does not load only takes the checks
// about credentials away.
func knownCredentials(stderr io.Writer, file string) (map[string]policies.CredentialInfo, error) {
	cfg, err := config.LoadFound(file)
	if err != nil {
		if file != "" {
			return nil, err
		}
		_, err = fmt.Fprintf(stderr, "warder: credentials are not checked: %v\n", err)
		return nil, err
	}
	if cfg.File == "" {
		return nil, nil
	}
	known := make(map[string]policies.CredentialInfo, len(cfg.Credentials))
	for name, c := range cfg.Credentials {
		known[name] = policies.CredentialInfo{Hosts: c.Hosts, Methods: c.Methods, Paths: c.Paths}
	}
	return known, nil
}

func newPolicyTestCmd(policyPathOf func(string) (string, error)) *cobra.Command {
	var flags policyFlags
	var run string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "test [DIR]",
		Short: "Run the tests of a policy folder",
		Long: `Test runs the test_ rules of the folder (by convention in *_test.rego), without
DIR those of policy.roots too, with the engine that judges requests. An error of a built-in fails a test, as it would
deny a request. print works in tests, and is shown where a test does not pass.

Exit codes: 0 all passed, 1 could not run, 2 a test failed or there is none.`,
		Example: `  warder policy test ./policies
  warder policy test --run github -v`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := flags.options(args, policyPathOf)
			if err != nil {
				return err
			}
			results, err := policies.RunTests(cmd.Context(), o.Dir, run, o.Roots...)
			if err != nil {
				return unusable(err)
			}
			return reportTests(cmd.OutOrStdout(), o.Dir, results, flags.output, verbose)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVarP(&run, "run", "r", "", "run only tests whose package.name matches this `regexp`")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "name the tests that passed, too")
	return cmd
}

// testReport is the JSON of `warder policy test`.
type testReport struct {
	Dir     string                `json:"dir"`
	Passed  int                   `json:"passed"`
	Failed  int                   `json:"failed"`
	Skipped int                   `json:"skipped"`
	Tests   []policies.TestResult `json:"tests"`
}

func reportTests(w io.Writer, dir string, results []policies.TestResult, output string, verbose bool) error {
	report := testReport{Dir: dir, Tests: results}
	var b strings.Builder
	for _, r := range results {
		switch r.Outcome {
		case "pass":
			report.Passed++
		case "skip":
			report.Skipped++
		default:
			report.Failed++
		}
		if verbose || r.Outcome == "fail" || r.Outcome == "error" {
			fmt.Fprintf(&b, "%s: %s.%s (%s:%d)\n", strings.ToUpper(r.Outcome), r.Package, r.Name, r.File, r.Line)
			for _, text := range []string{r.Detail, r.Output} {
				if text = strings.Trim(text, "\n"); text != "" {
					b.WriteString("  " + strings.ReplaceAll(text, "\n", "\n  ") + "\n")
				}
			}
		}
	}
	fmt.Fprintf(&b, "%s: %d passed, %d failed, %d skipped\n", dir, report.Passed, report.Failed, report.Skipped)
	var err error
	if output == "json" {
		err = writeJSON(w, report)
	} else {
		_, err = io.WriteString(w, b.String())
	}
	switch {
	case err != nil:
		return unusable(err)
	case report.Failed > 0:
		return &exitError{exitPolicyFailed, fmt.Errorf("policy test: %s: %d failed", dir, report.Failed)}
	case report.Passed == 0:
		return &exitError{exitPolicyFailed, fmt.Errorf("policy test: %s: no test ran\nhint: write rules named test_… in files named *_test.rego", dir)}
	}
	return nil
}
