package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"warder/audit"
)

// load sends requests through a proxy from some clients at once until stop is called,
// which returns how many were answered.
func (l *lab) load(addr, user string, clients int) (stop func() int) {
	l.t.Helper()
	ca, err := os.ReadFile(filepath.Join(l.dir, "proxy-ca.pem"))
	if err != nil {
		l.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	counts := make([]int, clients)
	for w := range clients {
		wg.Go(func() {
			c := &http.Client{Transport: &http.Transport{
				Proxy:           http.ProxyURL(&url.URL{Scheme: "http", User: url.UserPassword("ci", user), Host: addr}),
				TLSClientConfig: &tls.Config{RootCAs: pool},
			}}
			defer c.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://%s/v1/load/%d/%d", allowedHost, w, n), nil)
				if err != nil {
					l.t.Error(err)
					return
				}
				resp, err := c.Do(req)
				if err != nil {
					return // the proxy is gone
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					counts[w]++
				}
			}
		})
	}
	return func() int {
		cancel()
		wg.Wait()
		sum := 0
		for _, n := range counts {
			sum += n
		}
		return sum
	}
}

// TestE2EAKilledProxyLosesNoRecord_F166: whatever the upstream saw is in the log, also
// when the proxy dies in the middle of it; at most the outcome is missing, and marked.
func TestE2EAKilledProxyLosesNoRecord_F166(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			l, addr, cmd, stop := proxyLab(t, "clients: [{name: ci, token_file: ./token}]")
			halt := l.load(addr, "S3CR3T-CANARY-proxy-client-token", 4)
			limit := time.After(time.Minute)
			for len(l.up.seen()) < 300 {
				select {
				case <-limit:
					t.Fatalf("only %d requests came to the upstream", len(l.up.seen()))
				case <-time.After(time.Millisecond): // the load goes on meanwhile
				}
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			stop()
			answered := halt()
			l.mustHold(l.warder("run", "--", "/bin/true"), 0, "") // the next start recovers what is open
			l.mustBeComplete()
			stages := map[string]string{}
			for _, r := range l.records(requestsOf) {
				stages[r.Request.Path] += r.Stage + " "
			}
			interrupted := 0
			for _, q := range l.up.seen() {
				switch s := stages[q.target]; s {
				case audit.StageReserved + " " + audit.StageCompleted + " ":
				case audit.StageReserved + " " + audit.StageInterrupted + " ":
					interrupted++
				default:
					t.Errorf("%s came to the upstream, and the log says %q", q.target, s)
				}
			}
			if interrupted > 4 {
				t.Errorf("%d requests are interrupted, of 4 clients", interrupted)
			}
			if seen := len(l.up.seen()); answered == 0 || answered > seen || !strings.Contains(fmt.Sprint(stages), "reserved completed") {
				t.Errorf("%d answers of %d requests at the upstream: the test shows nothing", answered, seen)
			}
		})
	}
}
