package audit

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Story tells records for a person, one line each, in the order they come. Everything
// in it is safe for a terminal. What is not a record is told too, and returned as the
// error once the story is over; an error of w ends it.
func Story(w io.Writer, records iter.Seq2[*Record, error]) error {
	var damage error
	for r, err := range records {
		if err != nil {
			damage = errors.Join(damage, err)
			if _, err := fmt.Fprintln(w, "unreadable:   "+Clean(err.Error(), capText)); err != nil {
				return err
			}
			continue
		}
		if err := Tell(w, r); err != nil {
			return err
		}
	}
	return damage
}

// Tell writes one record as a line of its story: the time, then what happened.
func Tell(w io.Writer, r *Record) error {
	clock := Clean(r.Time, 40)
	if t, err := time.Parse(time.RFC3339Nano, r.Time); err == nil {
		clock = t.Format("15:04:05.000")
	}
	_, err := fmt.Fprintf(w, "%s  %s\n", clock, Clean(Sentence(r), 4*capText))
	return err
}

// Sentence says what a record records. What the sandbox controls stands in quotes or
// is a name of the request; it is not made safe for a terminal here.
func Sentence(r *Record) string {
	switch {
	case r.Event == EventRequest:
		return tellRequest(r)
	case r.Event == EventRunStart:
		return tellStart(r)
	case r.Event == EventRunEnd:
		return tellEnd(r)
	case r.Event == EventDrop && r.Drop != nil:
		return "led nowhere: " + tellCounts(r.Dropped)
	case r.Event == EventOverride && r.Override != nil:
		return "exception used: " + r.Setting + " = " + r.Value
	case r.Event == EventPolicyLoad && r.Policy != nil:
		return "policy loaded: " + join(r.Policy.Revision, r.Policy.Digest, r.Policy.Mode, r.Detail)
	case r.Event == EventClients && r.Callers != nil:
		return tellCallers(r.Callers)
	case strings.HasPrefix(r.Event, EventLease):
		return "credential " + strings.TrimPrefix(r.Event, EventLease) + ": " + join(tellCredential(r.Credential), r.Detail)
	}
	return join(r.Event+":", r.Verdict, r.Reason, r.Detail)
}

func tellRequest(r *Record) string {
	q := r.Request
	if q == nil {
		return join("request without a target:", r.Verdict, r.Reason)
	}
	what := target(q)
	switch r.Stage {
	case StageReserved:
		return "about to send " + join(what, by(r))
	case StageInterrupted:
		return "outcome unknown: " + join(what, parens(r.Detail))
	}
	out := "allowed "
	switch r.Verdict {
	case "deny":
		out = "denied "
	case "error":
		out = "failed "
	case "allow":
	default:
		out = "ended "
	}
	out += what
	if r.Response != nil && r.Response.Status != 0 {
		out += ": " + strconv.Itoa(r.Response.Status)
		if r.Response.Scrubbed > 0 {
			out += ", masked " + Count(uint64(max(r.Response.Scrubbed, 0)), "time") + " in the answer"
		}
	}
	if r.Reason != "" && r.Verdict != "allow" {
		out += ", " + r.Reason
	}
	if r.Would != "" {
		out += ", enforcing would " + r.Would
	}
	out += by(r)
	if r.Credential != nil && r.Verdict == "allow" {
		out += ", with credential " + r.Credential.Name
	}
	return join(out, parens(r.Detail))
}

func target(q *Request) string {
	host := q.Host
	if q.Port != 0 {
		host += ":" + strconv.Itoa(q.Port)
	}
	return join(q.Method, host+q.Path)
}

func by(r *Record) string {
	if r.Rule == "" {
		return ""
	}
	return ", by rule " + r.Rule
}

func tellStart(r *Record) string {
	out := "run " + runID(r) + " starts"
	if r.RunStart == nil {
		return out
	}
	quoted := make([]string, len(r.Argv))
	for i, a := range r.Argv {
		quoted[i] = strconv.Quote(a)
	}
	out += ": " + strings.Join(quoted, " ")
	if r.Image != "" {
		out += ", in " + r.Image
		if r.NoDigest {
			out += " (no digest)"
		}
	}
	if n := len(r.Inputs); n > 0 {
		out += ", " + Count(uint64(n), "input")
	}
	if missing, ok := r.Limits["not_enforced"].([]any); ok && len(missing) > 0 {
		out += fmt.Sprintf(", limits not enforced: %v", missing)
	}
	return out
}

func tellEnd(r *Record) string {
	out := "run " + runID(r) + " ends"
	if r.RunEnd == nil {
		return out
	}
	out += ": " + r.Cause
	if r.ExitCode != nil {
		out += " " + strconv.Itoa(*r.ExitCode)
	}
	for _, a := range r.Artifacts {
		if a.Refused != "" {
			out += fmt.Sprintf(", artefact %q refused: %s", a.Path, a.Refused)
			continue
		}
		out += fmt.Sprintf(", artefact %q of %d bytes", a.Path, a.Size)
	}
	for i := range r.Credentials {
		out += ", credential " + tellCredential(&r.Credentials[i])
	}
	return join(out, parens(r.Detail))
}

func tellCredential(c *Credential) string {
	if c == nil {
		return ""
	}
	out := c.Name
	if c.Status != "" {
		out += " " + c.Status
	}
	if c.Expires != "" {
		out += " (until " + c.Expires + ")"
	}
	return out
}

func tellCallers(in *Callers) string {
	parts := make([]string, len(in.Clients))
	for i, c := range in.Clients {
		parts[i] = join(c.Name, parens(join(c.KnownBy, c.CertSHA256)))
	}
	out := "clients known: " + strings.Join(parts, ", ")
	if len(parts) == 0 {
		out = "no clients are known by name: whoever reaches the listener is one"
	}
	if len(in.Gone) > 0 {
		out += "; no longer, or not as before: " + strings.Join(in.Gone, ", ")
	}
	return out
}

func tellCounts(counts map[string]uint64) string {
	parts := make([]string, 0, len(counts))
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[k], k))
	}
	return strings.Join(parts, ", ")
}

// Count is a number with its noun.
func Count(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.FormatUint(n, 10) + " " + noun + "s"
}

func runID(r *Record) string {
	if r.Run == nil {
		return "?"
	}
	return r.Run.ID
}

func parens(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}

// join puts spaces between what is not empty, and none before a comma.
func join(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return strings.ReplaceAll(strings.Join(parts, " "), " , ", ", ")
}
