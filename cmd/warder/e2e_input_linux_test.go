package main

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"warder/audit"
)

// withStdin runs one command line with this standard input.
func (l *lab) withStdin(stdin []byte, args ...string) outcomeOf {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := l.command(ctx, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the exit code tells
	return outcomeOf{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

func tarWith(t *testing.T, names ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, n := range names {
		addFile(t, w, n, 0o755, "#!/bin/sh\necho this is "+n+"\n")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestE2EArchivesAsInputs_F114_F115(t *testing.T) {
	l := newLab(t)
	good, bad := tarWith(t, "d/run.sh", "other"), tarWith(t, "d/run.sh", "other", "../escaped")
	l.write("good.tar", string(good))
	l.write("bad.tar", string(bad))
	show := []string{"--", "/bin/sh", "-c", "./d/run.sh; find /workspace /out -type f | sort"}
	want := "this is d/run.sh\n/workspace/d/run.sh\n/workspace/other\n"
	l.mustHold(l.warder(append([]string{"run", "--input", "tar:good.tar"}, show...)...), 0, want)
	l.mustHold(l.withStdin(good, append([]string{"run", "--input", "tar:-"}, show...)...), 0, want)
	l.mustHold(l.withStdin([]byte("said on standard input"), "run", "--input", "-:word.txt", "--", "cat", "word.txt"), 0, "said on standard input")
	for _, o := range []outcomeOf{
		l.warder(append([]string{"run", "--input", "tar:bad.tar"}, show...)...),
		l.withStdin(bad, append([]string{"run", "--input", "tar:-"}, show...)...),
		l.withStdin(good[:700], append([]string{"run", "--input", "tar:-"}, show...)...),
		l.withStdin(nil, append([]string{"run", "--input", "tar:-"}, show...)...),
		l.withStdin(good, append([]string{"run", "-i", "--input", "tar:-"}, show...)...),
		l.withStdin(good, append([]string{"run", "--input", "tar:-", "--input", "-:x"}, show...)...),
	} {
		if o.code != 125 || strings.Contains(o.stdout, "this is") || !strings.Contains(o.stderr, "input") {
			t.Errorf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
		}
	}
	inputs := map[string]bool{}
	for _, r := range l.records(func(r *audit.Record) bool { return r.Event == audit.EventRunStart }) {
		for _, f := range r.RunStart.Inputs {
			inputs[f.Path] = true
		}
	}
	if !inputs["/workspace/d/run.sh"] || !inputs["/workspace/word.txt"] {
		t.Errorf("recorded inputs: %v", inputs)
	}
}

func TestE2ECredentialsInAnInputFolder(t *testing.T) {
	l := newLab(t)
	src := filepath.Join(l.dir, "src")
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	l.write("src/main.py", "print(1)")
	l.write("src/.env", "TOKEN="+canary)
	l.mustHold(l.warder("run", "--input", "src", "--", "true"), 125, "looks like a credential")
	l.mustHold(l.warder("run", "--input", "src", "--input", "src/.env:src/.env", "--", "cat", "src/.env"), 0, "TOKEN=")
}

// A terminal or a pipe that says nothing must not keep a run from being ended.
func TestE2EASignalEndsARunThatWaitsForItsInput(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	trace := filepath.Join(l.dir, "trace")
	cmd := l.command(ctx, "run", "--trace", trace, "--input", "tar:-", "--", "true")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	followTrace(t, trace, "spawned")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if ctx.Err() != nil || cmd.ProcessState.Success() {
		t.Errorf("%v %v", ctx.Err(), cmd.ProcessState)
	}
}
