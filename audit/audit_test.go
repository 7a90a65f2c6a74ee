package audit

import (
	"context"
	"testing"

	"warder/internal/identity"
)

func TestSmoke(t *testing.T) {
	dir := t.TempDir() + "/a"
	l, err := Open(t.Context(), Options{Dir: dir, Warn: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	run := &identity.Run{ID: identity.NewRunID()}
	f := l.Append(t.Context(), &Record{Event: EventRunStart, Run: run, RunStart: &RunStart{Argv: []string{"a", "b\n"}}})
	if err := f.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	f = l.Append(t.Context(), &Record{Event: EventRequest, Stage: StageReserved, Run: run, Request: &Request{ID: "x", Host: "h"}})
	if err := f.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	rep, err := Verify(t.Context(), dir, VerifyOptions{})
	t.Logf("%+v %v", rep, err)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	rep, err = Verify(t.Context(), dir, VerifyOptions{})
	t.Logf("%+v %v", rep, err)
	if err != nil || rep.Verdict != VerdictComplete || rep.Records != 4 {
		t.Fatal()
	}
	Story(t.Output(), Read(context.Background(), dir, Filter{}))
}
