package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"warder/internal/config"
	"warder/internal/secret"
)

const (
	fileKeep       = 30 * time.Second // a changed file is seen after this at the latest
	commandKeep    = 5 * time.Minute
	commandTimeout = 10 * time.Second
	foreverKeep    = 365 * 24 * time.Hour
)

func (b *Broker) setLocalSource(c *credential) error {
	local := c.cfg.Source.Local
	key := "credentials." + c.name + ".source.local"
	switch {
	case local.Env != "":
		c.kind, c.source = KindEnv, envSource{local.Env, b.opts.Getenv}
	case local.File != "":
		c.kind, c.source = KindFile, fileSource{path: local.File, config: b.opts.ConfigFile}
	case len(local.Command) > 0:
		if b.opts.ConfigFile == "" {
			return fmt.Errorf("%s.command: only a configuration file can name a command", key)
		}
		c.kind, c.source = KindCommand, commandSource{argv: local.Command, config: b.opts.ConfigFile}
	case local.JWT != nil:
		if b.opts.StateDir == "" {
			return fmt.Errorf("%s.jwt: there is no state folder for its key", key)
		}
		c.kind, c.source = KindJWT, newJWTSource(c.name, *local.JWT, b.opts)
	case local.TOTP != nil:
		c.kind, c.source = KindTOTP, totpSource{cfg: *local.TOTP, config: b.opts.ConfigFile, clock: b.opts.Clock}
	case local.HMAC != nil:
		c.kind, c.source = KindHMAC, hmacSource{cfg: *local.HMAC, config: b.opts.ConfigFile}
	case local.PKI != nil:
		c.kind, c.source = KindPKI, localPKI{cfg: *local.PKI, config: b.opts.ConfigFile, clock: b.opts.Clock}
	default:
		return notYet(key)
	}
	return nil
}

// envSource reads a variable of this process, never of the sandbox.
type envSource struct {
	name   string
	getenv func(string) (string, bool)
}

func (s envSource) fetch(context.Context, *Session, string) (*material, error) {
	v, ok := s.getenv(s.name)
	if !ok {
		return nil, fmt.Errorf("the variable %s is not set", s.name)
	}
	if err := checkValue(v); err != nil {
		return nil, fmt.Errorf("the variable %s: %w", s.name, err)
	}
	return &material{value: secret.New(v), keep: foreverKeep}, nil
}

// fileSource reads a file whose single final line break does not count.
type fileSource struct{ path, config string }

func (s fileSource) fetch(context.Context, *Session, string) (*material, error) {
	if s.config != "" {
		if err := config.CheckOwned(s.config); err != nil {
			return nil, fmt.Errorf("the configuration names a file, but %w", err)
		}
	}
	v, err := readSecretFile(s.path)
	if err != nil {
		return nil, err
	}
	return valueOf(v, s.path, fileKeep)
}

// commandSource runs a program of the caller's with the caller's environment and
// takes its standard output, less one final line break.
type commandSource struct {
	argv   []string
	config string
}

func (s commandSource) fetch(ctx context.Context, _ *Session, _ string) (*material, error) {
	if err := config.CheckOwned(s.config); err != nil {
		return nil, fmt.Errorf("the configuration names a command, but %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Dir = filepath.Dir(s.config)
	out := &cappedBuffer{max: maxValue + 2}
	cmd.Stdout = out
	if err := cmd.Run(); err != nil { // its own output and errors are not repeated: they may hold the value
		clear(out.buf.Bytes())
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("the command %s: not done after %s", s.argv[0], commandTimeout)
		case errors.As(err, &exit):
			return nil, fmt.Errorf("the command %s: %s", s.argv[0], exit.ProcessState)
		}
		return nil, fmt.Errorf("the command %s: %w", s.argv[0], err)
	}
	return valueOf(out.buf.Bytes(), "the output of "+s.argv[0], commandKeep)
}

// cappedBuffer stops a program that writes more than any value can be.
type cappedBuffer struct {
	buf bytes.Buffer
	max int
}

func (b *cappedBuffer) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > b.max {
		return 0, errors.New("too much output")
	}
	return b.buf.Write(p)
}

// valueOf takes ownership of raw.
func valueOf(raw []byte, from string, keep time.Duration) (*material, error) {
	raw = bytes.TrimSuffix(raw, []byte("\n"))
	raw = bytes.TrimSuffix(raw, []byte("\r"))
	if err := checkValue(string(raw)); err != nil {
		clear(raw)
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return &material{value: secret.FromBytes(raw), keep: keep}, nil
}

// readSecretFile reads a small regular file that belongs to the caller, as does
// the folder it is in, and that nobody else may write to (config.ReadOwned).
func readSecretFile(path string) ([]byte, error) { return config.ReadOwned(path, maxValue+2) }
