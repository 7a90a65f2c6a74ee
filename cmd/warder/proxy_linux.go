package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"warder/broker"
	"warder/internal/config"
	"warder/internal/identity"
	"warder/proxy"
	"warder/runner"
)

func newProxyCmd() *cobra.Command {
	var file, policy string
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Serve the proxy on a TCP address, for workloads that something else confines",
		Long: `Proxy serves the same pipeline as run on a TCP listener (CONNECT, absolute-form and SOCKS5).
Callers are known by proxy.clients; without it only a loopback address is served,
as one anonymous run. A policy that changed is taken over at once, changed clients within seconds, and SIGHUP
reads both again; SIGTERM ends it.`,
		Example: "  warder proxy --config /etc/warder/warder.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := serveProxy(cmd, file, policy); err != nil {
				return &exitError{exitFailure, err}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `file`")
	cmd.Flags().StringVar(&policy, "policy", "", "policy `folder`, in place of the file's")
	return cmd
}

func serveProxy(cmd *cobra.Command, file, policy string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	a, err := openApp(ctx, appOptions{config: file, policy: policy, stderr: cmd.ErrOrStderr()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	if _, err := a.ready(ctx); err != nil {
		return err
	}
	s := &proxyRuns{app: a, live: map[*proxy.Run]*proxyRun{}, owed: make(chan struct{}, 1)}
	defer a.sweepOn(ctx, s.owed, cmd.ErrOrStderr())()
	ca, err := proxyCA(a.cfg.Proxy.CA)
	if err != nil {
		return err
	}
	clients, err := proxyClients(a.cfg.Proxy.Clients, ca)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", a.cfg.Proxy.Listen)
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	if len(clients) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "warder: proxy: no proxy.clients: everyone on this machine is one anonymous run")
	}
	if err := a.audit.Append(ctx, clientsRecord(clients, nil)).Wait(ctx); err != nil {
		return errors.Join(fmt.Errorf("audit: %w", err), ln.Close())
	}
	waitAdmin, err := a.serveAdmin(ctx, cmd.ErrOrStderr())
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	defer waitAdmin()
	defer a.followPolicy(ctx, cmd.ErrOrStderr())()
	s.ca = ca
	f := &clientFollower{app: a, ca: ca, stderr: cmd.ErrOrStderr(), inForce: clients, updates: make(chan []proxy.Client)}
	defer f.follow(ctx)()
	fmt.Fprintln(cmd.ErrOrStderr(), "warder: proxy: listening on", ln.Addr()) // SIGHUP is heard from here on
	return a.proxy.ServeListener(ctx, ln, proxy.ListenOptions{Clients: clients, Updates: f.updates, Open: s.open, Close: s.close, CA: ca})
}

// serveAdmin answers metrics, health and readiness where the configuration says,
// until ctx ends.
func (a *app) serveAdmin(ctx context.Context, stderr io.Writer) (wait func(), err error) {
	if a.cfg.Proxy.Admin == "" {
		return func() {}, nil
	}
	ln, err := net.Listen("tcp", a.cfg.Proxy.Admin)
	if err != nil {
		return nil, fmt.Errorf("proxy: admin: %w", err)
	}
	fmt.Fprintln(stderr, "warder: proxy: admin on", ln.Addr())
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := a.proxy.ServeAdmin(ctx, ln, func() error { return ctx.Err() }); err != nil {
			fmt.Fprintln(stderr, "warder:", err)
		}
	}()
	return func() { cancel(); <-done }, nil
}

// proxyRuns gives each client its run: its credentials, its journal.
type proxyRuns struct {
	app  *app
	ca   *proxy.CA
	mu   sync.Mutex
	live map[*proxy.Run]*proxyRun
	owed chan struct{} // capacity 1: the end of a run left something unconfirmed
}

type proxyRun struct {
	sess    *broker.Session
	journal *runner.State
}

func (s *proxyRuns) open(ctx context.Context, client proxy.Client) (*proxy.Run, error) {
	offered, err := granted(client.Grants)
	if err != nil {
		return nil, err
	}
	ident := identity.Run{ID: identity.NewRunID(), Agent: client.Name, User: callerName()}
	journal, err := s.app.state.Journal()
	if err != nil {
		return nil, err
	}
	sess, err := s.app.broker.Begin(ident, offered, journal)
	if err != nil {
		return nil, errors.Join(err, journal.Close())
	}
	r, err := s.app.proxy.NewRun(proxy.RunOptions{Run: ident, Offered: sess.Offered(), Granter: sess, CA: s.ca, StandIns: proxy.StandInsOf(sess)})
	if err != nil {
		sess.End(ctx)
		return nil, errors.Join(err, journal.Close())
	}
	s.mu.Lock()
	s.live[r] = &proxyRun{sess, journal}
	s.mu.Unlock()
	return r, nil
}

func (s *proxyRuns) close(ctx context.Context, _ string, r *proxy.Run) {
	s.mu.Lock()
	p := s.live[r]
	delete(s.live, r)
	s.mu.Unlock()
	err := r.Close(ctx)
	if p != nil {
		unconfirmed := slices.ContainsFunc(p.sess.End(ctx), func(o broker.Outcome) bool { return o.Status == broker.StatusUnconfirmed })
		err = errors.Join(err, p.journal.Close())
		if unconfirmed || err != nil {
			select {
			case s.owed <- struct{}{}: // from now on anybody may take up its journal
			default:
			}
		}
	}
	if err != nil {
		s.app.log.Warn("proxy: end of run", "err", err)
	}
}

func proxyCA(c *config.ProxyCA) (*proxy.CA, error) {
	if c == nil {
		return nil, nil
	}
	if err := config.CheckOwned(c.KeyFile); err != nil {
		return nil, fmt.Errorf("proxy.ca: %w", err)
	}
	return proxy.LoadCA(c.CertFile, c.KeyFile)
}
