package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/audit"
)

// One run's whole story can be told from a copy of the log alone: what went in, what ran
// under which limits, every request and what decided it, leases, what came out (I6, I7).
func TestE2ETheLogAloneTellsARunsStory(t *testing.T) {
	l := newLab(t)
	if err := os.Mkdir(filepath.Join(l.dir, "src"), 0o755); err != nil {
		t.Fatal(err)
	}
	l.write("src/data", "input data")
	const said = "the output of the task\n"
	r, o := l.json(`curl -sS -o /dev/null https://api.allowed.test/v1/items; curl -sS -o /dev/null -X POST https://api.allowed.test/v1/items; echo made >/out/made; printf 'the output of the task\n'; exit 3`,
		"--input", "src", "--artifact", "/out", "--artifacts-dir", "got", "--env", "COLOUR=blue", "--task", "story", "--label", "team=a")
	if o.code != 3 || r.Stdout != said {
		t.Fatalf("exit %d: %q %s", o.code, r.Stdout, o.stderr)
	}
	log := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(log, os.DirFS(filepath.Join(l.dir, "audit"))); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"audit", "policies", "state", "warder.yaml"} {
		if err := os.RemoveAll(filepath.Join(l.dir, gone)); err != nil {
			t.Fatal(err)
		}
	}
	lines, talk, code := runAudit(t, "show", "r-", "--dir", log, "-o", "jsonl")
	if code != 0 {
		t.Fatal(talk)
	}
	var events []string
	byEvent := map[string]*audit.Record{}
	for line := range strings.Lines(lines) {
		rec := new(audit.Record)
		if err := json.Unmarshal([]byte(line), rec); err != nil {
			t.Fatal(err)
		}
		key := rec.Event
		if rec.Event == audit.EventRequest {
			key += " " + rec.Request.Method + " " + rec.Stage
		}
		events, byEvent[key] = append(events, key), rec
	}
	if events[0] != audit.EventRunStart || events[len(events)-1] != audit.EventRunEnd {
		t.Fatalf("the story is %v", events)
	}
	start, end := byEvent[audit.EventRunStart], byEvent[audit.EventRunEnd]
	if start.Run.Task != "story" || start.Run.Labels["team"] != "a" || len(start.Argv) == 0 || len(start.Inputs) == 0 || start.Inputs[0].SHA256 == "" {
		t.Errorf("start: %+v, %+v", start.Run, start.RunStart)
	}
	if !strings.Contains(strings.Join(start.EnvNames, " "), "COLOUR") || strings.Contains(lines, "blue") {
		t.Errorf("environment: %v", start.EnvNames)
	}
	if _, told := start.Limits["not_enforced"]; len(start.Limits) < 3 || !told && start.Limits["memory"] == nil || start.Image == "" {
		t.Errorf("limits %v, image %q", start.Limits, start.Image)
	}
	sum := sha256.Sum256([]byte(said))
	if end.Cause != "exit" || end.ExitCode == nil || *end.ExitCode != 3 || end.Stdout == nil || end.Stdout.SHA256 != hex.EncodeToString(sum[:]) || end.Stderr == nil {
		t.Errorf("end: %+v", end.RunEnd)
	}
	if len(end.Artifacts) == 0 || end.Artifacts[0].SHA256 == "" || len(end.Credentials) != 1 || end.Credentials[0].Status == "" {
		t.Errorf("what came out: %+v, %+v", end.Artifacts, end.Credentials)
	}
	get, post := byEvent["request GET completed"], byEvent["request POST completed"]
	if byEvent["request GET reserved"] == nil || get == nil || get.Credential == nil || get.Rule != "api-read" || get.Response.Status != 200 {
		t.Fatalf("the GET is told as %+v; events %v", get, events)
	}
	if post == nil || post.Verdict != "deny" || post.Reason != "no-rule" {
		t.Fatalf("the POST is told as %+v", post)
	}
	theDecisionCanBeRead(t, log, get, post)
	if out, talk, code := runAudit(t, "verify", "--dir", log); code != 0 {
		t.Errorf("%s%s", out, talk)
	}
	if out, _, _ := runAudit(t, "show", start.Run.ID, "--dir", log); !strings.Contains(out, "allowed GET") || !strings.Contains(out, "denied POST") || !strings.Contains(out, "ends: exit 3") {
		t.Errorf("told for a person: %s", out)
	}
}

// theDecisionCanBeRead checks that the inputs and the text of the policy are in the log's
// directory, by the digests that the records name, without the credential.
func theDecisionCanBeRead(t *testing.T, log string, recs ...*audit.Record) {
	t.Helper()
	for _, rec := range recs {
		b, err := audit.ReadInput(log, rec.Policy.InputRef)
		if err != nil || !strings.Contains(string(b), `"method":"`+rec.Request.Method+`"`) || strings.Contains(string(b), canary) {
			t.Errorf("the input of the %s: %v %s", rec.Request.Method, err, b)
		}
		text, err := os.ReadFile(filepath.Join(log, "policies", strings.TrimPrefix(rec.Policy.Digest, "sha256:"), "api.rego"))
		if err != nil || string(text) != labRego {
			t.Errorf("the policy of the %s: %v", rec.Request.Method, err)
		}
	}
}
