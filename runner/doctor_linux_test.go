package runner

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestDoctorNamesWhatForbidsUserNamespaces(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "sys/user/max_user_namespaces"), "0\n", 0o600)
	if c := checkUserns(dir); c.Status != CheckFail || !strings.Contains(c.Fix, "user.max_user_namespaces") {
		t.Errorf("%+v", c)
	}
	write(t, filepath.Join(dir, "sys/user/max_user_namespaces"), "15000\n", 0o600)
	if c := checkUserns(dir); c.Status != CheckOK {
		t.Errorf("%+v", c)
	}
}

func TestDoctorSaysWhatIsMissing(t *testing.T) {
	empty := t.TempDir()
	if c := checkSeccomp(empty); c.Status != CheckFail || c.Fix == "" {
		t.Errorf("seccomp: %+v", c)
	}
	if c := checkCgroups(empty); c.Status != CheckWarn || c.Fix == "" {
		t.Errorf("cgroups: %+v", c)
	}
	if c := checkClock(time.Unix(0, 0)); c.Status != CheckFail {
		t.Errorf("clock: %+v", c)
	}
	if c := checkFree(filepath.Join(empty, "state")); c.Status == "" || c.Detail == "" {
		t.Errorf("disk: %+v", c)
	}
	if Verdict([]Check{{Status: CheckOK}, {Status: CheckWarn}}) != nil || Verdict([]Check{{Status: CheckFail}}) == nil {
		t.Error("a failed check must fail the whole, a warning must not")
	}
}

func TestAnIDTellsItsBirth(t *testing.T) {
	got, ok := birth("r-01a228da-70c1-79c9-b8f5-52c3dbd1145e")
	if !ok || got.Year() != 2026 {
		t.Errorf("%v %v", got, ok)
	}
}
