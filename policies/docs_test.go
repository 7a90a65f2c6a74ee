package policies

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Every snippet of the documentation that names a file of a policy is part of
// one folder, which loads, passes its checks and its own tests.
func TestDocumentedPolicyWorks(t *testing.T) {
	text, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, block := range regexp.MustCompile("(?s)```(rego|yaml)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		first, _, _ := strings.Cut(block[2], "\n")
		name, ok := strings.CutPrefix(first, "# policies/")
		if !ok {
			if block[1] == "rego" {
				t.Errorf("a snippet names no file: %s", first)
			}
			continue
		}
		files[name] = block[2]
	}
	if len(files) < 4 {
		t.Fatalf("only %d files", len(files))
	}
	dir := write(t, files)
	e, err := Load(Options{Dir: dir, EvalTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range e.Check() {
		if f.Code != "body-truncation" { // which one of the examples shows
			t.Errorf("%v", f)
		}
	}
	results, err := RunTests(context.Background(), dir, "")
	if err != nil || len(results) < 3 {
		t.Fatalf("%d tests: %v", len(results), err)
	}
	for _, r := range results {
		if r.Outcome != "pass" {
			t.Errorf("%s: %s\n%s", r.Name, r.Outcome, r.Detail)
		}
	}
	llm := func(in *Input) { in.Request.Host, in.Request.Path = "llm.example", "/v1/chat" }
	offered := func(in *Input) { in.Credentials = []string{"llm"} }
	want(t, decide(t, e, llm, offered, jsonBody(`{"model": "small"}`)), Allow, "")
	want(t, decide(t, e, llm, offered, jsonBody(`{"model": "huge-1"}`)), Deny, ReasonDenied)
	want(t, decide(t, e, llm, offered, truncated), Deny, ReasonDenied)
}

// The documentation lists what is refused, all of it and nothing else.
func TestDocumentedBuiltInsAreTheRefusedOnes(t *testing.T) {
	text, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(text), "These built-in functions do not exist: ")
	list, _, _ = strings.Cut(list, "\n")
	documented := map[string]bool{}
	for _, name := range regexp.MustCompile("`([a-z0-9._]+)`").FindAllStringSubmatch(list, -1) {
		documented[name[1]] = true
		if !isRefused(name[1]) {
			t.Errorf("%s is documented as missing and is there", name[1])
		}
	}
	for name := range refused {
		if !documented[name] {
			t.Errorf("%s is refused and not documented", name)
		}
	}
}
