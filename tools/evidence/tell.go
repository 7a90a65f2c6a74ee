package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// event is one line of go test -json (go doc test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// teller prints of a stream of events what go test without -json prints: a line a
// package, and everything about what failed.
type teller struct {
	out, log io.Writer
	held     map[string]*strings.Builder // output of a test at the top, by package and name, until it has ended
}

func tell(events io.Reader, out, log io.Writer) error {
	t := &teller{out, log, map[string]*strings.Builder{}}
	in := bufio.NewReader(events)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			if err := t.line(line); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *teller) line(line string) error {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		_, err := io.WriteString(t.out, line) // not of the test: go's own words
		return err
	}
	top, _, sub := strings.Cut(e.Test, "/")
	key := e.Package + " " + top
	switch e.Action {
	case "output":
		return t.output(key, e)
	case "build-output":
		_, err := io.WriteString(t.out, e.Output)
		return err
	case "pass", "fail", "skip":
		if e.Test == "" {
			return t.endPackage(e)
		}
		if _, err := fmt.Fprintf(t.log, "%s %s %s\n", e.Action, e.Package, e.Test); err != nil || sub {
			return err
		}
		held := t.held[key]
		delete(t.held, key)
		if e.Action == "fail" && held != nil {
			_, err := io.WriteString(t.out, held.String())
			return err
		}
	}
	return nil
}

// output is held back until its test has failed; a package's own is shown, but
// for the word PASS.
func (t *teller) output(key string, e event) error {
	if e.Test == "" {
		if e.Output == "PASS\n" {
			return nil
		}
		_, err := io.WriteString(t.out, e.Output)
		return err
	}
	for _, noise := range []string{"=== RUN ", "=== PAUSE ", "=== CONT ", "=== NAME ", "--- PASS: "} {
		if strings.HasPrefix(strings.TrimLeft(e.Output, " "), noise) {
			return nil
		}
	}
	if t.held[key] == nil {
		t.held[key] = new(strings.Builder)
	}
	t.held[key].WriteString(e.Output)
	return nil
}

// endPackage shows what tests said that never ended: a crash or a time-out.
func (t *teller) endPackage(e event) error {
	for key, held := range t.held {
		if !strings.HasPrefix(key, e.Package+" ") {
			continue
		}
		delete(t.held, key)
		if e.Action == "fail" {
			if _, err := io.WriteString(t.out, held.String()); err != nil {
				return err
			}
		}
	}
	return nil
}
