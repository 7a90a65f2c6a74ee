package proxy

import (
	"context"
	"crypto/sha256"
	"net"
	"strings"
	"testing"
	"time"

	"warder/internal/identity"
)

// One client's connections, and those that say nothing, keep no other out (I9).
func TestOneClientsConnectionsKeepNobodyOut_I9(t *testing.T) {
	e := newEnv(t, nil, plainUpstream, withLimits(Limits{MaxConnsPerRun: 3}))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	o := ListenOptions{
		Clients: []Client{{Name: "many", Token: sha256.Sum256([]byte("tok-CANARY-many"))}, {Name: "few", Token: sha256.Sum256([]byte("tok-CANARY-few"))}},
		Open: func(_ context.Context, client Client) (*Run, error) {
			return e.p.NewRun(RunOptions{Run: identity.Run{ID: "r-" + client.Name}})
		},
		Close: func(context.Context, string, *Run) {},
	}
	go func() { done <- e.p.ServeListener(ctx, ln, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(30 * time.Second))
		t.Cleanup(func() { c.Close() })
		return c
	}
	as := func(client string) string {
		return strings.Replace(get("http://plain.allowed.test/", "plain.allowed.test"), "\r\n\r\n", "\r\nProxy-Authorization: Bearer tok-CANARY-"+client+"\r\n\r\n", 1)
	}
	var held []net.Conn
	for range 3 {
		c := dial()
		if r := ask(t, c, as("many")); r.StatusCode != 200 {
			t.Fatalf("within the limit: %d %q", r.StatusCode, r.body)
		}
		held = append(held, c)
	}
	if r := ask(t, dial(), as("many")); r.StatusCode != 429 || r.reason() != "too-many" {
		t.Errorf("one more: %d %q", r.StatusCode, r.body)
	}
	silent := dial() // the first of those that say nothing has to go
	for range 4 {
		dial()
	}
	if n, err := silent.Read(make([]byte, 1)); n > 0 || err == nil || isTimeout(err) {
		t.Errorf("the oldest silent connection: %d bytes, %v", n, err)
	}
	few := dial()
	if r := ask(t, few, as("few")); r.StatusCode != 200 {
		t.Errorf("another client: %d %q", r.StatusCode, r.body)
	}
	if r := ask(t, held[0], as("many")); r.StatusCode != 200 {
		t.Errorf("a connection that is kept: %d %q", r.StatusCode, r.body)
	}
	// Whose end is seen makes room.
	held[0].Close()
	for r := ask(t, dial(), as("many")); r.StatusCode != 200; r = ask(t, dial(), as("many")) { // hangs where it makes none
		time.Sleep(time.Millisecond)
	}
}
