package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"warder/policies"
)

// admin serves the admin page of e.p and returns its address.
func (e *env) admin(ready func() error) string {
	e.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.p.ServeAdmin(ctx, ln, ready) }()
	e.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			e.t.Error(err)
		}
	})
	return ln.Addr().String()
}

func fetch(t *testing.T, addr, path, host string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp, string(b), err}
}

func TestMetricsCountAndHoldNoSecret_I2(t *testing.T) {
	e := newEnv(t, nil)
	addr := e.admin(func() error { return nil })
	ask(t, e.tls("api.allowed.test"), get("/path-CANARY", "api.allowed.test"))
	ask(t, e.tls("evil.test"), get("/path-CANARY", "evil.test"))
	e.tape.completed(t, 2)
	r := fetch(t, addr, "/metrics", "localhost")
	for _, want := range []string{
		`warder_requests_total{mode="intercepted",reason="",verdict="allow"} 1`,
		`warder_requests_total{mode="intercepted",reason="no-rule",verdict="deny"} 1`,
		"warder_runs 1", "warder_panics_total 0", "go_goroutines", "warder_request_seconds_count 2",
	} {
		if !strings.Contains(r.body, want+"\n") && !strings.Contains(r.body, want+" ") {
			t.Errorf("%q is not in %q", want, r.body)
		}
	}
	if r.StatusCode != 200 || strings.Contains(r.body, "CANARY") || strings.Contains(r.body, ".test") || strings.Contains(r.body, e.run.identity()) {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	e := newEnv(t, nil)
	var why error
	addr := e.admin(func() error { return why })
	for _, c := range []struct {
		path, host string
		why        error
		status     int
	}{
		{"/healthz", "", nil, 200},
		{"/readyz", "", nil, 200},
		{"/readyz", "", errors.New("not yet"), 503},
		{"/healthz", "", errors.New("not yet"), 200},
		{"/other", "", nil, 404},
		{"/metrics", "evil.test", nil, 403}, // a name pointed at this machine
	} {
		why = c.why
		if r := fetch(t, addr, c.path, c.host); r.StatusCode != c.status {
			t.Errorf("%s: %d %q", c.path, r.StatusCode, r.body)
		}
	}
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := e.p.ServeAdmin(t.Context(), ln, func() error { return nil }); err == nil {
		t.Error("an address that is not loopback is served")
	}
}

// No policy and no configuration lets a run at our own listeners.
func TestOwnListenersAreOutOfReach_F022(t *testing.T) {
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	for _, way := range []string{"plain", "tunnel"} {
		t.Run(way, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			addr := ln.Addr().String()
			e := newEnv(t, nil, func(e *env, o *Options, _ *RunOptions) {
				o.Upstream.Hosts["plain.allowed.test"] = addr
				o.Upstream.AllowAddresses = append(o.Upstream.AllowAddresses, addr, "127.0.0.1="+addr)
				e.policy.need.Connection = way == "tunnel"
				e.policy.fn = func(in *policies.Input) policies.Decision {
					if in.Stage == policies.StageConnection {
						return policies.Decision{Verdict: policies.Tunnel, Rule: "all"}
					}
					return policies.Decision{Verdict: policies.Allow, Rule: "all"}
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- e.p.ServeAdmin(ctx, ln, func() error { return nil }) }()
			if r := fetch(t, addr, "/healthz", ""); r.StatusCode != 200 {
				t.Fatal(r.Status)
			}
			c := e.plain("plain.allowed.test")
			send(t, c, get("/metrics", "plain.allowed.test"))
			b, _ := io.ReadAll(io.LimitReader(c, 100))
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != reasonInternalAddress || strings.Contains(string(b), "200 OK") {
				t.Errorf("%q, records %s", b, dump(e.tape.recs))
			}
			cancel()
			<-done
		})
	}
}

func TestTooManyRequestsUnderWay_I9_F107(t *testing.T) {
	release := make(chan struct{})
	e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		<-release
		io.WriteString(w, "done")
	}, withLimits(Limits{MaxRequestsPerRun: 3}))
	cc, _ := e.h2("plain.allowed.test")
	var open []*http.Response
	for range 3 {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "https://plain.allowed.test/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := cc.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, resp)
	}
	for _, r := range []reply{h2Ask(t, cc, "GET", "https://plain.allowed.test/", nil), ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test"))} {
		if r.StatusCode != 429 || r.reason() != reasonTooMany {
			t.Errorf("%d %q", r.StatusCode, r.body)
		}
	}
	close(release)
	for _, resp := range open {
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "done" {
			t.Errorf("%q %v", b, err)
		}
	}
	e.tape.completed(t, 5)
	if r := h2Ask(t, cc, "GET", "https://plain.allowed.test/", nil); r.StatusCode != 200 {
		t.Errorf("afterwards: %d", r.StatusCode)
	}
	if n := e.p.inFlight.Load(); n != 0 {
		t.Errorf("%d requests are counted as under way", n)
	}
}
