package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"warder/broker"
	"warder/internal/identity"
)

func TestStopEndsUseByRunsThatBeganBeforeIt(t *testing.T) {
	one, two := identity.NewRunID(), identity.NewRunID()
	for _, c := range []struct {
		run, credential                  string
		oneGit, oneMail, twoGit, twoMail bool
	}{
		{one, "", true, true, false, false},
		{"", "git", true, false, true, false},
		{"", "", true, true, true, true},
	} {
		s, err := OpenState(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		if s.Stopped(one, "git", before) {
			t.Fatal("stopped without a stop")
		}
		if err := s.Stop(c.run, c.credential); err != nil {
			t.Fatal(err)
		}
		for _, u := range []struct {
			run, credential string
			want            bool
		}{{one, "git", c.oneGit}, {one, "mail", c.oneMail}, {two, "git", c.twoGit}, {two, "mail", c.twoMail}} {
			if got := s.Stopped(u.run, u.credential, before); got != u.want {
				t.Errorf("stop of %q %q: %s %s stopped %v", c.run, c.credential, u.run, u.credential, got)
			}
			if s.Stopped(u.run, u.credential, time.Now().Add(time.Second)) {
				t.Errorf("stop of %q %q reaches a later run", c.run, c.credential)
			}
		}
		if err := s.Stop(c.run, c.credential); err != nil { // again
			t.Fatal(err)
		}
	}
}

func TestStopRefusesNamesThatAreNone(t *testing.T) {
	s, err := OpenState(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{"../x", ""}, {"", "../x"}, {"", "A"}, {identity.NewRunID(), "git"}} {
		if s.Stop(c[0], c[1]) == nil {
			t.Error("no error for", c)
		}
	}
}

func TestOldStopsGo(t *testing.T) {
	s, err := OpenState(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop("", "old"); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-stopKept - time.Hour)
	if err := os.Chtimes(filepath.Join(s.stops(), "credential-old"), past, past); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop("", "new"); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(s.stops())
	if err != nil || len(left) != 1 || left[0].Name() != "credential-new" {
		t.Fatal(left, err)
	}
}

func TestJournalsOfLiveRunsCanBeRead(t *testing.T) {
	s, err := OpenState(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{identity.NewRunID(), identity.NewRunID()}
	for _, id := range ids {
		st, err := s.begin(id, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = st.Close() }()
		for _, e := range []broker.JournalEntry{{Run: id, Accessor: "a-" + id}, {Accessor: "gone"}, {Accessor: "login", Login: true}} {
			if err := st.Put(context.Background(), e); err != nil {
				t.Fatal(err)
			}
		}
		if err := st.Delete(context.Background(), "gone"); err != nil {
			t.Fatal(err)
		}
	}
	if e, err := s.Journals(ids[1]); err != nil || len(e) != 1 || e[0].Accessor != "a-"+ids[1] {
		t.Fatal(e, err)
	}
	if e, err := s.Journals(""); err != nil || len(e) != 2 {
		t.Fatal(e, err)
	}
	for _, id := range []string{identity.NewRunID(), "../x"} {
		if _, err := s.Journals(id); !errors.Is(err, ErrNoRun) {
			t.Error(id, err)
		}
	}
}
