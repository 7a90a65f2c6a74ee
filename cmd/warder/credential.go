package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"warder/broker"
	"warder/internal/config"
	"warder/internal/scrub"
)

// credentialTimeout bounds `credential test`: fetching, then taking back.
const credentialTimeout = 30 * time.Second

// newCredentialCmd returns the verbs about credentials. load reads the
// configuration named by --config and returns it with the folder of local keys.
// None of the verbs prints a value.
func newCredentialCmd(load func(flagConfig string) (*config.Config, string, error)) *cobra.Command {
	var file, output string
	cmd := &cobra.Command{
		Use:   "credential",
		Short: "List and test credentials; never shows a value",
		Args:  cobra.NoArgs,
	}
	cmd.PersistentFlags().StringVar(&file, "config", "", "configuration `file`")
	open := func() (*broker.Broker, error) { return openBroker(load, file) }

	list := &cobra.Command{
		Use:   "list",
		Short: "Names, kinds and bindings of the configured credentials",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := open()
			if err != nil {
				return &exitError{exitFailure, err}
			}
			return listCredentials(cmd.OutOrStdout(), output, b.List())
		},
	}
	jwks := &cobra.Command{
		Use:   "jwks NAME",
		Short: "Print the public key set of a local jwt credential",
		Long: `Jwks prints the JSON Web Key Set (RFC 7517) with which a service checks the tokens of
a local jwt credential. Its signing key is made when there is none yet.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := open()
			if err != nil {
				return &exitError{exitFailure, err}
			}
			set, err := b.JWKS(args[0])
			if err != nil {
				return &exitError{exitFailure, err}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", set)
			return err
		},
	}
	test := &cobra.Command{
		Use:   "test NAME",
		Short: "Fetch a credential as a run would, show its lease, take it back",
		Long: `Test fetches one credential as a run would and shows everything but its value: how
long it lives, what Vault calls it, whether answers are searched for it. Then it
takes back what it fetched.

Exit codes: 0 good, 1 the configuration does not allow a test, 2 the credential
could not be fetched or taken back.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := open()
			if err != nil {
				return &exitError{exitFailure, err}
			}
			return testCredential(cmd, output, b, args[0])
		},
	}
	for _, c := range []*cobra.Command{list, test} {
		c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	}
	cmd.AddCommand(list, jwks, test)
	return cmd
}

func openBroker(load func(string) (*config.Config, string, error), file string) (*broker.Broker, error) {
	cfg, dir, err := load(file)
	if err != nil {
		return nil, err
	}
	return broker.New(broker.Options{
		Vault: cfg.Vault, Credentials: cfg.Credentials, ConfigFile: cfg.File,
		StateDir: dir, Journal: &memoryJournal{}, OneShot: true,
	})
}

// memoryJournal is enough for a fetch that is taken back at once; after a kill
// the token's own short life is the backstop.
type memoryJournal struct {
	mu      sync.Mutex
	entries map[string]broker.JournalEntry
}

func (j *memoryJournal) Put(_ context.Context, e broker.JournalEntry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.entries == nil {
		j.entries = map[string]broker.JournalEntry{}
	}
	j.entries[e.Accessor] = e
	return nil
}

func (j *memoryJournal) Delete(_ context.Context, accessor string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.entries, accessor)
	return nil
}

func listCredentials(w io.Writer, output string, list []broker.Info) error {
	switch output {
	case "json":
		if list == nil {
			list = []broker.Info{}
		}
		return printJSON(w, list)
	case "text":
	default:
		return badOutput(output)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no credentials are configured")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tKIND\tSLOT\tHOSTS\tMETHODS\tPATHS\tAT END")
	for _, i := range list {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.Kind, i.Slot, strings.Join(i.Hosts, " "), orAny(i.Methods), orAny(i.Paths), i.AtEnd)
	}
	return tw.Flush()
}

func orAny(list []string) string {
	switch {
	case list == nil:
		return "any"
	case len(list) == 0:
		return "none"
	}
	return strings.Join(list, " ")
}

func testCredential(cmd *cobra.Command, output string, b *broker.Broker, name string) error {
	if output != "text" && output != "json" {
		return badOutput(output)
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, credentialTimeout)
	defer cancel()
	facts, err := b.Probe(ctx, name, &memoryJournal{}, scrub.MinBody)
	if facts.Name == "" {
		return &exitError{exitFailure, err}
	}
	if err == nil {
		if output == "json" {
			err = printJSON(cmd.OutOrStdout(), facts)
		} else {
			err = printFacts(cmd.OutOrStdout(), facts)
		}
	}
	for _, o := range facts.Outcomes {
		if o.Status == broker.StatusUnconfirmed {
			err = errors.Join(err, fmt.Errorf("not confirmed revoked, ends %s at the latest: %s", o.Expires.Format(time.RFC3339), o.Detail))
		}
	}
	cctx, stop := context.WithTimeout(context.WithoutCancel(ctx), credentialTimeout)
	defer stop()
	if err = errors.Join(err, b.Close(cctx)); err != nil {
		return &exitError{2, fmt.Errorf("credential test: %s: %w", name, err)}
	}
	return nil
}

func printFacts(w io.Writer, f broker.Facts) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	row := func(k, v string) {
		if v != "" {
			fmt.Fprintf(tw, "%s\t%s\n", k, v)
		}
	}
	row("credential", f.Name+" ("+f.Kind+")")
	row("source", f.Source)
	row("slot", f.Slot)
	row("hosts", strings.Join(f.Hosts, " "))
	switch f.Kind {
	case broker.KindPKI:
		row("value", "a certificate of the connection; its key is sent nowhere")
	case broker.KindHMAC:
		row("value", "a signature for each request; its key is sent nowhere")
	default:
		row("value", fmt.Sprintf("%d bytes", f.Length))
	}
	if f.Expires != nil {
		row("expires", f.Expires.Format(time.RFC3339))
	} else {
		row("expires", "never by itself")
	}
	row("lease", f.LeaseID)
	row("token accessor", f.Accessor)
	row("vault request", f.VaultRequestID)
	switch {
	case f.Kind == broker.KindPKI:
	case f.Kind == broker.KindHMAC:
		row("answers", "searched for the signature, in header and body")
	case f.Searched:
		row("answers", "searched for the value, in header and body")
	default:
		row("answers", fmt.Sprintf("searched in header only: the value is shorter than %d bytes", scrub.MinBody))
	}
	for _, o := range f.Outcomes {
		row("now", strings.TrimSpace(o.Status+" "+o.Detail))
	}
	return tw.Flush()
}

func badOutput(o string) error {
	return &exitError{exitUsage, fmt.Errorf("-o %q; hint: use text or json", o)}
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
