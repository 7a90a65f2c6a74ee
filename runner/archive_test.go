package runner

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var stamp = time.Date(2020, 2, 2, 2, 2, 2, 0, time.UTC)

func tarOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range headers {
		data := h.Linkname
		if h.Typeflag == tar.TypeReg {
			h.Linkname, h.Size = "", int64(len(data))
		}
		h.ModTime = stamp
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// Headers of tarOf: of a file, Linkname is the content.
func tFile(name, data string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: data, Mode: 0o644}
}

func tDir(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
}

func tLink(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
}

func tHard(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}
}

func gzipped(b []byte) []byte {
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	_, _ = w.Write(b)
	w.Close()
	return buf.Bytes()
}

func saved(t testing.TB, data []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(p, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// F115: what is in the archive arrives as it is.
func TestArchivesArriveIntact_F115(t *testing.T) {
	long := strings.Repeat("long/", 30) + strings.Repeat("n", 180)
	raw := tarOf(t, tDir("./"), tDir("d/"), tFile("d/empty", ""), tFile("d/data", strings.Repeat("x", 300<<10)), tFile(long, "deep"),
		tLink("d/up", "../d/data"), tHard("second", "d/data"), tFile("ünï", "1"), tDir("d/"),
		tar.Header{Typeflag: tar.TypeReg, Name: "run.sh", Linkname: "#!/bin/sh\n", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeDir, Name: "closed", Mode: 0o500})
	for what, b := range map[string][]byte{"tar": raw, "tar.gz": gzipped(raw)} {
		dir, err := copyInputs(t, Input{Source: "tar:" + saved(t, b), Dest: "in"})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		at := func(name string) string { return filepath.Join(dir, "workspace", "in", name) }
		for name, want := range map[string]string{"d/empty": "", "d/data": strings.Repeat("x", 300<<10), long: "deep", "second": strings.Repeat("x", 300<<10), "ünï": "1", "run.sh": "#!/bin/sh\n"} {
			if got, err := os.ReadFile(at(name)); err != nil || string(got) != want {
				t.Errorf("%s: %s: %d bytes, %v", what, name, len(got), err)
			}
		}
		for name, want := range map[string]fs.FileMode{"d/empty": 0o644, "run.sh": 0o755, "closed": fs.ModeDir | 0o500} {
			if fi, err := os.Lstat(at(name)); err != nil || fi.Mode() != want {
				t.Errorf("%s: %s: %v, %v", what, name, fi, err)
			}
		}
		if l, err := os.Readlink(at("d/up")); err != nil || l != "../d/data" {
			t.Errorf("%s: link %q, %v", what, l, err)
		}
		if fi, err := os.Stat(at("run.sh")); err != nil || !fi.ModTime().Equal(stamp) {
			t.Errorf("%s: time of run.sh %v", what, fi.ModTime())
		}
		if err := os.Chmod(at("closed"), 0o700); err != nil { // so that it can be removed
			t.Error(err)
		}
	}
}

// F114: one entry that is unsafe refuses all of it.
func TestUnsafeArchivesAreRefusedWhole_F114(t *testing.T) {
	deep := strings.Repeat("d/", 10000) + "x"
	for name, list := range map[string][]tar.Header{
		"climbs":                           {tFile("../x", "1")},
		"climbs inside":                    {tFile("a/../../x", "1")},
		"climbs and comes back":            {tFile("a/../b", "1")},
		"absolute":                         {tFile("/etc/passwd", "1")},
		"a backslash":                      {tFile(`..\x`, "1")},
		"a drive":                          {tFile("c:x", "1")},
		"a folder that climbs":             {tDir("../d")},
		"a link out":                       {tLink("l", "../x")},
		"a link to an absolute path":       {tLink("l", "/etc/passwd")},
		"a link out by a detour":           {tDir("d"), tLink("d/l", ".."), tLink("m", "d/l/../x")},
		"a link out by a shorter detour":   {tDir("d"), tLink("d/l", ".."), tLink("d/m", "l/../x")},
		"a link to the folder above":       {tLink("a", "..")},
		"a file behind a link":             {tDir("d"), tLink("l", "d"), tFile("l/x", "1")},
		"a chain of links":                 {tDir("d"), tLink("a", "d"), tLink("a/b", ".."), tFile("a/b/x", "1")},
		"a file through a link":            {tLink("l", "x"), tFile("l", "1")},
		"a link in place of a file":        {tFile("x", "1"), tLink("x", "y")},
		"twice":                            {tFile("x", "1"), tFile("./x", "2")},
		"a file in place of a folder":      {tFile("d/x", "1"), tFile("d", "2")},
		"below a file":                     {tFile("d", "1"), tFile("d/x", "2")},
		"a hard link out":                  {tHard("h", "../../etc/passwd")},
		"a hard link to an absolute path":  {tHard("h", "/etc/passwd")},
		"a hard link to a link":            {tLink("l", "x"), tHard("h", "l")},
		"a hard link forward":              {tHard("h", "x"), tFile("x", "1")},
		"a hard link to itself":            {tHard("h", "h")},
		"a loop of hard links":             {tHard("a", "b"), tHard("b", "a")},
		"set-id":                           {{Typeflag: tar.TypeReg, Name: "x", Linkname: "1", Mode: 0o4755}},
		"a device":                         {{Typeflag: tar.TypeChar, Name: "x", Devmajor: 1, Devminor: 3, Mode: 0o666}},
		"a block device":                   {{Typeflag: tar.TypeBlock, Name: "x", Mode: 0o666}},
		"a pipe":                           {{Typeflag: tar.TypeFifo, Name: "x", Mode: 0o666}},
		"10,000 levels":                    {tFile(deep, "1")},
		"more levels than allowed":         {tFile(strings.Repeat("d/", maxArchiveDepth+1)+"x", "1")},
		"a name that no file system takes": {tFile(strings.Repeat("n", 256), "1")},
		"the last one of many":             {tFile("a", "1"), tFile("b", "1"), tFile("c", "1"), tFile("../d", "1")},
	} {
		plan, err := planInputs([]Input{{Source: "tar:" + saved(t, tarOf(t, list...)), Dest: "in"}})
		if err == nil {
			t.Errorf("%s: accepted as %v", name, plan)
		}
		// From standard input there is no first look: the copy has to refuse it.
		a := &archive{kind: inputTar, src: fromStdin, stdin: bytes.NewReader(tarOf(t, list...))}
		_, err = packInputs(context.Background(), io.Discard, []inputEntry{{archive: a, name: "workspace", stdin: a.stdin}})
		if err == nil {
			t.Errorf("%s: accepted from standard input", name)
		}
	}
}

func TestDamagedArchivesAreRefused(t *testing.T) {
	good := tarOf(t, tFile("a", strings.Repeat("x", 5000)), tFile("b", strings.Repeat("y", 5000)))
	zipped := gzipped(good)
	badSum := bytes.Clone(zipped)
	badSum[len(badSum)-6] ^= 1
	for name, b := range map[string][]byte{
		"empty": nil, "text": []byte(strings.Repeat("hello ", 200)), "cut off": good[:6000], "cut off in a padding": good[:5700], "cut off between files": good[:512+5120], "compressed, cut off": zipped[:len(zipped)-20],
		"compressed, wrong checksum": badSum, "compressed text": gzipped([]byte(strings.Repeat("hello ", 200))),
	} {
		if _, err := planInputs([]Input{{Source: "tar:" + saved(t, b)}}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, src := range map[string]string{"a folder": t.TempDir(), "nothing": filepath.Join(t.TempDir(), "x")} {
		if _, err := planInputs([]Input{{Source: "tar:" + src}}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := planInputs([]Input{{Source: "tar:" + saved(t, good)}}); err != nil { // positive control
		t.Error(err)
	}
}

func TestArchiveBoundsHold(t *testing.T) {
	j := newArchiveJudge()
	j.entries = maxArchiveEntries - 1
	last := tFile("a", "1")
	if _, err := j.judge(&last); err != nil { // positive control: at the bound
		t.Error(err)
	}
	over := tFile("b", "1")
	if _, err := j.judge(&over); err == nil {
		t.Error("one entry too many was accepted")
	}
	j = newArchiveJudge()
	big := tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: maxArchiveBytes}
	if _, err := j.judge(&big); err != nil {
		t.Error(err)
	}
	more := tar.Header{Typeflag: tar.TypeReg, Name: "b", Size: 1}
	if _, err := j.judge(&more); err == nil {
		t.Error("one byte too many was accepted")
	}
	// A bomb is cut while it is read, whatever its headers say.
	r, err := uncompressed(bytes.NewReader(gzipped(make([]byte, 1<<20))))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r); err != nil || n != 1<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func TestParseInputPrefixes(t *testing.T) {
	for in, want := range map[string]Input{
		"a":              {"a", ""},
		"a:b":            {"a", "b"},
		"tar:a":          {"tar:a", ""},
		"tar:a.tgz:/out": {"tar:a.tgz", "/out"},
		"zip:a:b":        {"zip:a", "b"},
		"tar:-:b":        {"tar:-", "b"},
		"-:b":            {"-", "b"},
		"./tar:b":        {"./tar", "b"},
	} {
		if got, err := ParseInput(in); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", ":b", "tar:", "zip:", "tar::b"} {
		if got, err := ParseInput(in); err == nil {
			t.Errorf("%q: %+v", in, got)
		}
	}
	for src, want := range map[string]bool{"-": true, "tar:-": true, "zip:-": true, "a": false, "tar:a": false, "./-": false} {
		if got := (Input{Source: src}).FromStdin(); got != want {
			t.Errorf("%s: %v", src, got)
		}
	}
}

func TestArchiveAndStdinDestinations(t *testing.T) {
	for in, want := range map[Input]string{
		{"tar:/x/a.tar", ""}:     "workspace",
		{"zip:a", "d"}:           "workspace/d",
		{"tar:a", "/out"}:        "out",
		{"-", ""}:                "workspace/stdin",
		{"-", "d/"}:              "workspace/d/stdin",
		{"-", "/out/answer.txt"}: "out/answer.txt",
	} {
		if got, err := inputDest(in); err != nil || got != want {
			t.Errorf("%+v: %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []Input{{"tar:a", ".."}, {"-", "/etc/x"}} {
		if got, err := inputDest(in); err == nil {
			t.Errorf("%+v: %s", in, got)
		}
	}
}

func FuzzArchiveJudge(f *testing.F) {
	f.Add(tarOf(f, tDir("d"), tFile("d/a", "1"), tLink("l", "d"), tHard("h", "d/a")))
	f.Add(tarOf(f, tLink("a", ".."), tFile("a/x", "1")))
	f.Add(gzipped(tarOf(f, tFile("../x", "1"))))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 1<<16 {
			return
		}
		var buf bytes.Buffer
		a := &archive{kind: inputTar, src: fromStdin}
		_, err := packInputs(context.Background(), &buf, []inputEntry{{archive: a, name: "workspace", stdin: io.LimitReader(bytes.NewReader(raw), 1<<16)}})
		if err != nil {
			return
		}
		outer := t.TempDir()
		dir := filepath.Join(outer, "ws")
		if err := os.MkdirAll(filepath.Join(dir, "workspace"), 0o755); err != nil {
			t.Fatal(err)
		}
		_ = unpackInputs(&buf, dir, owner{uint32(os.Getuid()), uint32(os.Getgid())}) // a file system may refuse a name
		for at, want := range map[string]int{outer: 1, dir: 1} {
			if list, err := os.ReadDir(at); err != nil || len(list) != want {
				t.Errorf("outside of the workspace: %v, %v", list, err)
			}
		}
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type()&fs.ModeSymlink != 0 {
				target, _ := os.Readlink(p)
				rel, _ := filepath.Rel(filepath.Join(dir, "workspace"), filepath.Join(filepath.Dir(p), target))
				if filepath.IsAbs(target) || !filepath.IsLocal(rel) {
					t.Errorf("link %s leads to %s", p, target)
				}
			}
			return nil
		})
	})
}
