package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// aptRepository is a repository under /debian/, suite test, component main, with
// one package, whose script says who ran it.
func aptRepository(t *testing.T) http.Handler {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	control := "Package: warder-hello\nVersion: 1.0\nArchitecture: all\nMaintainer: Tests <t@t.test>\nDescription: says hello\n"
	for name, f := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"DEBIAN/control":       {control, 0o644},
		"DEBIAN/postinst":      {"#!/bin/sh\nset -e\nmkdir -p /var/lib/warder-hello\nid -u >/var/lib/warder-hello/installed-by\n", 0o755},
		"usr/bin/warder-hello": {"#!/bin/sh\necho the package of the tests\n", 0o755},
		"etc/warder-hello":     {"a configuration file\n", 0o640},
	} {
		p := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(f.text), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	deb := filepath.Join(dir, "warder-hello.deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", tree, deb).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v: %s", err, out)
	}
	raw, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	packages := fmt.Sprintf("%sFilename: pool/warder-hello.deb\nSize: %d\nSHA256: %x\n", control, len(raw), sha256.Sum256(raw))
	index := "main/binary-" + runtime.GOARCH + "/Packages"
	release := fmt.Sprintf("Suite: test\nComponents: main\nArchitectures: %s\nSHA256:\n %x %d %s\n", runtime.GOARCH, sha256.Sum256([]byte(packages)), len(packages), index)
	mux := http.NewServeMux()
	for name, data := range map[string][]byte{"dists/test/Release": []byte(release), "dists/test/" + index: []byte(packages), "pool/warder-hello.deb": raw} {
		mux.HandleFunc("/debian/"+name, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	}
	return mux
}

// TestAptInstallsIntoAMinbase_F094: Debian's smallest root, as debootstrap leaves it,
// without a CA bundle of its own. Root of the sandbox installs a package over
// HTTPS; the next run of the same root knows nothing of it.
func TestAptInstallsIntoAMinbase_F094(t *testing.T) {
	ref := "dir:" + debianRoot(t, "minbase")
	l := newLab(t)
	l.up.handler = aptRepository(t)
	l.write("policies/api.rego", clientsRego)
	script := `set -e
		echo 'deb [trusted=yes] ` + at + `/debian test main' >/etc/apt/sources.list
		apt-get -q update
		apt-get -q install -y --no-install-recommends warder-hello
		warder-hello; cat /etc/warder-hello /var/lib/warder-hello/installed-by; dpkg --verify warder-hello && dpkg-query -W warder-hello`
	o := l.warder("run", "--image", ref, "--user", "root", "--", "sh", "-c", script)
	for _, want := range []string{"the package of the tests\na configuration file\n0\n", "warder-hello\t1.0"} {
		l.mustHold(o, 0, want)
	}
	l.mustHold(l.warder("run", "--image", ref, "--user", "root", "--", "sh", "-c", "test ! -e /usr/bin/warder-hello && dpkg --audit && echo clean"), 0, "clean")
	// There is room for packages and their indexes, and its end is a full disk: not a
	// lack of memory.
	r := l.warder("run", "--image", ref, "--user", "root", "--memory", "256Mi", "--", "sh", "-c", "head -c 100M /dev/zero >/opt/fits && echo fits; head -c 300M /dev/zero >/opt/more || echo full")
	l.mustHold(r, 0, "fits\nfull\n")
	l.mustHold(r, 0, "No space left on device")
	l.mustBeComplete()
}
