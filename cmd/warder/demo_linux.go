package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"warder/audit"
	"warder/broker"
	"warder/internal/config"
	"warder/internal/demo"
	"warder/internal/identity"
	"warder/runner"
)

const demoCredential = "inventory"

const demoRego = `package warder.egress

# METADATA
# title: Read the inventory
allow contains {"rule": "inventory-read", "credential": "inventory", "hint": "only GET /items is allowed"} if {
	input.request.host == "inventory.demo.test"
	input.request.method == "GET"
	input.request.path == "/items"
}
`

func newDemoCmd() *cobra.Command {
	var keep bool
	var client string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole of it on this machine, in one command",
		Long: `Demo starts an API on loopback that accepts only short-lived tokens, runs a client
in the sandbox that never holds one, and tells what the log says about it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if client != "" {
				return demo.Client(cmd.OutOrStdout(), client)
			}
			if err := runDemo(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), keep); err != nil {
				return &exitError{runner.ExitWarder, fmt.Errorf("demo: %w", err)}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the demo's folder, with configuration, policy and log")
	cmd.Flags().StringVar(&client, "client", "", "be the client inside the sandbox")
	_ = cmd.Flags().MarkHidden("client")
	return cmd
}

func runDemo(ctx context.Context, stdout, stderr io.Writer, keep bool) (err error) {
	if ctx == nil {
		ctx = context.Background()
	}
	dir, err := os.MkdirTemp("", "warder-demo-")
	if err != nil {
		return err
	}
	if keep {
		fmt.Fprintln(stdout, "Folder of the demo:", dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	d := &demoRun{dir: dir, out: stdout, stderr: stderr}
	if err := d.prepare(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.api.Close()) }()
	if err := d.perform(ctx); err != nil {
		return err
	}
	return d.verdict(ctx)
}

// demoKeys makes the signing key of the demo's credential and returns its
// public set (RFC 7517).
func demoKeys(dir string) ([]byte, error) {
	b, err := broker.New(broker.Options{
		StateDir: filepath.Join(dir, "keys"),
		Credentials: map[string]config.Credential{demoCredential: {
			Source: config.Source{Local: &config.LocalSource{JWT: &config.LocalJWT{Audience: demo.Audience, Subject: "demo-agent", TTL: config.Duration(5 * time.Minute)}}},
			Inject: config.Inject{Header: "Authorization", Format: "Bearer {value}"},
			Hosts:  []string{demo.Host},
		}},
	})
	if err != nil {
		return nil, err
	}
	return b.JWKS(demoCredential)
}

type demoRun struct {
	dir         string
	out, stderr io.Writer
	app         *app
	api         *demo.API
	run         string
}

func (d *demoRun) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// prepare writes policy and configuration, and starts the API with the public
// key of the credential.
func (d *demoRun) prepare(ctx context.Context) error {
	if err := os.Mkdir(filepath.Join(d.dir, "policies"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(d.dir, "policies", "inventory.rego"), []byte(demoRego), 0o600); err != nil {
		return err
	}
	jwks, err := demoKeys(d.dir)
	if err != nil {
		return err
	}
	if d.api, err = demo.StartAPI(jwks); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(d.dir, "api-ca.pem"), d.api.CA(), 0o600); err != nil {
		return err
	}
	file := filepath.Join(d.dir, "warder.yaml")
	if err := os.WriteFile(file, []byte(demoConfig(d.api.Addr())), 0o600); err != nil {
		return err
	}
	d.say("1. An API listens on %s. It accepts only tokens of at most ten minutes, checked against a public key set.", d.api.Addr())
	d.say("2. The policy allows GET /items on %s with the credential %q, and nothing else.\n", demo.Host, demoCredential)
	d.app, err = openApp(ctx, appOptions{config: file, oneShot: true, stderr: d.stderr, keys: filepath.Join(d.dir, "keys"), state: filepath.Join(d.dir, "state")})
	return err
}

func demoConfig(addr string) string {
	return fmt.Sprintf(`version: 1
policy: {path: ./policies}
credentials:
  inventory:
    source: {local: {jwt: {audience: %s, subject: demo-agent, ttl: 5m}}}
    inject: {header: Authorization, format: "Bearer {value}"}
    hosts: [%s]
    methods: [GET]
    paths: ["/items"]
proxy:
  upstream:
    ca_files: [./api-ca.pem]
    hosts: {%s: "%s"}
    allow_addresses: ["%s"]
audit: {dir: ./audit}
`, demo.Audience, demo.Host, demo.Host, addr, addr)
}

// perform runs the bundled client: this binary, copied in.
func (d *demoRun) perform(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r := &runner.Runner{Proxy: d.app.proxy, Broker: d.app.broker, State: d.app.state, Log: d.app.log, Ready: d.app.ready}
	t := runner.Task{
		Run:    identity.Run{ID: identity.NewRunID(), Task: "demo", Agent: "demo-agent", User: callerName()},
		Argv:   []string{"/workspace/warder", "demo", "--client", d.api.Addr()},
		Inputs: []runner.Input{{Source: self, Dest: "warder"}}, UIDRange: d.app.cfg.Sandbox.UIDRange,
		Limits: runner.Limits{Timeout: 2 * time.Minute}, Stdout: d.out, Stderr: d.stderr,
	}
	d.run = t.Run.ID
	d.say("3. A client runs in a fresh gVisor sandbox (run %s):\n", d.run)
	res, err := r.Run(ctx, t)
	if err != nil {
		return errors.Join(err, d.app.close())
	}
	d.say("\n   It ended with exit code %d after %s; its sandbox, files and credentials are gone.\n", res.ExitCode, res.Duration.Round(time.Millisecond))
	if err := d.app.close(); err != nil {
		return err
	}
	served, refused := d.api.Counts()
	if res.ExitCode != 0 || served != 1 || refused != 0 {
		return fmt.Errorf("the client ended with %d; the API served %d and refused %d requests instead of 1 and 0", res.ExitCode, served, refused)
	}
	return nil
}

// verdict tells the run from the log alone and verifies the log.
func (d *demoRun) verdict(ctx context.Context) error {
	dir := filepath.Join(d.dir, "audit")
	d.say("4. What the log tells:\n")
	if err := audit.Story(d.out, audit.Read(ctx, dir, audit.Filter{Run: d.run})); err != nil {
		return err
	}
	rep, err := audit.Verify(ctx, dir, audit.VerifyOptions{})
	if err != nil {
		return err
	}
	d.say("\n5. warder audit verify: %s (%d records of %d run)", rep.Verdict, rep.Records, rep.Runs)
	if rep.Verdict != audit.VerdictComplete {
		return fmt.Errorf("the log is %s", rep.Verdict)
	}
	return nil
}
