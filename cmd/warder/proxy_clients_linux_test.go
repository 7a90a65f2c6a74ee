package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"warder/audit"
	"warder/internal/config"
	"warder/proxy"
)

// TestClientsAreTakenOverWholeOrNotAtAll: what cannot be read, or would let everybody in,
// changes nothing and is said; what can is in force, with its grants.
func TestClientsAreTakenOverWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const base = "version: 1\ncredentials:\n  api: {source: {local: {file: ./secret}}, inject: {header: Authorization}, hosts: [api.allowed.test]}\n"
	configure := func(clients string) { write("warder.yaml", base+"proxy: {clients: ["+clients+"]}\n") }
	write("secret", "S3CR3T-CANARY")
	write("t1", "tok-CANARY-1")
	write("t2", "tok-CANARY-2")
	write("empty", "\n")
	configure("{name: ci, token_file: ./t1}")
	cfg, err := config.Load(filepath.Join(dir, "warder.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	inForce, err := proxyClients(cfg.Proxy.Clients, nil)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	log, err := audit.Open(t.Context(), audit.Options{Dir: filepath.Join(dir, "audit")})
	if err != nil {
		t.Fatal(err)
	}
	f := &clientFollower{app: &app{cfg: cfg, audit: log}, stderr: &said, inForce: inForce, updates: make(chan []proxy.Client, 1)}
	load := func() (string, []proxy.Client) {
		said.Reset()
		f.load(t.Context())
		select {
		case list := <-f.updates:
			return said.String(), list
		default:
			return said.String(), nil
		}
	}
	if text, list := load(); text != "" || list != nil {
		t.Errorf("without a change: %q, %v", text, list)
	}
	for name, clients := range map[string]string{
		"no clients": "", "a broken one": "{nom: ci}", "no token file": "{name: ci, token_file: ./none}",
		"an empty token": "{name: ci, token_file: ./empty}", "a new credential": "{name: ci, token_file: ./t1, credentials: [other]}",
	} {
		configure(clients)
		if text, list := load(); !strings.Contains(text, "stay as they were") || list != nil || strings.Contains(text, "CANARY") {
			t.Errorf("%s: %q, %v", name, text, list)
		}
	}
	configure("{name: ci, token_file: ./t1, credentials: [api]}, {name: ops, token_file: ./t2, credentials: []}")
	text, list := load()
	if len(list) != 2 || !strings.Contains(text, `clients: ["ci" "ops"]`) {
		t.Fatalf("%q, %v", text, list)
	}
	for i, want := range []string{"[api]", "[]"} {
		if names, err := granted(list[i].Grants); err != nil || names == nil || strings.Join(names, " ") != strings.Trim(want, "[]") {
			t.Errorf("%s is granted %q, %v", list[i].Name, names, err)
		}
	}
	if names, err := granted(inForce[0].Grants); err != nil || names != nil {
		t.Errorf("who names no credentials is granted %q, %v", names, err)
	}
	configure("{name: ci, token_file: ./t2}")
	if _, list := load(); len(list) != 1 {
		t.Fatalf("clients: %v", list)
	}
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var story strings.Builder
	if err := audit.Story(&story, audit.Read(t.Context(), filepath.Join(dir, "audit"), audit.Filter{})); err != nil {
		t.Fatal(err)
	}
	var told []string
	for line := range strings.Lines(story.String()) {
		_, what, _ := strings.Cut(strings.TrimSpace(line), "  ")
		told = append(told, what)
	}
	want := []string{
		"clients known: ci (token), ops (token); no longer, or not as before: ci",
		"clients known: ci (token); no longer, or not as before: ci, ops",
	}
	if !slices.Equal(told, want) {
		t.Errorf("the log tells %q", told)
	}
}

// TestWhatTheLogRefusedOfTheClientsIsWrittenLater: with everybody who is gone meanwhile.
func TestWhatTheLogRefusedOfTheClientsIsWrittenLater(t *testing.T) {
	open := func(dir string) *audit.Log {
		log, err := audit.Open(t.Context(), audit.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return log
	}
	dir := filepath.Join(t.TempDir(), "audit")
	shut := open(filepath.Join(t.TempDir(), "audit")) // one that cannot be written
	if err := shut.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	list := func(names ...string) (out []proxy.Client) {
		for i, name := range names {
			out = append(out, proxy.Client{Name: name, Token: [32]byte{byte(i + 1)}})
		}
		return out
	}
	f := &clientFollower{app: &app{audit: shut}, inForce: list("a", "b")}
	f.record(t.Context(), list("a"))
	f.inForce = list("a")
	f.record(t.Context(), list("c"))
	if f.settle(t.Context()); f.owed == nil {
		t.Fatal("control: the log that is shut took it")
	}
	f.app.audit = open(dir)
	f.settle(t.Context()) // asks for the future of before, and writes again
	if f.settle(t.Context()); f.owed != nil {
		t.Error("it is still owed")
	}
	if err := f.app.audit.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var story strings.Builder
	if err := audit.Story(&story, audit.Read(t.Context(), dir, audit.Filter{})); err != nil {
		t.Fatal(err)
	}
	if got := story.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "clients known: c (token); no longer, or not as before: a, b") {
		t.Errorf("the log tells %q", got)
	}
}
