package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// TestE2EVaultIsOutOfReachOfTheSandbox_I1: the policy allows every host. Vault listens
// beside us on loopback, its address is known inside, and an allowed name leads to the
// same address on another port. No way and no spelling leads to it.
func TestE2EVaultIsOutOfReachOfTheSandbox_I1(t *testing.T) { // I1, I2
	l, v := vaultLab(t)
	to, err := url.Parse(v.Addr)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var ours int
	var theirs []string
	forward := httputil.NewSingleHostReverseProxy(to)
	vault := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if r.UserAgent() == "warder" {
			ours++
		} else {
			theirs = append(theirs, r.Method+" "+r.Host+r.URL.Path)
		}
		mu.Unlock()
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(vault.Close)
	dns := startResolver(t, [4]byte{127, 0, 0, 1})
	l.useVault(vault.URL, "auth: {method: token_file, token_file: ./vault-token}")
	l.write("warder.yaml", strings.Replace(l.read("warder.yaml"), "  upstream:\n", fmt.Sprintf("  upstream:\n    resolver: %q\n", dns.addr), 1))
	l.write("policies/any.rego", "package warder.egress\n\nallow contains {\"rule\": \"any\"} if input.request.host != \"\"\n\ntunnel contains {\"rule\": \"raw\"} if input.request.host == \"vault-raw.test\"\n")
	_, port, _ := strings.Cut(strings.TrimPrefix(vault.URL, "http://"), ":")

	var urls strings.Builder
	tried := 0
	for _, host := range []string{
		"127.0.0.1", "localhost", "LOCALHOST.", "vault.test", "VAULT.Test.", "vault-raw.test", "127.1", "2130706433", "0x7f000001", "0.0.0.0",
		"[::1]", "[::ffff:127.0.0.1]", allowedHost, strings.ToUpper(allowedHost) + ".",
	} {
		for _, scheme := range []string{"http", "https"} {
			fmt.Fprintf(&urls, " %s://%s:%s/v1/sys/seal-status", scheme, host, port)
			tried++
		}
	}
	control := " https://" + allowedHost + "/v1/items"
	var script strings.Builder
	ways := []string{"", "-x http://10.0.2.2:3128", "-p -x http://10.0.2.2:3128", "--socks5-hostname 10.0.2.2:3128"}
	for _, way := range ways {
		fmt.Fprintf(&script, "curl -sk -m 20 -w '\nSTATUS %%{http_code} %%{url} %s\n' %s%s%s\n", way, way, urls.String(), control)
	}
	o := l.sh(script.String(), "--timeout", "5m")
	controls := 0
	for _, line := range strings.Split(o.stdout, "\n") {
		if strings.HasPrefix(line, "STATUS 200") && strings.Contains(line, control+" ") {
			controls++
		} else if strings.HasPrefix(line, "STATUS 200") && !strings.Contains(strings.ToLower(line), allowedHost) || strings.Contains(line, `"sealed"`) {
			t.Error(line)
		}
	}
	if n := strings.Count(o.stdout, "STATUS "); n != len(ways)*(tried+1) || controls != len(ways) {
		t.Errorf("exit %d: %d of %d attempts, %d controls\n%s%s", o.code, n, len(ways)*(tried+1), controls, o.stdout, o.stderr)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(theirs) != 0 {
		t.Errorf("Vault was asked from inside: %v", theirs)
	}
	if ours == 0 {
		t.Error("control: nobody asked Vault at all")
	}
	if len(dns.names()) == 0 {
		t.Error("control: no name was looked up")
	}
	if refused := l.records(requestsOf); len(refused) < tried {
		t.Errorf("%d records of %d attempts", len(refused), tried)
	}
	l.mustBeComplete()
}
