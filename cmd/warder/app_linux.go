package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"warder/audit"
	"warder/broker"
	"warder/internal/config"
	"warder/internal/identity"
	"warder/policies"
	"warder/proxy"
	"warder/runner"
)

// closeTimeout bounds the orderly end of one process's parts.
const closeTimeout = 30 * time.Second

// app is the parts that run and proxy share, made once a process.
type app struct {
	cfg         *config.Config
	engine      atomic.Pointer[policies.Engine]
	policyFiles string // fingerprint of what the policy was loaded from first
	bundle      bundleState
	audit       *audit.Log
	broker      *broker.Broker
	proxy       *proxy.Proxy
	state       *runner.StateDir
	logins      *runner.State // journal of login tokens, nil without Vault
	log         *slog.Logger
	trace       func(runner.Phase) // nil: none; set before the first request

	opts       appOptions
	once       sync.Once
	connectErr error
	opened     chan struct{} // closed when policy and log are open, or openErr is set
	openErr    error
	announce   sync.Once
}

// lateLog is the log for those who are made before it is open. Nothing is
// recorded before the task starts, and by then it is.
type lateLog struct{ a *app }

func (l lateLog) Append(ctx context.Context, r *audit.Record) *audit.Future {
	if log := l.a.openLog(); log != nil {
		return log.Append(ctx, r)
	}
	return audit.Failed(errNoLog)
}

func (l lateLog) AppendRelaxed(ctx context.Context, r *audit.Record) *audit.Future {
	if log := l.a.openLog(); log != nil {
		return log.AppendRelaxed(ctx, r)
	}
	return audit.Failed(errNoLog)
}

func (l lateLog) AppendBehind(ctx context.Context, r *audit.Record) *audit.Future {
	if log := l.a.openLog(); log != nil {
		return log.AppendBehind(ctx, r)
	}
	return audit.Failed(errNoLog)
}

// KeepInput stores what a decision was made from, behind the log's back.
func (l lateLog) KeepInput(ref string, content []byte) {
	if log := l.a.openLog(); log != nil {
		log.KeepInput(ref, content)
	}
}

func (l lateLog) Durable() string { return l.a.cfg.Audit.Durable }

var errNoLog = errors.New("the audit log could not be opened")

// openLog waits for the log; nil when it could not be opened.
func (a *app) openLog() *audit.Log {
	<-a.opened
	return a.audit
}

// appOptions are what flags may replace.
type appOptions struct {
	config  string
	policy  string
	oneShot bool   // a run: single-use SecretIDs are refused
	keys    string // folder of local signing keys; "" means the state folder's
	state   string // state folder; "" means the user's
	stderr  io.Writer
}

// openApp makes an app with all of its parts open or being opened.
func openApp(ctx context.Context, o appOptions) (*app, error) {
	a, err := newApp(o)
	if err != nil {
		return nil, err
	}
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// newApp reads the configuration, and nothing else that takes time.
func newApp(o appOptions) (*app, error) {
	cfg, err := config.LoadFound(o.config)
	if err != nil {
		return nil, err
	}
	if o.policy != "" {
		cfg.Policy.Path, cfg.Policy.Bundle = o.policy, nil
	}
	a := &app{cfg: cfg, opts: o, log: slog.New(slog.NewTextHandler(o.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	a.state, err = runner.OpenState(cmp.Or(o.state, config.StateDir()))
	return a, err
}

// open makes broker and proxy, and begins to open policy and log, for which ready
// waits. Later calls return what the first one did.
func (a *app) open(ctx context.Context) error {
	a.once.Do(func() {
		a.opened = make(chan struct{})
		go func() { // beside the making of the sandbox
			defer close(a.opened)
			a.openErr = a.openBoth(ctx, a.opts.stderr)
		}()
		a.connectErr = a.connect(a.opts)
	})
	return a.connectErr
}

// openBoth compiles the policy and opens the audit stream, side by side.
func (a *app) openBoth(ctx context.Context, stderr io.Writer) error {
	loaded := make(chan error, 1)
	go func() { loaded <- a.loadPolicy(ctx, stderr) }()
	log, err := audit.Open(ctx, audit.Options{
		Dir: a.cfg.Audit.Dir, Durable: a.cfg.Audit.Durable,
		Warn: func(msg string) { fmt.Fprintln(stderr, "warder: audit:", msg) },
	})
	if err != nil {
		err = fmt.Errorf("audit: %w", err)
	}
	a.audit = log
	return errors.Join(<-loaded, err)
}

func (a *app) closeLog(ctx context.Context) error {
	if a.opened == nil {
		return nil
	}
	if log := a.openLog(); log != nil {
		return log.Close(ctx)
	}
	return nil
}

// ready waits for policy and log. Nothing is judged before.
func (a *app) ready(ctx context.Context) (*audit.Log, error) {
	if err := a.open(ctx); err != nil {
		return nil, err
	}
	select {
	case <-a.opened:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.openErr != nil {
		return nil, a.openErr
	}
	a.announce.Do(func() { a.recordPolicy(ctx) })
	return a.audit, nil
}

func (a *app) connect(o appOptions) error {
	var err error
	opts := broker.Options{
		Vault: a.cfg.Vault, Credentials: a.cfg.Credentials, ConfigFile: a.cfg.File,
		StateDir: cmp.Or(o.keys, keyDir(a.cfg)), OneShot: o.oneShot, Stopped: a.state.Stopped,
		Getenv: os.LookupEnv, OnLease: a.recordLease, Log: a.log,
	}
	if a.cfg.Vault != nil {
		if a.logins, err = a.state.Journal(); err != nil {
			return err
		}
		opts.Journal = a.logins
	}
	if a.broker, err = broker.New(opts); err != nil {
		return err
	}
	a.proxy, err = proxy.New(proxy.Options{
		Policy: a.decider, Audit: lateLog{a}, Upstream: a.cfg.Proxy.Upstream, Log: a.log,
		Limits: proxy.Limits{
			MaxConnsPerRun: a.cfg.Proxy.Limits.Connections, MaxRequestsPerRun: a.cfg.Proxy.Limits.Requests,
			BytesPerSecond: int64(a.cfg.Proxy.Limits.Bandwidth),
		},
	})
	return err
}

func (a *app) decider() proxy.Decider {
	if e := a.engine.Load(); e != nil {
		return e
	}
	return nil
}

// loadPolicy compiles the policy folder or bundle. Without one, everything is denied.
func (a *app) loadPolicy(ctx context.Context, stderr io.Writer) error {
	if !a.opts.oneShot {
		a.policyFiles = policies.Fingerprint(a.policyPaths()...) // before they are read
	}
	if a.cfg.Policy.Path == "" && a.cfg.Policy.Bundle == nil {
		if a.cfg.File == "" {
			fmt.Fprintln(stderr, "warder:", config.NoConfig)
		} else {
			fmt.Fprintln(stderr, "warder: no policy.path in", a.cfg.File+": every request is denied")
		}
		a.engine.Store(policies.DenyAll("no policy is configured"))
		return nil
	}
	if a.cfg.Policy.Bundle != nil {
		return a.loadBundle(ctx, stderr)
	}
	e, err := policies.Load(a.policyOptions())
	if err != nil {
		return err
	}
	a.use(e)
	return nil
}

// use puts a policy in force. What lives long compiles all of it before; a single
// run starts sooner when that is left to its first request.
func (a *app) use(e *policies.Engine) {
	if !a.opts.oneShot {
		e.Prepare()
	}
	a.engine.Store(e)
}

func (a *app) policyOptions() policies.Options {
	return policies.Options{
		Dir: a.cfg.Policy.Path, Mode: a.cfg.Policy.Mode, Roots: a.cfg.Policy.Roots, Floor: a.cfg.Policy.Floor,
		KeepInput: true,
	}
}

// recordPolicy writes which policy is in force, and keeps its text.
func (a *app) recordPolicy(ctx context.Context) {
	e := a.engine.Load()
	r := &audit.Record{Event: audit.EventPolicyLoad, Policy: &audit.Policy{Revision: e.Revision(), Digest: e.Digest(), Mode: e.Mode()}}
	if sources := e.Sources(); len(sources) > 0 {
		files := make(map[string][]byte, len(sources))
		for _, s := range sources {
			files[s.Path] = s.Content
		}
		if err := a.audit.KeepPolicy(e.Digest(), files); err != nil {
			r.Detail = "its text is not kept: " + err.Error()
		}
	}
	a.audit.Append(ctx, r)
}

// recordLease writes what the broker did at Vault.
func (a *app) recordLease(event, runID string, o broker.Outcome) {
	if a.trace != nil {
		a.trace(runner.Phase{Name: event, Run: runID, Time: time.Now(), PID: os.Getpid()})
	}
	c := audit.Credential{Name: o.Name, Kind: o.Kind, LeaseID: o.LeaseID, Accessor: o.Accessor, Status: o.Status, Detail: o.Detail}
	if !o.Expires.IsZero() {
		c.Expires = o.Expires.UTC().Format(time.RFC3339)
	}
	lateLog{a}.Append(context.Background(), &audit.Record{Event: event, Run: &identity.Run{ID: runID}, Credential: &c})
}

// close ends everything in reverse order.
func (a *app) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var err error
	if a.proxy != nil {
		err = a.proxy.Close(ctx)
	}
	if a.broker != nil {
		err = errors.Join(err, a.broker.Close(ctx))
	}
	if a.logins != nil {
		err = errors.Join(err, a.logins.Close())
	}
	ctx, cancel = context.WithTimeout(context.Background(), closeTimeout) // whatever Vault has left of the other
	defer cancel()
	return errors.Join(err, a.closeLog(ctx))
}
