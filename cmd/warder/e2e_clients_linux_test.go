package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"warder/audit"
)

// TestE2EProxyFollowsItsClients_I5_I7: a client that is taken out of the configuration, or
// whose token was changed, is unknown without a new start, and the credentials of its run
// are given back.
func TestE2EProxyFollowsItsClients_I5_I7(t *testing.T) {
	l, addr, _, stop := proxyLab(t, "clients: [{name: ci, token_file: ./token}]")
	file := filepath.Join(l.dir, "warder.yaml")
	first, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	status := func(token string) string {
		out := l.curl(addr, "--proxy-user", "x:"+token, "https://api.allowed.test/v1/x")
		return strings.TrimSpace(out[strings.LastIndex(out, "STATUS"):])
	}
	const known, unknown = "STATUS 200 200", "STATUS 000 407"
	if got := status("S3CR3T-CANARY-proxy-client-token"); got != known {
		t.Fatalf("control: %s", got)
	}
	l.write("token2", "S3CR3T-CANARY-second-token")
	l.write("warder.yaml", strings.Replace(string(first), "{name: ci, token_file: ./token}", "{name: ops, token_file: ./token2, credentials: []}", 1))
	l.until(func() bool { return status("S3CR3T-CANARY-second-token") != unknown })
	if got := status("S3CR3T-CANARY-proxy-client-token"); got != unknown {
		t.Errorf("a client that was taken out: %s", got)
	}
	if len(l.records(func(r *audit.Record) bool {
		return r.Run != nil && r.Run.Agent == "ops" && r.Credential != nil
	})) > 0 {
		t.Error("a client without credentials was given one")
	}
	l.write("token2", "S3CR3T-CANARY-third-token")
	l.until(func() bool { return status("S3CR3T-CANARY-third-token") != unknown })
	if got := status("S3CR3T-CANARY-second-token"); got != unknown {
		t.Errorf("the token before: %s", got)
	}
	log := stop()
	lists := l.records(func(r *audit.Record) bool { return r.Event == audit.EventClients })
	if len(lists) != 3 || lists[0].Clients[0].Name != "ci" || lists[0].Clients[0].Credentials != nil || lists[0].Gone != nil ||
		lists[1].Clients[0].Name != "ops" || lists[1].Clients[0].Credentials == nil || !slices.Equal(lists[1].Gone, []string{"ci"}) ||
		!slices.Equal(lists[2].Gone, []string{"ops"}) {
		t.Errorf("the log tells of the clients: %+v", lists)
	}
	if strings.Contains(log, "S3CR3T") || !strings.Contains(log, `clients: ["ops"]`) {
		t.Errorf("log: %s", log)
	}
	l.mustBeComplete()
}
