package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"warder/internal/config"
	"warder/policies"
)

// bundleState is what is known of policy.bundle. One goroutine at a time uses it.
type bundleState struct {
	fetcher *policies.Fetcher // nil until the first download
	good    time.Time         // when the server last said what is in force
	expired bool              // nothing is in force, because that is too long ago
}

// loadBundle verifies and compiles the bundle, and puts it in force.
func (a *app) loadBundle(ctx context.Context, stderr io.Writer) error {
	b := a.cfg.Policy.Bundle
	if b.File != "" {
		content, err := readFileBounded(b.File, policies.MaxBundleBytes)
		if err != nil {
			return fmt.Errorf("policy.bundle: %w", err)
		}
		return a.useBundle(b.File, content)
	}
	_, err := a.fetchBundle(ctx)
	if err == nil || a.engine.Load() != nil {
		return err
	}
	// At the start the last good one may help.
	content, age, kept := a.keptBundle()
	if !kept || age > time.Duration(b.MaxAge) {
		return err
	}
	if useErr := a.useBundle(b.URL, content); useErr != nil {
		return errors.Join(err, useErr)
	}
	a.bundle.good = time.Now().Add(-age)
	fmt.Fprintf(stderr, "warder: policy: the bundle of %s ago is in force: %v\n", age.Round(time.Second), err)
	return nil
}

// fetchBundle asks the server, and reports whether another bundle is in force now.
func (a *app) fetchBundle(ctx context.Context) (changed bool, err error) {
	b := a.cfg.Policy.Bundle
	if a.bundle.fetcher == nil {
		roots, err := bundleRoots(b.CAFile)
		if err != nil {
			return false, err
		}
		if a.bundle.fetcher, err = policies.NewFetcher(b.URL, roots); err != nil {
			return false, err
		}
	}
	content, err := a.bundle.fetcher.Fetch(ctx)
	if err != nil {
		return false, err
	}
	if content != nil {
		if err := a.useBundle(b.URL, content); err != nil {
			return false, err
		}
		a.bundle.fetcher.Accept()
		changed = true
	}
	a.bundle.good, a.bundle.expired = time.Now(), false
	a.keepBundle(content)
	return changed, nil
}

func bundleRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := readFileBounded(file, 1<<20)
	if err != nil {
		return nil, fmt.Errorf("policy.bundle.ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("policy.bundle.ca_file: %s: no certificate", file)
	}
	return pool, nil
}

func (a *app) useBundle(name string, content []byte) error {
	b := a.cfg.Policy.Bundle
	key, err := readFileBounded(b.KeyFile, 1<<20)
	if err != nil {
		return fmt.Errorf("policy.bundle.key_file: %w", err)
	}
	o := a.policyOptions()
	o.Dir, o.Bundle, o.BundleKey = name, content, &policies.BundleKey{PEM: key, Algorithm: b.Algorithm, Scope: b.Scope}
	e, err := policies.Load(o)
	if err != nil {
		return err
	}
	a.use(e)
	return nil
}

// keptBundleFile holds the last good bundle for a start without its server. It
// is verified like any other; its time is when the server last confirmed it.
func keptBundleFile() string { return filepath.Join(config.StateDir(), "policy-bundle.tar.gz") }

func (a *app) keptBundle() (content []byte, age time.Duration, ok bool) {
	info, err := os.Stat(keptBundleFile())
	if err != nil {
		return nil, 0, false
	}
	content, err = readFileBounded(keptBundleFile(), policies.MaxBundleBytes)
	age = time.Since(info.ModTime())
	return content, age, err == nil && age >= 0
}

// keepBundle keeps a new bundle, or the time of one that is confirmed (nil). It
// is a help alone: what fails here is told by the next start.
func (a *app) keepBundle(content []byte) {
	name := keptBundleFile()
	if content == nil {
		now := time.Now()
		_ = os.Chtimes(name, now, now)
		return
	}
	if os.MkdirAll(filepath.Dir(name), 0o700) != nil {
		return
	}
	temp, err := os.CreateTemp(filepath.Dir(name), ".policy-bundle-*")
	if err != nil {
		return
	}
	_, err = temp.Write(content)
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), name)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
	}
}

func readFileBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s: larger than %d bytes", name, limit)
	}
	return content, err
}

// followEvery is how often the files of a policy are looked at.
const followEvery = time.Second

// followPolicy takes over a policy that changed, until ctx ends; the returned
// function waits for that. A policy that does not load changes nothing.
func (a *app) followPolicy(ctx context.Context, stderr io.Writer) (wait func()) {
	return beside(ctx, newFollower(a, stderr).run)
}

// beside has run do its work until ctx ends or wait is called, and tells it of SIGHUP.
func beside(ctx context.Context, run func(ctx context.Context, hup <-chan os.Signal)) (wait func()) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer signal.Stop(hup)
		run(ctx, hup)
	}()
	return func() { cancel(); <-done }
}

// policyPaths are the folders and files that a policy is read from.
func (a *app) policyPaths() []string {
	p := a.cfg.Policy
	paths := append([]string{p.Path, p.Floor}, p.Roots...)
	if p.Bundle != nil {
		paths = append(paths, p.Bundle.File, p.Bundle.KeyFile)
	}
	return paths
}

type follower struct {
	app             *app
	stderr          io.Writer
	paths           []string
	inForce, before string // fingerprints: of what was loaded last, and of the last look
	asked           time.Time
	failing         string // the last failure of the server that was told
}

// newFollower goes on from the files as they were when the policy was loaded: what
// changed since is a change.
func newFollower(a *app, stderr io.Writer) *follower {
	f := &follower{app: a, stderr: stderr, paths: a.policyPaths()}
	f.inForce, f.before = a.policyFiles, a.policyFiles
	return f
}

func (f *follower) run(ctx context.Context, hup <-chan os.Signal) {
	files := time.NewTicker(followEvery)
	defer files.Stop()
	f.asked = time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			f.inForce = policies.Fingerprint(f.paths...)
			f.load(ctx)
		case <-files.C:
			f.look(ctx)
			if b := f.app.cfg.Policy.Bundle; b != nil && b.URL != "" && time.Since(f.asked) >= time.Duration(b.Poll) {
				f.ask(ctx)
			}
		}
	}
}

// look loads files that changed, once they have stopped changing.
func (f *follower) look(ctx context.Context) {
	now := policies.Fingerprint(f.paths...)
	settled := now == f.before
	f.before = now
	if now != f.inForce && settled {
		f.inForce = now // also when it does not load: it is told once
		f.load(ctx)
	}
}

func (f *follower) load(ctx context.Context) {
	before := f.app.engine.Load()
	if err := f.app.loadPolicy(ctx, f.stderr); err != nil {
		fmt.Fprintln(f.stderr, "warder: proxy: the policy stays as it was:", err)
		return
	}
	if f.app.engine.Load() != before {
		f.tell(ctx)
	}
}

// ask downloads a bundle that changed. One that the server has not confirmed
// for too long is no longer in force.
func (f *follower) ask(ctx context.Context) {
	f.asked = time.Now()
	changed, err := f.app.fetchBundle(ctx)
	if err == nil {
		f.failing = ""
		if changed {
			f.tell(ctx)
		}
		return
	}
	if ctx.Err() == nil && f.failing != err.Error() {
		f.failing = err.Error()
		fmt.Fprintln(f.stderr, "warder: proxy: the policy stays as it was:", err)
	}
	state, b := &f.app.bundle, f.app.cfg.Policy.Bundle
	if !state.expired && time.Since(state.good) > time.Duration(b.MaxAge) {
		state.expired = true
		if state.fetcher != nil {
			state.fetcher.Forget()
		}
		f.app.engine.Store(policies.DenyAll("the policy is too old, and its server does not answer"))
		f.tell(ctx)
	}
}

// tell makes a new policy known: what is open and no longer allowed is cut.
func (f *follower) tell(ctx context.Context) {
	f.app.proxy.PolicyChanged()
	f.app.recordPolicy(ctx)
	fmt.Fprintln(f.stderr, "warder: proxy: policy", f.app.engine.Load().Revision())
}
