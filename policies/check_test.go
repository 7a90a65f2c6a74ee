package policies

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// titled makes a rule that no other check objects to.
func titled(rule string) string {
	return "package warder.egress\n\n# METADATA\n# title: A rule\n" + rule + "\n"
}

func TestCheckFindsWhatIsProvablyWrong(t *testing.T) {
	tests := []struct {
		name     string
		source   string
		findings []string // "severity code line"
	}{
		{"nothing", titled(`allow contains {"rule": "x"} if input.request.host == "a.example"`), nil},
		{"unknown key", titled(`allow contains {"rule": "x", "crdential": "c"} if true`), []string{"error unknown-key 5"}},
		{"key of another kind", titled(`allow contains {"rule": "x", "message": "m"} if true`), []string{"error unknown-key 5"}},
		{"no name", titled(`allow contains {"hint": "h"} if true`), []string{"error no-rule-name 5"}},
		{"empty name", titled(`allow contains {"rule": ""} if true`), []string{"error no-rule-name 5"}},
		{"computed key", titled(`allow contains {"rule": "x", k: true} if some k in ["encoded_slash"]`), nil},
		{"computed name", titled(`allow contains {"rule": r} if some r in ["a"]`), nil},
		{"host with scheme", titled(`allow contains {"rule": "x"} if input.request.host == "https://a.example"`), []string{"error impossible-host 5"}},
		{"host with port", titled(`allow contains {"rule": "x"} if "a.example:443" == input.request.host`), []string{"error impossible-host 5"}},
		{"hosts in a set", titled("allow contains {\"rule\": \"x\"} if input.request.host in {\n\t\"a.example\",\n\t\"A.example\",\n}"), []string{"error impossible-host 7"}},
		{"host with wildcard", titled(`allow contains {"rule": "x"} if input.request.host in ["*.example"]`), []string{"error impossible-host 5"}},
		{"host with trailing dot", titled(`allow contains {"rule": "x"} if input.request.host == "a.example."`), []string{"error impossible-host 5"}},
		{"host that is not ASCII", titled(`allow contains {"rule": "x"} if input.request.host == "bücher.example"`), []string{"error impossible-host 5"}},
		{"addresses are hosts", titled(`allow contains {"rule": "x"} if input.request.host in {"10.0.0.1", "2001:db8::1"}`), nil},
		{"method in lower case", titled(`allow contains {"rule": "x"} if input.request.method in {"get"}`), []string{"warning method-case 5"}},
		{"path without slash", titled(`allow contains {"rule": "x"} if input.request.path == "repos"`), []string{"warning path-form 5"}},
		{"no title", "package warder.egress\n\nallow contains {\"rule\": \"x\"} if true\n", []string{"warning no-title 3"}},
		{"deny over a body", titled("deny contains {\"rule\": \"x\"} if input.request.body.x"), []string{"warning body-truncation 5"}},
		{"deny over a body that minds truncation", titled("deny contains {\"rule\": \"x\"} if {\n\tinput.request.body.x\n\tnot input.request.unparsed\n}"), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, f := range load(t, tt.source).Check() {
				if filepath.Base(f.File) != "policy.rego" || f.Message == "" {
					t.Errorf("%+v", f)
				}
				got = append(got, fmt.Sprintf("%s %s %d", f.Severity, f.Code, f.Line))
			}
			if !slices.Equal(got, tt.findings) {
				t.Errorf("findings %q, want %q", got, tt.findings)
			}
		})
	}
}

func TestCheckOfCredentialsNeedsAConfiguration(t *testing.T) {
	dir := write(t, map[string]string{"p.rego": titled(`allow contains {"rule": "x", "credential": "c"} if true`)})
	for name, tt := range map[string]struct {
		known map[string]CredentialInfo
		want  int
	}{
		"no configuration":            {nil, 0},
		"configuration without any":   {map[string]CredentialInfo{}, 1},
		"configuration with this one": {map[string]CredentialInfo{"c": {}}, 0},
		"configuration with another":  {map[string]CredentialInfo{"d": {}}, 1},
	} {
		e, err := Load(Options{Dir: dir, Credentials: tt.known})
		if err != nil {
			t.Fatal(err)
		}
		findings := e.Check()
		if len(findings) != tt.want || (tt.want == 1 && (findings[0].Code != "unknown-credential" || findings[0].Severity != SeverityError)) {
			t.Errorf("%s: %v", name, findings)
		}
	}
}

func TestFindingsAreInTheOrderOfTheFiles(t *testing.T) {
	rule := "allow contains {\"rule\": \"x\"} if input.request.host == \"A\"\n\n"
	e := loadAll(t, map[string]string{
		"b.rego": "package warder.egress\n\n" + rule + rule,
		"a.rego": "package warder.egress\n\n" + rule + rule,
	})
	var got []string
	for _, f := range e.Check() {
		got = append(got, fmt.Sprintf("%s:%d:%s", filepath.Base(f.File), f.Line, f.Code))
	}
	want := []string{
		"a.rego:3:no-title", "a.rego:3:impossible-host", "a.rego:5:no-title", "a.rego:5:impossible-host",
		"b.rego:3:no-title", "b.rego:3:impossible-host", "b.rego:5:no-title", "b.rego:5:impossible-host",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestTestsMayPrintAndNothingElse(t *testing.T) {
	dir := write(t, map[string]string{"p.rego": entries, "p_test.rego": "package t\n\ntest_a if {\n\tprint(\"seen\")\n}\n\ntest_b if {\n\tprint(\"seen too\")\n\tto_number(\"x\") == 1\n}\n"})
	results, err := RunTests(context.Background(), dir, "")
	if err != nil || len(results) != 2 || results[0].Outcome != "pass" || results[0].Output != "seen\n" || results[1].Outcome != "error" || !strings.Contains(results[1].Detail, "p_test.rego:9") {
		t.Errorf("%+v, %v", results, err)
	}
	dir = write(t, map[string]string{"p.rego": entries, "p_test.rego": "package t\n\ntest_a if http.send({})\n"})
	if _, err := RunTests(context.Background(), dir, ""); !IsLoadError(err) || !strings.Contains(err.Error(), "must not reach the network") {
		t.Errorf("%v", err)
	}
}

func TestReadsListsTheParts(t *testing.T) {
	e := load(t, titled(`allow contains {"rule": "x"} if {
	input.request.host == "a"
	input.run.labels.env == "ci"
	input.request.headers[_][_] == "x"
}`))
	got := strings.Join(e.Reads(), " ")
	if got != "request.headers request.host run.labels.env" {
		t.Errorf("reads %s", got)
	}
}
