package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"warder/broker"
	"warder/internal/config"
)

// newConfigCmd is `warder config`: exit 0 when the configuration is good, 1
// when it is not. Results go to stdout, talk to stderr.
func newConfigCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newConfigCheckCmd())
	return cmd
}

func newConfigCheckCmd() *cobra.Command {
	var file, policy, output string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Read warder.yaml strictly and print every setting with its origin",
		Long: `Check reads the configuration as the other commands do (--config, else
$WARDER_CONFIG, else warder/warder.yaml in the user's configuration folder;
never the working directory) and prints the merged result: each key, its value
and where it came from (default, file, flag, env). Secrets do not stand in the
configuration and are never printed.

Exit codes: 0 good, 1 bad.`,
		Example: `  warder config check
  warder config check --config ./warder.yaml -o json`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return &exitError{1, fmt.Errorf("config check: -o %q; hint: use text or json", output)}
			}
			return checkConfig(cmd.OutOrStdout(), cmd.ErrOrStderr(), file, policy, output == "json")
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `file`")
	cmd.Flags().StringVar(&policy, "policy", "", "policy `folder`, in place of the file's")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output format: text or json")
	return cmd
}

// configReport is the JSON of `warder config check`.
type configReport struct {
	Valid    bool             `json:"valid"`
	File     string           `json:"file"`             // "" when there is no configuration
	Origin   string           `json:"origin,omitempty"` // what named the file: flag, env or default
	Settings []config.Setting `json:"settings,omitempty"`
	Errors   []configFault    `json:"errors,omitempty"`
}

type configFault struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Col     int    `json:"col,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func checkConfig(stdout, stderr io.Writer, file, policy string, asJSON bool) error {
	report := configReport{Origin: config.OriginDefault}
	switch {
	case file != "":
		report.Origin = config.OriginFlag
	case os.Getenv(config.EnvFile) != "":
		report.Origin = config.OriginEnv
	}
	cfg, err := config.LoadFound(file)
	if err == nil {
		err = validateCredentials(cfg)
	}
	if err != nil {
		report.Errors = configFaults(err)
		if asJSON {
			if err := writeJSON(stdout, report); err != nil {
				return &exitError{1, err}
			}
		}
		return &exitError{1, err}
	}
	var over []config.Override
	if policy != "" {
		over = append(over, config.Override{Key: "policy.path", Value: policy, Origin: config.OriginFlag})
	}
	report.Valid, report.File, report.Settings = true, cfg.File, cfg.Merged(over...)
	if cfg.File == "" {
		report.Origin = ""
		fmt.Fprintln(stderr, "warder: "+config.NoConfig)
	}
	if asJSON {
		err = writeJSON(stdout, report)
	} else {
		err = writeSettings(stdout, report)
	}
	if err != nil {
		return &exitError{1, err}
	}
	return nil
}

// validateCredentials judges every credential, with the place of each fault.
func validateCredentials(cfg *config.Config) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cfg.Credentials)) {
		errs = append(errs, cfg.Locate(broker.Validate(name, cfg.Credentials[name])))
	}
	return errors.Join(errs...)
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func writeSettings(w io.Writer, r configReport) error {
	if r.File != "" {
		if _, err := fmt.Fprintf(w, "# %s (%s)\n", r.File, r.Origin); err != nil {
			return err
		}
	}
	for _, s := range r.Settings {
		value, err := json.Marshal(s.Value)
		if err != nil {
			return err
		}
		origin := s.Origin
		if s.At != "" {
			origin += " " + s.At[len(r.File)+1:]
		}
		if _, err := fmt.Fprintf(w, "%s: %s  # %s\n", s.Key, value, origin); err != nil {
			return err
		}
	}
	return nil
}

// configFaults takes a joined error apart.
func configFaults(err error) []configFault {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []configFault
		for _, e := range joined.Unwrap() {
			out = append(out, configFaults(e)...)
		}
		return out
	}
	var at *config.Error
	if errors.As(err, &at) {
		return []configFault{{at.File, at.Line, at.Col, at.Msg, at.Hint}}
	}
	return []configFault{{Message: err.Error()}}
}
