package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func inputDocument(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "input.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestPolicyEvalPrintsTheDecision(t *testing.T) {
	dir := policyFolder(t, map[string]string{"p.rego": goodPolicy})
	allowed := inputDocument(t, `{"stage": "request", "credentials": ["github-read"], "request": {"host": "api.github.com"}}`)
	out, code, err := runPolicy(t, "", "eval", dir, "-i", allowed)
	if code != 0 || err != nil || out != "allow rule=\"read\" credential=\"github-read\"\n" {
		t.Errorf("exit %d: %q %v", code, out, err)
	}
	denied := inputDocument(t, `{"stage": "request", "request": {"host": "other.example"}}`)
	out, code, err = runPolicy(t, dir, "eval", "-o", "json", "-i", denied)
	var report decisionReport
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	if code != 0 || err != nil || report.Verdict != "deny" || report.Reason != "no-rule" || report.Digest == "" {
		t.Errorf("exit %d: %+v %v", code, report, err)
	}
	for name, args := range map[string][]string{
		"no such policy":   {"eval", "/nonexistent", "-i", denied},
		"no such document": {"eval", dir, "-i", "/nonexistent.json"},
		"no document":      {"eval", dir, "-i", inputDocument(t, `{"stage": "request", "hots": 1}`)},
	} {
		if _, code, err := runPolicy(t, "", args...); code != 1 {
			t.Errorf("%s: exit %d: %v", name, code, err)
		}
	}
}

func TestPolicyExplainNamesTheCondition(t *testing.T) {
	dir := policyFolder(t, map[string]string{"p.rego": goodPolicy})
	file := inputDocument(t, `{"stage": "request", "request": {"host": "other.example"}}`)
	out, code, err := runPolicy(t, "", "explain", dir, "-i", file)
	if code != 0 || err != nil || !strings.Contains(out, `stopped at `+dir+`/p.rego:5: input.request.host == "api.github.com"`) || !strings.Contains(out, `input.request.host = "other.example"`) {
		t.Errorf("exit %d: %s %v", code, out, err)
	}
	out, code, _ = runPolicy(t, "", "explain", dir, "-o", "json", "-i", inputDocument(t, `{"stage": "request", "request": {"host": "api.github.com"}}`))
	if code != 0 || !strings.Contains(out, `"matched": true`) && !strings.Contains(out, `"matched":true`) {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestPolicyFmtExitCodes(t *testing.T) {
	dir := policyFolder(t, map[string]string{"p.rego": strings.ReplaceAll(goodPolicy, "contains {", "contains   {")})
	out, code, _ := runPolicy(t, "", "fmt", "--check", dir)
	if code != 2 || !strings.Contains(out, "p.rego") {
		t.Errorf("--check: exit %d: %s", code, out)
	}
	if out, code, err := runPolicy(t, "", "fmt", dir); code != 0 || !strings.Contains(out, "p.rego") {
		t.Errorf("exit %d: %s %v", code, out, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "p.rego")); err != nil || string(b) != goodPolicy {
		t.Errorf("%s %v", b, err)
	}
	if out, code, err := runPolicy(t, "", "fmt", "--check", dir); code != 0 || out != "" {
		t.Errorf("again: exit %d: %s %v", code, out, err)
	}
	if _, code, _ := runPolicy(t, "", "fmt", policyFolder(t, map[string]string{"p.rego": "package x {"})); code != 1 {
		t.Errorf("broken: exit %d", code)
	}
}

func TestPolicyDocsIsACatalogue(t *testing.T) {
	dir := policyFolder(t, map[string]string{"p.rego": goodPolicy + "\n# METADATA\n# title: a | b\ndeny contains {\"rule\": \"no\"} if input.request.port == 1\n"})
	out, code, err := runPolicy(t, "", "docs", dir)
	if code != 0 || err != nil || !strings.Contains(out, "| read | Read issues | github-read |  | p.rego:5 |") || !strings.Contains(out, `a \| b`) {
		t.Errorf("exit %d: %s %v", code, out, err)
	}
	if out, code, _ := runPolicy(t, "", "docs", "-o", "json", dir); code != 0 || !json.Valid([]byte(out)) || !strings.Contains(out, "github-read") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestPolicyVerbsTakeTheFloor(t *testing.T) {
	dir := policyFolder(t, map[string]string{"p.rego": goodPolicy})
	floor := policyFolder(t, map[string]string{"f.rego": strings.ReplaceAll(goodPolicy, "api.github.com", "git.example")})
	document := inputDocument(t, `{"stage": "request", "credentials": ["github-read"], "request": {"host": "api.github.com"}}`)
	if out, code, _ := runPolicy(t, "", "eval", dir, "-i", document); code != 0 || !strings.HasPrefix(out, "allow") {
		t.Fatalf("without: exit %d: %s", code, out)
	}
	if out, code, _ := runPolicy(t, "", "eval", dir, "--floor", floor, "-i", document); code != 0 || !strings.Contains(out, "floor does not allow") {
		t.Errorf("by flag: exit %d: %s", code, out)
	}
	file := filepath.Join(t.TempDir(), "warder.yaml")
	text := "version: 1\npolicy: {path: " + dir + ", floor: " + floor + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code, err := runPolicy(t, dir, "eval", "--config", file, "-i", document); code != 0 || !strings.Contains(out, "floor does not allow") {
		t.Errorf("by configuration: exit %d: %s %v", code, out, err)
	}
	if out, code, err := runPolicy(t, dir, "check", "--config", file); code != 2 || !strings.Contains(out, "f.rego") { // the credential is not configured
		t.Errorf("check: exit %d: %s %v", code, out, err)
	}
}
