package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"warder/internal/vaulttest"
)

// ordinaryTests are run again by TestE2EAsOrdinaryUser: all but itself.
const ordinaryTests = "^TestE2E"

// TestE2EAsOrdinaryUser runs every other end-to-end test as a fresh account,
// with this very test binary. Called by an ordinary user, the tests are already
// that, and there is nothing to add.
func TestE2EAsOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	home, cred := freshAccount(t)
	work := filepath.Join(home, "tree/cmd/warder")
	for _, d := range []string{work, filepath.Join(home, "tree/docs"), filepath.Join(home, "tmp")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, vault := filepath.Join(home, "e2e.test"), filepath.Join(home, "vault")
	copyFile(t, self, binary)
	copyFile(t, vaulttest.Binary(t), vault)
	copyFile(t, "../../docs/limits.md", filepath.Join(home, "tree/docs/limits.md"))
	if out, err := exec.Command("chown", "-R", fmt.Sprintf("%d:%d", cred.Uid, cred.Gid), home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", ordinaryTests, "-test.v", "-test.timeout", "40m")
	cmd.Dir = work
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + filepath.Join(home, "tmp"), "WARDER_TEST_VAULT=" + vault}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	report(t, out.String(), err)
}

// report makes each test of the second run a subtest of this one, and fails when
// one of them did not pass or was not run.
func report(t *testing.T, out string, err error) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (TestE2E\w+)`)
	seen := map[string]string{}
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		seen[m[2]] = m[1]
	}
	for name, result := range seen {
		t.Run(name, func(t *testing.T) {
			if result != "PASS" {
				t.Error(result, "as an ordinary user")
			}
		})
	}
	want := e2eTests(t)
	for _, name := range want {
		if seen[name] == "" {
			t.Errorf("%s was not run as an ordinary user", name)
		}
	}
	if err != nil || t.Failed() {
		t.Errorf("second run: %v\n%s", err, out)
	}
}

// e2eTests are the end-to-end tests that the sources of this package have.
func e2eTests(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("e2e_*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (TestE2E\w+)\(`).FindAllStringSubmatch(string(b), -1) {
			out = append(out, m[1])
		}
	}
	if len(out) < 10 {
		t.Fatalf("only %d end-to-end tests were found", len(out))
	}
	return out
}

func freshAccount(t *testing.T) (home string, cred *syscall.Credential) {
	t.Helper()
	name := fmt.Sprintf("warder-e2e-%d", os.Getpid())
	_ = exec.Command("userdel", "--remove", "--force", name).Run() // of a process of this id that was killed
	if out, err := exec.Command("useradd", "--create-home", name).CombinedOutput(); err != nil {
		t.Fatalf("useradd: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("userdel", "--remove", "--force", name).CombinedOutput(); err != nil {
			t.Errorf("userdel: %v: %s", err, out)
		}
	})
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return u.HomeDir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: []uint32{}}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestE2EDocumentedLimits compares docs/limits.md with what is refused to an
// ordinary user; root is refused none of it.
func TestE2EDocumentedLimits(t *testing.T) {
	l := newLab(t)
	var refused []string
	for flag, value := range map[string]string{"--cpus": "1", "--memory": "256Mi", "--pids-limit": "50", "--disk": "64Mi", "--timeout": "60s", "--user": "1000"} {
		switch o := l.warder("run", flag, value, "--", "true"); {
		case o.code == 125 && strings.Contains(o.stderr, "hint:"):
			refused = append(refused, flag)
		case o.code != 0:
			t.Errorf("%s: exit %d: %s", flag, o.code, o.stderr)
		}
	}
	slices.Sort(refused)
	var want []string
	if os.Geteuid() != 0 {
		b, err := os.ReadFile("../../docs/limits.md")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, ok1 := strings.Cut(string(b), "<!-- rootless -->")
		table, _, ok2 := strings.Cut(rest, "<!-- /rootless -->")
		if !ok1 || !ok2 {
			t.Fatal("docs/limits.md has no table of what an ordinary user is refused")
		}
		for _, m := range regexp.MustCompile("(?m)^\\| `(--[a-z-]+)").FindAllStringSubmatch(table, -1) {
			want = append(want, m[1])
		}
		slices.Sort(want)
	}
	if !slices.Equal(refused, want) {
		t.Errorf("refused %v; documented %v", refused, want)
	}
}
