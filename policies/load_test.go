package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Nothing is allowed by what does not load, and the message says where.
func TestLoadRefuses(t *testing.T) {
	const ok = "package warder.egress\n\nallow contains {\"rule\": \"any\"} if true\n"
	tests := []struct {
		name  string
		files map[string]string
		file  string
		line  int
		says  string
	}{
		{"empty folder", nil, ".", 0, "no *.rego file"},
		{"data alone", map[string]string{"data.json": `{"a": 1}`}, ".", 0, "no *.rego file"},
		{"tests alone", map[string]string{"a_test.rego": ok}, ".", 0, "no *.rego file"},
		{"hidden files alone", map[string]string{".a.rego": ok, "..data/b.rego": ok}, ".", 0, "no *.rego file"},
		{"empty file", map[string]string{"a.rego": ""}, "a.rego", 0, "empty"},
		{"syntax error", map[string]string{"a.rego": "package warder.egress\n\nallow contains {\"rule\": \"x\"} if {\n\tinput.request.host = = \"a\"\n}\n"}, "a.rego", 4, "rego_parse_error"},
		{"a good file does not save a bad one", map[string]string{"a.rego": ok, "b.rego": "package warder.egress\n\nallow contains\n"}, "b.rego", 4, "rego_parse_error"},
		{"no entry", map[string]string{"a.rego": "package warder.egress\n\nx := 1\n"}, ".", 0, "no file holds an entry"},
		{"other package", map[string]string{"a.rego": strings.ReplaceAll(ok, "warder.egress", "egress")}, ".", 0, "no file holds an entry"},
		{"allow is a boolean", map[string]string{"a.rego": "package warder.egress\n\nallow if true\n"}, "a.rego", 3, "must be a set of entries"},
		{"default allow", map[string]string{"a.rego": ok + "\ndefault deny := false\n"}, "a.rego", 5, "must be a set of entries"},
		{"allow is an object", map[string]string{"a.rego": "package warder.egress\n\nallow.x contains 1 if true\n"}, "a.rego", 3, "must be a set of entries"},
		{"allow has a computed part", map[string]string{"a.rego": "package warder.egress\n\nallow[x] contains 1 if some x in [1]\n"}, "a.rego", 3, "must be a set of entries"},
		{"entries from the package above", map[string]string{"a.rego": "package warder\n\negress.allow contains {\"rule\": \"x\"} if true\n"}, "a.rego", 1, "reserved"},
		{"package hides entries", map[string]string{"a.rego": ok, "b.rego": "package warder.egress.deny\n\nx := 1\n"}, "b.rego", 1, "would hide"},
		{"takes the place of the composition", map[string]string{"a.rego": ok, "b.rego": "package warder\n\ndecision := {\"verdict\": \"allow\"}\n"}, "b.rego", 1, "reserved"},
		{"adds to the guard", map[string]string{"a.rego": ok, "b.rego": "package warder.guard\n\nunjudged contains 1\n"}, "b.rego", 1, "reserved"},
		{"data in the place of entries", map[string]string{"a.rego": ok, "data.json": `{"warder": {"egress": {"allow": []}}}`}, "data.json", 0, "reserved"},
		{"data in the place of entries by folder", map[string]string{"a.rego": ok, "warder/data.json": `{"egress": {}}`}, "warder/data.json", 0, "reserved"},
		{"data in the place of a rule", map[string]string{"a.rego": ok, "l.rego": "package lib\n\nx := 1\n", "data.json": `{"lib": {"x": 2}}`}, "l.rego", 0, "conflict"},
		{"two files hold one key", map[string]string{"a.rego": ok, "1.json": `{"k": {"x": 1}}`, "2.yaml": "k: {x: 2}"}, "2.yaml", 0, "data.k.x"},
		{"data is no object", map[string]string{"a.rego": ok, "1.json": `[1]`}, "1.json", 0, "must hold an object"},
		{"data does not parse", map[string]string{"a.rego": ok, "1.json": "{\n\"a\": 1,\n}"}, "1.json", 3, "cannot parse"},
		{"data has a duplicate key", map[string]string{"a.rego": ok, "1.json": "{\"a\": 1,\n\"a\": 2}"}, "1.json", 2, "cannot parse"},
		{"YAML has a duplicate key", map[string]string{"a.rego": ok, "1.yaml": "a: 1\na: 2\n"}, "1.yaml", 2, "cannot parse"},
		{"YAML does not parse", map[string]string{"a.rego": ok, "1.yml": "a: 1\nb: [\n"}, "1.yml", 0, "cannot parse"},
		{"typo in the input", map[string]string{"a.rego": ok + "\ndeny contains {\"rule\": \"d\"} if {\n\tinput.request.hots == \"a\"\n}\n"}, "a.rego", 6, "hots"},
		{"typo in a helper outside the package", map[string]string{"a.rego": ok, "l.rego": "package lib\n\nx if input.requst.host == \"a\"\n"}, "l.rego", 3, "requst"},
		{"wrong type of an input", map[string]string{"a.rego": ok + "\ndeny contains {\"rule\": \"d\"} if startswith(input.request.port, \"4\")\n"}, "a.rego", 5, "rego_type_error"},
		{"a part of the input that is not read yet", map[string]string{"a.rego": ok + "\ndeny contains {\"rule\": \"d\"} if input.request.graphql.operation == \"mutation\"\n"}, "a.rego", 5, "graphql"},
		{"recursion", map[string]string{"a.rego": ok + "\na if b\n\nb if a\n"}, "a.rego", 5, "recursive"},
		{"reads its own decision", map[string]string{"a.rego": ok + "\ndeny contains {\"rule\": \"d\"} if data.warder.decision.verdict == \"allow\"\n"}, "", 0, "made of their entries"},
		{"unknown function", map[string]string{"a.rego": ok + "\na if nothing.like.that(1)\n"}, "a.rego", 5, "undefined function"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			failure := loadFails(t, tt.files)
			for _, p := range failure.Problems {
				if (tt.file == "" || p.File == filepath.FromSlash(tt.file)) && (tt.line == 0 || p.Line == tt.line) && strings.Contains(p.Message, tt.says) {
					return
				}
			}
			t.Errorf("no problem at %s:%d with %q in:\n%v", tt.file, tt.line, tt.says, failure)
		})
	}
	// Positive control: what the cases are made of loads.
	want(t, decide(t, load(t, ok)), Allow, "")
}

func TestLoadRefusesMissingFolder(t *testing.T) {
	for _, dir := range []string{"", filepath.Join(t.TempDir(), "missing")} {
		_, err := Load(Options{Dir: dir})
		if !IsLoadError(err) || !strings.Contains(err.Error(), "hint: ") {
			t.Errorf("Load(%q) = %v", dir, err)
		}
	}
	_, err := Load(Options{Dir: filepath.Join(t.TempDir(), "missing")})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
	file := filepath.Join(write(t, map[string]string{"a.rego": entries}), "a.rego")
	if _, err := Load(Options{Dir: file}); !IsLoadError(err) {
		t.Errorf("a file in place of a folder: %v", err)
	}
	if _, err := Load(Options{Dir: filepath.Dir(file), Mode: "audit"}); err == nil {
		t.Error("an unknown mode loads")
	}
}

func TestLoadRefusesWhatHasNoBound(t *testing.T) {
	dir := write(t, map[string]string{"a.rego": entries, "big.json": ""})
	if err := os.Truncate(filepath.Join(dir, "big.json"), maxFileBytes+1); err != nil { // sparse
		t.Fatal(err)
	}
	if _, err := Load(Options{Dir: dir}); !IsLoadError(err) || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a data file that is too large: %v", err)
	}
	loadFails(t, map[string]string{"a.rego": entries, "deep.json": strings.Repeat(`{"a":`, maxDataDepth+1) + "1" + strings.Repeat("}", maxDataDepth+1)})
	loadFails(t, map[string]string{"a.rego": entries + "\nx := " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)})
}

func TestLoadFollowsLinksToFilesOnly(t *testing.T) {
	elsewhere := write(t, map[string]string{"real.rego": entries})
	dir := write(t, nil)
	if err := os.Symlink(filepath.Join(elsewhere, "real.rego"), filepath.Join(dir, "link.rego")); err != nil {
		t.Fatal(err)
	}
	e, err := Load(Options{Dir: dir})
	if err != nil || len(e.Sources()) != 1 {
		t.Fatalf("a linked file: %v", err)
	}
	named := filepath.Join(t.TempDir(), "named") // by the caller, so it is followed
	if err := os.Symlink(elsewhere, named); err != nil {
		t.Fatal(err)
	}
	e, err = Load(Options{Dir: named})
	if err != nil || len(e.Sources()) != 1 {
		t.Errorf("the policy folder is a link: %v", err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(dir, "folder")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Options{Dir: dir}); !IsLoadError(err) || !strings.Contains(err.Error(), "link to a folder") {
		t.Errorf("a linked folder: %v", err)
	}
}

func TestDigestCoversEveryFileLoaded(t *testing.T) {
	files := map[string]string{"a.rego": entries, "teams/data.yaml": "x: 1\n", "README.md": "text", "a_test.rego": "package t\n"}
	e := loadAll(t, files)
	var lines string
	for _, name := range []string{"a.rego", "teams/data.yaml"} {
		sum := sha256.Sum256([]byte(files[name]))
		lines += hex.EncodeToString(sum[:]) + "  " + name + "\n"
	}
	sum := sha256.Sum256([]byte(lines))
	if want := "sha256:" + hex.EncodeToString(sum[:]); e.Digest() != want || e.Revision() != want[7:19] {
		t.Errorf("digest %s, revision %s, want %s", e.Digest(), e.Revision(), want)
	}
	if s := e.Sources(); len(s) != 2 || string(s[1].Content) != "x: 1\n" {
		t.Errorf("sources %+v", s)
	}
	if same := loadAll(t, files); same.Digest() != e.Digest() {
		t.Error("the same files in another folder have another digest")
	}
	changes := map[string]map[string]string{
		"content": {"a.rego": entries + "\n", "teams/data.yaml": "x: 1\n"},
		"data":    {"a.rego": entries, "teams/data.yaml": "x: 2\n"},
		"name":    {"b.rego": entries, "teams/data.yaml": "x: 1\n"},
		"folder":  {"a.rego": entries, "team/data.yaml": "x: 1\n"},
	}
	for name, changed := range changes {
		if loadAll(t, changed).Digest() == e.Digest() {
			t.Errorf("a change of %s does not change the digest", name)
		}
	}
}

func TestDataFilesLoadByFolder(t *testing.T) {
	e := loadAll(t, map[string]string{
		"p.rego":                   "package warder.egress\n\nallow contains {\"rule\": \"any\"} if {\n\tinput.request.host in data.teams.platform.hosts\n\tdata.on\n}\n",
		"teams/platform/data.yaml": "hosts: [api.github.com]\n",
		"data.json":                `{"on": true}`,
	})
	want(t, decide(t, e), Allow, "")
	want(t, decide(t, e, host("other.example")), Deny, ReasonNoRule)
}

func TestProblemsSayWhereAndWhy(t *testing.T) {
	for want, p := range map[string]Problem{
		"m":          {Message: "m"},
		"f: m":       {File: "f", Message: "m"},
		"f:1: m":     {File: "f", Line: 1, Message: "m"},
		"f:1:1: m":   {File: "f", Line: 1, Column: 1, Message: "m"},
		"f: no line": {File: "f", Column: 5, Message: "no line"},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	p := loadFails(t, map[string]string{"a.rego": anyAllow + "x := http.send({})\n\ny := nothing.there(1)\n"}).Problems
	if len(p) != 2 || !strings.Contains(p[0].Message, "must not reach the network") || strings.Contains(p[1].Message, "not available") {
		t.Errorf("%v", p)
	}
	many := loadFails(t, map[string]string{"a.rego": anyAllow + strings.Repeat("deny if true\n", 2*maxProblems)})
	if n := len(many.Problems); n != maxProblems+1 || many.Problems[n-1].Message != "and 50 more" {
		t.Errorf("%d problems, the last %v", n, many.Problems[n-1])
	}
	if text := many.Error(); !strings.Contains(text, "51 problems") || strings.Count(text, "\n") != maxProblems+1 {
		t.Errorf("%s", text)
	}
}

func TestPolicyCannotReplaceTheSchema(t *testing.T) {
	failure := loadFails(t, map[string]string{"a.rego": "package warder.egress\n\n# METADATA\n# schemas:\n# - input: {type: object, properties: {request: {type: object, properties: {hots: {type: string}}}}}\nallow contains {\"rule\": \"x\"} if input.request.hots == \"a\"\n"})
	if !strings.Contains(failure.Error(), "hots") {
		t.Error(failure)
	}
}
