// Command evidence keeps what go test ran, and holds the table of faults against it.
//
//	evidence run LOG go [-C DIR] test …   runs the tests, prints what go test would print, adds the outcomes to LOG
//	evidence check TABLE LOG              compares the table with the outcomes; exit 2 where they differ
//
// LOG has one line a test: outcome, package and name.
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"warder/internal/faults"
)

func main() {
	args := os.Args[1:]
	var code int
	var err error
	switch {
	case len(args) > 3 && args[0] == "run":
		code, err = run(args[1], args[2:])
	case len(args) == 3 && args[0] == "check":
		code, err = check(args[1], args[2])
	default:
		code, err = 1, fmt.Errorf("usage: evidence run LOG go test ARGS… | evidence check TABLE LOG")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "evidence:", err)
	}
	os.Exit(code)
}

// run gives the exit code of the command.
func run(log string, argv []string) (int, error) {
	at := slices.Index(argv, "test")
	if at < 0 {
		return 1, fmt.Errorf("%q is not a go test", strings.Join(argv, " "))
	}
	argv = slices.Insert(slices.Clone(argv), at+1, "-json")
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 1, err
	}
	defer out.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	told := tell(events, os.Stdout, out)
	if err := cmd.Wait(); err != nil {
		return max(1, cmd.ProcessState.ExitCode()), told
	}
	if told != nil {
		return 1, told
	}
	return 0, nil
}

func check(table, log string) (int, error) {
	text, err := os.ReadFile(table)
	if err != nil {
		return 1, err
	}
	rows, err := faults.Parse(text)
	if err != nil {
		return 1, fmt.Errorf("%s: %w", table, err)
	}
	f, err := os.Open(log)
	if err != nil {
		return 1, err
	}
	defer f.Close()
	ran := faults.Ran{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if part := strings.SplitN(lines.Text(), " ", 3); len(part) == 3 {
			ran.Add(part[2], part[0])
		}
	}
	if err := lines.Err(); err != nil {
		return 1, err
	}
	wrong := faults.Compare(rows, ran)
	for _, w := range wrong {
		fmt.Printf("%s: %s\n", table, w)
	}
	if len(wrong) > 0 {
		return 2, nil
	}
	tests := 0
	for _, r := range rows {
		tests += len(r.Tests)
	}
	fmt.Printf("%d faults, each held by tests that ran and passed (%d names, of %d tests and subtests)\n", len(rows), tests, len(ran))
	return 0, nil
}
