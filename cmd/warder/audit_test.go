package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/audit"
)

const sampleLog = "../../audit/testdata/sample"

// runAudit runs `warder audit args…` and returns its output and exit code.
func runAudit(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := newAuditCmd(func(flagDir, _ string) (string, error) {
		if flagDir == "" {
			return "", errors.New("no directory")
		}
		return flagDir, nil
	})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	var out, talk bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&talk)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	if err != nil {
		var coded *exitError
		if !errors.As(err, &coded) {
			t.Fatalf("%v: %v: no exit code", args, err)
		}
		code = coded.ExitCode()
		talk.WriteString(err.Error())
	}
	return out.String(), talk.String(), code
}

// copySample is the sample log in a folder that a test may change.
func copySample(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "audit")
	if err := os.CopyFS(dir, os.DirFS(sampleLog)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// spoil changes a word of the sample's records.
func spoil(t *testing.T, dir string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "streams", "*", "1.jsonl"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.Replace(b, []byte("api.example.test"), []byte("api.another.test"), 1)
	if bytes.Equal(b, changed) {
		t.Fatal("nothing to change in the sample")
	}
	if err := os.WriteFile(names[0], changed, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAuditVerifyExitCodes(t *testing.T) {
	altered := copySample(t)
	spoil(t, altered)
	for _, c := range []struct {
		name, dir, output string
		code              int
		verdict           string
	}{
		{"complete", sampleLog, "text", 0, "complete"},
		{"complete, JSON", sampleLog, "json", 0, "complete"},
		{"altered", altered, "text", 2, "altered"},
		{"altered, JSON", altered, "json", 2, "altered"},
		{"no such directory", filepath.Join(altered, "none"), "text", 1, ""},
		{"not a directory", filepath.Join(altered, "registry.jsonl"), "text", 1, ""},
		{"no configuration", "", "text", 1, ""},
		{"unknown output", sampleLog, "xml", 1, ""},
	} {
		out, talk, code := runAudit(t, "verify", "--dir", c.dir, "-o", c.output)
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d: %s%s", c.name, code, c.code, out, talk)
			continue
		}
		if c.output != "json" {
			if !strings.HasPrefix(out, c.verdict) {
				t.Errorf("%s: %s", c.name, out)
			}
			continue
		}
		var rep audit.Report
		if err := json.Unmarshal([]byte(out), &rep); err != nil || rep.Verdict != c.verdict || rep.Records != 10 || rep.Runs != 1 {
			t.Errorf("%s: %v: %s", c.name, err, out)
		}
		if (len(rep.Findings) > 0) != (c.code == 2) {
			t.Errorf("%s: findings %+v", c.name, rep.Findings)
		}
	}
}

// Tools outside this repository read these keys.
func TestAuditVerifyJSONKeys(t *testing.T) {
	out, _, _ := runAudit(t, "verify", "--dir", sampleLog, "-o", "json")
	var got map[string]json.RawMessage
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"verdict": `"complete"`, "records": "10", "runs": "1", "open_streams": "[]", "findings": "[]"} {
		if string(got[key]) != want {
			t.Errorf("%s is %s, want %s", key, got[key], want)
		}
	}
}

func TestAuditShowAndTail(t *testing.T) {
	whole, _, code := runAudit(t, "tail", "--dir", sampleLog, "-n", "100", "-o", "jsonl")
	if code != 0 || strings.Count(whole, "\n") != 10 {
		t.Fatalf("exit code %d: %s", code, whole)
	}
	raw, err := os.ReadFile(mustGlob(t, filepath.Join(sampleLog, "streams", "*", "1.jsonl")))
	if err != nil || whole != string(raw) {
		t.Errorf("jsonl is not the log's lines: %v", err)
	}
	var array []audit.Record
	out, _, _ := runAudit(t, "show", "r-", "--dir", sampleLog, "-o", "json")
	if err := json.Unmarshal([]byte(out), &array); err != nil || len(array) != 9 {
		t.Errorf("show -o json: %v, %d records", err, len(array))
	}
	out, _, _ = runAudit(t, "show", array[0].Run.ID, "--dir", sampleLog)
	if !strings.Contains(out, `starts: "python3" "report.py"`) || strings.Count(out, "\n") != 9 {
		t.Errorf("show: %s", out)
	}
	for _, args := range [][]string{{"show", "r-none"}, {"show", ""}, {"show", "r-", "-o", "xml"}, {"tail", "-f", "-o", "json"}, {"tail", "-n", "-1"}} {
		if out, _, code := runAudit(t, append(args, "--dir", sampleLog)...); code != 1 || out != "" {
			t.Errorf("%v: exit code %d, %s", args, code, out)
		}
	}
	empty, _, code := runAudit(t, "tail", "--dir", t.TempDir(), "-o", "json")
	if err := json.Unmarshal([]byte(empty), &array); err != nil || code != 0 || len(array) != 0 {
		t.Errorf("tail of an empty log: %v, exit code %d: %s", err, code, empty)
	}
}

func mustGlob(t *testing.T, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) != 1 {
		t.Fatal(pattern, names, err)
	}
	return names[0]
}

// F158: whatever stands in the files, no verb sends a terminal an escape.
func TestF158NoVerbCommandsATerminal(t *testing.T) {
	dir := copySample(t)
	name := mustGlob(t, filepath.Join(dir, "streams", "*", "1.jsonl"))
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.ReplaceAll(b, []byte("/v1/admin"), []byte("\\u001b]0;x\\u0007\\u009b2J\\u202e\u009b2J\u202e"))
	b = append(b, "\x1b[2J\x9b raw\n"...)
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "streams", "\x1b[31mred"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "streams", "\x1b[31mred", "\x1b[2J"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify"}, {"show", "r-"}, {"tail"}, {"tail", "-o", "jsonl"}, {"show", "r-", "-o", "json"}} {
		out, talk, code := runAudit(t, append(args, "--dir", dir)...)
		if code == 0 && args[0] == "verify" {
			t.Errorf("%v: the damage is not found", args)
		}
		for _, r := range out + talk {
			if r < 0x20 && r != '\n' || r >= 0x7f && r < 0xa0 || r == 0x202e {
				t.Errorf("%v prints %U: %q", args, r, out+talk)
				break
			}
		}
		if len(out) < 100 {
			t.Errorf("%v printed little: %q", args, out)
		}
	}
}

func TestAuditKeyRotate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	l, err := audit.Open(t.Context(), audit.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, _, code := runAudit(t, "key", "rotate", "--dir", dir)
	if code != 0 || !strings.HasPrefix(out, "warder-audit-") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if out, talk, code := runAudit(t, "verify", "--dir", dir); code != 0 {
		t.Errorf("after it: %s%s", out, talk)
	}
	if _, _, code := runAudit(t, "key", "rotate", "--dir", filepath.Join(dir, "none")); code != 1 {
		t.Errorf("without a log: exit code %d", code)
	}
}

func TestAuditProveAndCheckProof(t *testing.T) {
	out, _, _ := runAudit(t, "tail", "-n", "1", "--dir", sampleLog, "-o", "json")
	var last []audit.Record
	if err := json.Unmarshal([]byte(out), &last); err != nil {
		t.Fatal(err)
	}
	proof, talk, code := runAudit(t, "prove", last[0].ID, "--dir", sampleLog)
	if code != 0 {
		t.Fatal(talk)
	}
	key := mustGlob(t, filepath.Join(sampleLog, "keys", "*.pub"))
	for _, c := range []struct {
		name, proof, key string
		code             int
	}{
		{"it holds", proof, key, 0},
		{"its record was changed", strings.Replace(proof, `\"cause\":\"exit\"`, `\"cause\":\"oom\"`, 1), key, 2},
		{"no proof", "x", key, 1},
		{"no key", proof, "none.pub", 1},
	} {
		file := filepath.Join(t.TempDir(), "proof.json")
		if err := os.WriteFile(file, []byte(c.proof), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, talk, code := runAudit(t, "check-proof", file, "--key", c.key); code != c.code || (code == 0) != strings.Contains(out, "ends: exit 0") {
			t.Errorf("%s: exit code %d, %s%s", c.name, code, out, talk)
		}
	}
	if _, _, code := runAudit(t, "prove", "none", "--dir", sampleLog); code != 1 {
		t.Errorf("a record that is not there: exit code %d", code)
	}
}

// Every command of docs/audit.md prints what the page says.
func TestTheCommandsOfTheAuditPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := strings.NewReplacer(" ANCHOR", " "+filepath.Join(dir, "anchor"), " PROOF", " "+filepath.Join(dir, "proof"))
	t.Chdir("../..")
	commands := 0
	for i, block := range strings.Split(string(page), "```console\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, example := range strings.Split(block, "$ warder audit ")[1:] {
			commands++
			line, want, _ := strings.Cut(example, "\n")
			line, file, toFile := strings.Cut(files.Replace(line), " > ")
			out, talk, code := runAudit(t, strings.Fields(line)...)
			if toFile {
				if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
					t.Fatal(err)
				}
				out = ""
			}
			if code != 0 || out != want {
				t.Errorf("block %d: warder audit %s: exit code %d %s\n%s\nwant\n%s", i, line, code, talk, out, want)
			}
		}
	}
	if commands < 9 {
		t.Errorf("the page has %d commands", commands)
	}
}

func TestAuditVerifyOfARange(t *testing.T) {
	stream := filepath.Base(filepath.Dir(mustGlob(t, filepath.Join(sampleLog, "streams", "*", "1.jsonl"))))
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"by number", []string{"--stream", stream, "--from", "2", "--to", "4"}, 0, "3 records"},
		{"by time", []string{"--from", "2000-01-01T00:00:00Z"}, 0, "10 records"},
		{"by time, none", []string{"--to", "2000-01-01T00:00:00Z"}, 0, "0 records"},
		{"a number without its stream", []string{"--from", "2"}, 1, ""},
		{"no time", []string{"--to", "yesterday"}, 1, ""},
	} {
		out, talk, code := runAudit(t, append([]string{"verify", "--dir", sampleLog}, c.args...)...)
		if code != c.code || !strings.Contains(out, c.says) || code == 0 && !strings.Contains(out, "only a range was checked") {
			t.Errorf("%s: exit code %d, %s%s", c.name, code, out, talk)
		}
	}
}
