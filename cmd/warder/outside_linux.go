package main

import (
	"context"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"warder/internal/sysroots"
	"warder/policies"
	"warder/runner"
)

// outside is what policy and configuration say about hosts. The text of a policy
// folder is looked at before it is compiled: a run need not wait for that to make
// its sandbox, unless the text speaks of connections that are let through unread.
func (a *app) outside(ctx context.Context) runner.Outside {
	var o runner.Outside
	hosts := map[string]bool{}
	for _, c := range a.cfg.Credentials {
		for _, h := range c.Hosts {
			if name := gitHost(h); name != "" {
				hosts[name] = true
			}
		}
	}
	opaque := a.cfg.Policy.Bundle != nil
	if a.cfg.Policy.Bundle == nil && a.cfg.Policy.Path != "" {
		m := policies.ScanFolder(a.cfg.Policy.Path)
		for _, h := range m.Hosts {
			hosts[h] = true
		}
		opaque = m.Opaque
	}
	o.GitHosts = slices.Sorted(maps.Keys(hosts))
	if opaque && a.passesThrough(ctx) {
		o.Roots = a.upstreamRoots()
	}
	return o
}

// gitHost is the name of a credential's host when git can be sent there: no
// wildcard, no address, the port of HTTPS.
func gitHost(h string) string {
	name, port, err := net.SplitHostPort(h)
	if err != nil {
		name, port = h, "443"
	}
	if port != "443" || strings.Contains(name, "*") || !strings.Contains(name, ".") || net.ParseIP(strings.Trim(name, "[]")) != nil {
		return ""
	}
	return strings.ToLower(name)
}

// passesThrough waits for the policy. One that cannot be loaded lets nothing
// through; the run is refused for it later.
func (a *app) passesThrough(ctx context.Context) bool {
	if _, err := a.ready(ctx); err != nil {
		return false
	}
	e := a.engine.Load()
	return e != nil && e.Needs().Connection
}

// upstreamRoots are the authorities that we ourselves believe, as PEM.
func (a *app) upstreamRoots() []byte {
	out := slices.Clone(sysroots.PEM())
	for _, f := range a.cfg.Proxy.Upstream.CAFiles {
		if raw, err := os.ReadFile(f); err == nil { // the proxy has read it, or has said why not
			out = append(append(out, '\n'), raw...)
		}
	}
	return out
}
