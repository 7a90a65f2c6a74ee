package main

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"warder/policies"
)

func newPolicyDocsCmd(policyPathOf func(string) (string, error)) *cobra.Command {
	var flags policyFlags
	cmd := &cobra.Command{
		Use:   "docs [DIR]",
		Short: "Write the catalogue of a policy folder",
		Long: `Docs writes what may be called, by which rule, with which credential, and what is
refused or held: from the entries and the "# METADATA" above them, as Markdown.`,
		Example: `  warder policy docs ./policies > POLICY.md
  warder policy docs -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := flags.options(args, policyPathOf)
			if err != nil {
				return err
			}
			engine, err := policies.Load(options)
			if err != nil {
				return unusable(err)
			}
			if flags.output == "json" {
				err = writeJSON(cmd.OutOrStdout(), struct {
					Revision string             `json:"revision"`
					Rules    []policies.RuleDoc `json:"rules"`
				}{engine.Revision(), engine.Catalogue()})
			} else {
				err = writeCatalogue(cmd.OutOrStdout(), options.Dir, engine)
			}
			if err != nil {
				return unusable(err)
			}
			return nil
		},
	}
	flags.add(cmd)
	flags.addFloor(cmd)
	return cmd
}

// catalogueParts are the kinds of rules in the order of the catalogue.
var catalogueParts = []struct{ kind, title string }{
	{"allow", "What may be called"},
	{"ask", "What waits for a person"},
	{"deny", "What is refused, whatever else allows it"},
	{"passthrough", "TLS that is not opened"},
	{"tunnel", "TCP that is not read"},
}

func writeCatalogue(w io.Writer, dir string, engine *policies.Engine) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Policy %s\n", engine.Revision())
	for _, part := range catalogueParts {
		rows := 0
		for _, r := range engine.Catalogue() {
			if r.Kind != part.kind {
				continue
			}
			if r.Floor && r.Kind == "allow" {
				r.Title = strings.TrimSpace("(only a ceiling) " + r.Title)
			}
			if rows++; rows == 1 {
				fmt.Fprintf(&b, "\n## %s\n\n| rule | what | credential | owner | written in |\n|---|---|---|---|---|\n", part.title)
			}
			file := r.File
			if rel, err := filepath.Rel(dir, r.File); err == nil {
				file = filepath.ToSlash(rel)
			}
			cells := []string{
				cmp.Or(r.Rule, "(computed)"), cmp.Or(r.Title, r.Message), r.Credential, r.Owner, fmt.Sprintf("%s:%d", file, r.Line),
			}
			for i := range cells {
				cells[i] = markdownCell(cells[i])
			}
			b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// markdownCell keeps a text inside its cell.
func markdownCell(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "<", "&lt;", "`", "\\`").Replace(s)
}
