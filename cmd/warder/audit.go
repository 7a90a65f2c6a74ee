package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"warder/audit"
)

// Exit codes of the audit verbs, fixed: scripts rely on them.
const (
	exitAuditUnread = 1 // the log could not be read, or what was asked for is not in it
	exitAuditFound  = 2 // verify: any verdict but complete
)

// newAuditCmd is `warder audit`. dirOf names the audit directory from --dir and
// --config. Results go to stdout; progress and errors to stderr.
func newAuditCmd(dirOf func(flagDir, flagConfig string) (string, error)) *cobra.Command {
	f := &auditFlags{dirOf: dirOf}
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Read and prove the log",
		Long: `The audit verbs read the log's directory, or a copy of it; but for key rotate they
change nothing. They may run beside processes that write in it. The format is
described in docs/audit.md.`,
		Args: cobra.NoArgs,
	}
	cmd.PersistentFlags().StringVar(&f.dir, "dir", "", "audit `directory` (default: the configuration's)")
	cmd.PersistentFlags().StringVar(&f.config, "config", "", "configuration `file` that names the directory")
	cmd.AddCommand(newAuditVerifyCmd(f), newAuditShowCmd(f), newAuditTailCmd(f), newAuditAnchorCmd(f), newAuditKeyCmd(f), newAuditProveCmd(f), newAuditCheckProofCmd())
	return cmd
}

// auditFlags are common to the audit verbs.
type auditFlags struct {
	dir, config, output string
	dirOf               func(flagDir, flagConfig string) (string, error)
}

func (f *auditFlags) outputFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVarP(&f.output, "output", "o", "text", usage)
}

// open checks the output format and returns the directory.
func (f *auditFlags) open(formats ...string) (string, error) {
	known := len(formats) == 0
	for _, name := range formats {
		known = known || f.output == name
	}
	if !known {
		return "", unread(fmt.Errorf("audit: -o %q; hint: use one of %v", f.output, formats))
	}
	dir, err := f.dirOf(f.dir, f.config)
	if err != nil {
		return "", unread(err)
	}
	return dir, nil
}

func unread(err error) error { return &exitError{exitAuditUnread, err} }

func newAuditVerifyCmd(f *auditFlags) *cobra.Command {
	var anchor, stream, from, to string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that every record is there, as it was written",
		Long: `Verify checks every byte of the records: hashes, chains, signatures, Merkle roots,
and that each stream the registry promises is there and whole. It needs nothing but
the directory or a copy of it. An older copy of the whole directory, or one written
anew with its own key, only an anchor can tell (warder audit anchor).

Exit codes: 0 complete, 2 gap, truncated or altered, 1 could not read.`,
		Example: `  warder audit verify
  warder audit verify --dir /backup/audit --anchor anchor.txt -o json
  warder audit verify --from 2026-11-29T00:00:00Z --to 2026-11-30T00:00:00Z`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := f.open("text", "json")
			if err != nil {
				return err
			}
			o := audit.VerifyOptions{Stream: stream, Progress: progress(cmd.ErrOrStderr())}
			if anchor != "" {
				if o.Anchor, err = os.ReadFile(anchor); err != nil {
					return unread(err)
				}
			}
			if o.Range, err = parseRange(from, to, stream); err != nil {
				return unread(err)
			}
			rep, err := audit.Verify(cmd.Context(), dir, o)
			if err != nil {
				return unread(err)
			}
			return printReport(cmd.OutOrStdout(), rep, f.output)
		},
	}
	f.outputFlag(cmd, "text or json")
	cmd.Flags().StringVar(&anchor, "anchor", "", "`file` that warder audit anchor wrote")
	cmd.Flags().StringVar(&stream, "stream", "", "check the registry and this `stream` only")
	cmd.Flags().StringVar(&from, "from", "", "`first` record to check: its seq, with --stream, or a time (RFC 3339)")
	cmd.Flags().StringVar(&to, "to", "", "`last` record to check: its seq, with --stream, or a time (RFC 3339)")
	return cmd
}

// parseRange reads the ends of a range: sequence numbers of one stream, or times.
func parseRange(from, to, stream string) (audit.Range, error) {
	var r audit.Range
	for _, end := range []struct {
		flag, text string
		seq        **uint64
		at         *time.Time
	}{{"--from", from, &r.FromSeq, &r.From}, {"--to", to, &r.ToSeq, &r.To}} {
		if end.text == "" {
			continue
		}
		if n, err := strconv.ParseUint(end.text, 10, 64); err == nil {
			if stream == "" {
				return r, fmt.Errorf("audit: %s %d counts in one stream; hint: --stream, or a time", end.flag, n)
			}
			*end.seq = &n
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, end.text)
		if err != nil {
			return r, fmt.Errorf("audit: %s %q is neither a number nor a time; hint: 2026-11-29T17:00:00Z", end.flag, end.text)
		}
		*end.at = at
	}
	return r, nil
}

// progress tells a terminal how far verify is, twice a second; nothing else is told.
func progress(w io.Writer) func(uint64) {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	said := time.Now()
	return func(records uint64) {
		if time.Since(said) > 500*time.Millisecond {
			said = time.Now()
			fmt.Fprintf(f, "\r%d records… \r", records)
		}
	}
}

func printReport(w io.Writer, rep audit.Report, format string) error {
	if format == "json" {
		b, err := json.MarshalIndent(rep, "", "  ")
		if err != nil {
			return unread(err)
		}
		if _, err := fmt.Fprintf(w, "%s\n", b); err != nil {
			return unread(err)
		}
	} else if err := printReportText(w, rep); err != nil {
		return unread(err)
	}
	if rep.Verdict != audit.VerdictComplete {
		return &exitError{code: exitAuditFound}
	}
	return nil
}

func printReportText(w io.Writer, rep audit.Report) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s: %s of %s in %s\n", rep.Verdict, audit.Count(rep.Records, "record"),
		audit.Count(uint64(rep.Runs), "run"), audit.Count(uint64(rep.Streams), "stream"))
	for _, s := range rep.OpenStreams {
		fmt.Fprintf(b, "open: %s (its end is not sealed yet)\n", audit.Clean(s, 256))
	}
	for _, f := range rep.Findings {
		where := "registry"
		if f.Stream != "" {
			where = "stream " + audit.Clean(f.Stream, 256)
		}
		if f.Segment != 0 {
			where += fmt.Sprintf(", segment %d", f.Segment)
		}
		fmt.Fprintf(b, "%s: %s, at %d: %s\n", f.Kind, where, f.Seq, audit.Clean(f.What, 1024))
	}
	if rep.More > 0 {
		fmt.Fprintf(b, "and %d more findings\n", rep.More)
	}
	if rep.Partial {
		fmt.Fprintln(b, "only a range was checked: nothing is said of other records, nor of ends and roots")
	}
	if rep.Verdict == audit.VerdictComplete && !rep.Anchored && !rep.Partial {
		fmt.Fprintln(b, "no anchor was given: an older copy, or a log written anew with its own key, would look the same")
	}
	return b.Flush()
}

func newAuditKeyCmd(f *auditFlags) *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Handle the signing key", Args: cobra.NoArgs}
	cmd.AddCommand(&cobra.Command{
		Use:   "rotate",
		Short: "Sign with a fresh key from now on",
		Long: `Rotate makes a fresh signing key. The registry names it with a line that the key
before has signed, and public keys are kept, so older signatures stay good.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := f.open()
			if err != nil {
				return err
			}
			warn := func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), "warder: audit:", s) }
			name, err := audit.RotateKey(cmd.Context(), audit.Options{Dir: dir, Warn: warn})
			if err != nil {
				return unread(err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), name)
			return err
		},
	})
	return cmd
}

func newAuditShowCmd(f *auditFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show RUN",
		Short: "Tell one run's story",
		Long:  `Show tells everything the log holds of one run, named by its id or the start of it.`,
		Example: `  warder audit show r-019f2c
  warder audit show r-019f2c -o jsonl`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := f.open("text", "json", "jsonl")
			if err != nil {
				return err
			}
			run, err := oneRun(cmd.Context(), dir, args[0])
			if err != nil {
				return unread(err)
			}
			return f.print(cmd.OutOrStdout(), audit.Read(cmd.Context(), dir, audit.Filter{Run: run}))
		},
	}
	f.outputFlag(cmd, "text, json (one array) or jsonl (the log's lines)")
	return cmd
}

// oneRun finds the only run whose id starts with prefix. Damaged lines are told later.
func oneRun(ctx context.Context, dir, prefix string) (string, error) {
	none := fmt.Errorf("audit: no record names a run %q; hint: warder audit tail", prefix)
	if prefix == "" {
		return "", none
	}
	found := ""
	for r, err := range audit.Read(ctx, dir, audit.Filter{Run: prefix}) {
		switch {
		case err != nil:
			none = err
		case r.Run.ID == prefix:
			return prefix, nil
		case found != "" && found != r.Run.ID:
			return "", fmt.Errorf("audit: more than one run starts with %q", prefix)
		default:
			found = r.Run.ID
		}
	}
	if found == "" {
		return "", none
	}
	return found, nil
}

func newAuditTailCmd(f *auditFlags) *cobra.Command {
	var follow bool
	var n int
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Show the latest records",
		Example: `  warder audit tail -n 50
  warder audit tail -f -o jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if follow && f.output == "json" {
				return unread(errors.New("audit: -o json has no end with -f; hint: -o jsonl"))
			}
			dir, err := f.open("text", "json", "jsonl")
			if err != nil {
				return err
			}
			if n < 0 {
				return unread(fmt.Errorf("audit: -n %d: not a number of records", n))
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return f.print(cmd.OutOrStdout(), audit.Read(ctx, dir, audit.Filter{Tail: max(n, 1), Follow: follow}))
		},
	}
	f.outputFlag(cmd, "text, json (one array) or jsonl (the log's lines)")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with records as they are written")
	cmd.Flags().IntVarP(&n, "lines", "n", 20, "`number` of records to start with")
	return cmd
}

// print writes records as text, one JSON array, or one JSON object a line.
func (f *auditFlags) print(w io.Writer, records iter.Seq2[*audit.Record, error]) error {
	switch f.output {
	case "text":
		if err := audit.Story(w, records); err != nil {
			return unread(err)
		}
		return nil
	case "json":
		return printArray(w, records)
	}
	for r, err := range records {
		if err != nil {
			return unread(err)
		}
		if _, err := fmt.Fprintf(w, "%s\n", terminalSafe(r.Line())); err != nil {
			return unread(err)
		}
	}
	return nil
}

// terminalSafe is a line as it is, unless somebody put characters into it that no
// writer does: those are escaped, which JSON reads the same.
func terminalSafe(line []byte) string {
	s := string(line)
	if audit.Clean(s, len(s)) == s {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < 0x20: // white space between tokens; within a string it would be no JSON
			b.WriteByte(' ')
		case audit.Clean(string(r), 8) == string(r):
			b.WriteRune(r)
		default:
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, "\\u%04x", u)
			}
		}
	}
	return b.String()
}

func printArray(w io.Writer, records iter.Seq2[*audit.Record, error]) error {
	b := bufio.NewWriter(w)
	sep := "[\n"
	for r, err := range records {
		if err != nil {
			return unread(err)
		}
		fmt.Fprintf(b, "%s%s", sep, terminalSafe(r.Line()))
		sep = ",\n"
	}
	if sep == "[\n" {
		fmt.Fprint(b, sep)
	}
	fmt.Fprint(b, "\n]\n")
	if err := b.Flush(); err != nil {
		return unread(err)
	}
	return nil
}
