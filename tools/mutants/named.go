package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// named is one mutant of the list: a guard taken away, and the test that must notice.
//
//	= what the guard is for
//	file audit/scan.go
//	test TestRandomAlterationsAreFound
//	in cmd/warder   (where the test is, when it is not beside the file)
//	- the text as it stands in the file, once, line by line
//	+ the text that takes its place
type named struct {
	what, file, test string
	in               string // folder of the test; "" means that of the file
	old, text        string
	line             int // in the list
}

// testTime bounds the named test of one mutant: some mutants hang.
const testTime = 40 * time.Second

func readList(name string) ([]named, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var list []named
	for i, line := range strings.Split(string(b), "\n") {
		key, rest, _ := strings.Cut(line, " ")
		if key == "=" {
			list = append(list, named{what: rest, line: i + 1})
			continue
		}
		if line == "" || key == "#" {
			continue
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("%s:%d: text before the first mutant", name, i+1)
		}
		m := &list[len(list)-1]
		switch key {
		case "file":
			m.file = rest
		case "test":
			m.test = rest
		case "in":
			m.in, _, _ = strings.Cut(rest, " ")
		case "-":
			m.old += rest + "\n"
		case "+":
			m.text += rest + "\n"
		default:
			return nil, fmt.Errorf("%s:%d: not a line of a mutant: %q", name, i+1, line)
		}
	}
	return list, nil
}

// runList breaks each guard of the list whose file matches only, and returns how many mutants survived. One
// that no longer applies, or whose test is gone or fails without it, is an error.
func runList(name, only string) (survived int, err error) {
	list, err := readList(name)
	if err != nil {
		return 0, err
	}
	wanted, err := regexp.Compile(only)
	if err != nil {
		return 0, err
	}
	list = slices.DeleteFunc(list, func(m named) bool { return !wanted.MatchString(m.file) })
	if len(list) == 0 {
		return 0, fmt.Errorf("%s: no mutant of a file that matches %q", name, only)
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tmp)
	if err := healthy(list, tmp); err != nil {
		return 0, err
	}
	var wrong []error
	for _, m := range list {
		began := time.Now()
		killed, err := m.try(tmp)
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Errorf("%s:%d: %s: %w", name, m.line, m.what, err))
			continue
		case !killed:
			survived++
			fmt.Printf("survived %s:%d: %s: %s does not notice\n", name, m.line, m.what, m.test)
			continue
		}
		fmt.Printf("killed   %s: %s (%.0fs)\n", m.file, m.what, time.Since(began).Seconds())
	}
	return survived, errors.Join(wrong...)
}

// healthy checks that every named test exists and passes without a mutant.
func healthy(list []named, tmp string) error {
	tests := map[string][]string{}
	for _, m := range list {
		dir := m.dir()
		if !slices.Contains(tests[dir], m.test) {
			tests[dir] = append(tests[dir], m.test)
		}
	}
	for dir, names := range tests {
		bin := filepath.Join(tmp, "sound.test")
		if out, err := exec.Command("go", "test", "-c", "-o", bin, "./"+dir).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", dir, err, out)
		}
		pass, out, err := runTests(bin, dir, names)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !bytes.Contains(out, []byte("--- PASS: "+name+" ")) {
				pass = false
				fmt.Printf("%s: %s is missing or fails without a mutant\n", dir, name)
			}
		}
		if !pass {
			return fmt.Errorf("%s: the named tests do not pass\n%s", dir, out)
		}
	}
	return nil
}

func (m named) dir() string {
	if m.in != "" {
		return m.in
	}
	return filepath.Dir(m.file)
}

// try says whether the named test fails with the mutant in place.
func (m named) try(tmp string) (killed bool, err error) {
	src, err := os.ReadFile(m.file)
	if err != nil {
		return false, err
	}
	if n := count(src, m.old); n != 1 {
		return false, fmt.Errorf("its text stands %d times in %s, not once", n, m.file)
	}
	abs, err := filepath.Abs(m.file)
	if err != nil {
		return false, err
	}
	laid, overlay, bin := filepath.Join(tmp, "mutant.go"), filepath.Join(tmp, "overlay.json"), filepath.Join(tmp, "mutant.test")
	index, err := json.Marshal(map[string]map[string]string{"Replace": {abs: laid}})
	if err != nil {
		return false, err
	}
	broken := bytes.Replace(src, []byte(m.old), []byte(m.text), 1)
	if err := errors.Join(os.WriteFile(laid, broken, 0o600), os.WriteFile(overlay, index, 0o600)); err != nil {
		return false, err
	}
	dir := m.dir()
	if out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", bin, "./"+dir).CombinedOutput(); err != nil {
		return false, fmt.Errorf("does not compile: %w\n%s", err, out)
	}
	pass, _, err := runTests(bin, dir, []string{m.test})
	return !pass, err
}

// count says how often a mutant's text stands in src; none stands nowhere.
func count(src []byte, old string) int {
	if old == "" {
		return 0
	}
	return bytes.Count(src, []byte(old))
}

func runTests(bin, dir string, names []string) (pass bool, out []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTime+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "-test.v", "-test.timeout="+testTime.String(), "-test.run=^("+strings.Join(names, "|")+")$")
	cmd.Dir = dir
	out, err = cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, out, err
	}
	return err == nil, out, nil
}
