package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"warder/audit"
)

const countCertificates = `for f in /etc/ssl/certs/ca-certificates.crt /etc/ssl/warder/ca.pem; do grep -c BEGIN $f; done; curl -sS https://` + allowedHost + `/v1/x`

// Where policy passes a host through unread, clients see its own certificate:
// they have its authority then, and at no other time.
func TestE2ETrustWhereAHostIsPassedThrough_F095(t *testing.T) {
	l := newLab(t)
	o := l.sh(countCertificates)
	l.mustHold(o, 0, "1\n1\nanswer to GET /v1/x")
	l.write("policies/pinned.rego", `package warder.egress

passthrough contains {"rule": "pinned"} if {
	input.stage == "connection"
	input.request.host == "`+allowedHost+`"
}
`)
	o = l.sh(countCertificates)
	var bundle, own int
	if _, err := fmt.Sscan(o.stdout, &bundle, &own); err != nil || own != 1 || bundle < 2 {
		t.Errorf("%d certificates in the bundle, %d of ours: %v", bundle, own, err)
	}
	l.mustHold(o, 0, "answer to GET /v1/x, you sent \n")
	opaque := l.records(func(r *audit.Record) bool { return r.Mode == "passthrough" })
	if len(opaque) == 0 {
		t.Error("no connection was passed through")
	}
}

// A remote that says SSH is read over HTTPS, where policy or a credential names
// its host; any other is left as it is, and leads nowhere.
func TestE2EGitOverSSHIsGitOverHTTPS(t *testing.T) {
	l := newLab(t)
	l.up.serveGit(t)
	l.mustHold(l.sh("git ls-remote git@"+allowedHost+":repo.git && git ls-remote ssh://git@"+allowedHost+"/repo.git"), 0, "refs/heads/main")
	for _, r := range l.up.seen() {
		if r.authorization != "Bearer "+canary {
			t.Errorf("%s without the credential", r.target)
		}
	}
	before := l.up.connections()
	if o := l.sh("GIT_SSH_COMMAND=false git ls-remote git@other.test:repo.git"); o.code == 0 || l.up.connections() != before {
		t.Errorf("an unknown host: exit %d: %s", o.code, o.stderr)
	}
}

// layoutOf writes the test image with this configuration as a layout.
func layoutOf(t *testing.T, c v1.Config) string {
	t.Helper()
	img := testImage(t)
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture, cfg.Config = "linux", runtime.GOARCH, c
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The user of an image is the task's where ids can be mapped, by name or number;
// its folders and results are that user's.
func TestE2EUserOfAnImage(t *testing.T) {
	l := newLab(t)
	script := "id -u; id -g; touch /workspace/x /out/x /tmp/x && stat -c %u /workspace /out/x && test ! -w /etc/passwd && echo done"
	for user, want := range map[string][2]string{"img": {"1000", "1000"}, "4321:99": {"4321", "99"}, "root": {"0", "0"}, "nobody-here": {"1000", "1000"}} {
		uid, gid := want[0], want[1]
		if os.Geteuid() != 0 {
			uid, gid = "0", "0"
		}
		expect := strings.Join([]string{uid, gid, uid, uid, ""}, "\n")
		if uid != "0" {
			expect += "done"
		}
		o := l.warder("run", "--image", "oci:"+layoutOf(t, v1.Config{User: user}), "--", "/bin/sh", "-c", script)
		if !strings.HasPrefix(o.stdout, expect) {
			t.Errorf("user %q: exit %d\n%s%s", user, o.code, o.stdout, o.stderr)
		}
	}
	if os.Geteuid() == 0 {
		l.mustHold(l.warder("run", "--user", "4321", "--artifact", "/out/x", "--", "sh", "-c", "id -un; id -u; echo of mine >/out/x"), 0, "task\n4321\n")
		if b, err := os.ReadFile(filepath.Join(l.dir, "artifacts/x")); err != nil || string(b) != "of mine\n" {
			t.Error(string(b), err)
		}
	}
}

// doctor --trust tries the clients that a root has, and fails when one of them does
// not believe the CA of its run.
func TestE2EDoctorTrust_F094(t *testing.T) {
	l := newLab(t)
	read := func(o outcomeOf) map[string]string {
		t.Helper()
		var rep trustReport
		if err := json.Unmarshal([]byte(o.stdout), &rep); err != nil {
			t.Fatalf("%v\n%s%s", err, o.stdout, o.stderr)
		}
		if len(rep.Variables) < 10 {
			t.Errorf("variables: %v", rep.Variables)
		}
		got := map[string]string{}
		for _, c := range rep.Clients {
			got[c.Client] = c.Status
		}
		return got
	}
	o := l.warder("doctor", "--trust", "-o", "json")
	got := read(o)
	for _, client := range []string{"curl", "git", "openssl", "python3 urllib"} {
		if got[client] != "ok" {
			t.Errorf("%s: %q", client, got[client])
		}
	}
	if o.code != 0 || len(got) != len(trustProbes) {
		t.Errorf("exit %d, %d clients\n%s", o.code, len(got), o.stderr)
	}
	// A root with a client that believes nobody.
	tree := filepath.Join(t.TempDir(), "tree")
	for name, from := range toolFiles(t, append(tools, "tail")...) {
		if err := os.MkdirAll(filepath.Join(tree, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		copyFile(t, from, filepath.Join(tree, name))
	}
	if err := os.WriteFile(filepath.Join(tree, "bin/wget"), []byte("#!/bin/sh\nexec curl --cacert /etc/passwd \"$3\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	o = l.warder("doctor", "--trust", "-o", "json", "--image", "dir:"+tree)
	got = read(o)
	if o.code != 2 || got["curl"] != "ok" || got["wget"] != "failed" || got["git"] != "absent" || !strings.Contains(o.stderr, "hint:") {
		t.Errorf("exit %d: %v\n%s", o.code, got, o.stderr)
	}
	l.mustBeComplete()
}
