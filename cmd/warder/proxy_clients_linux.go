package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"warder/audit"
	"warder/internal/config"
	"warder/policies"
	"warder/proxy"
)

// clientFollower takes over proxy.clients when the configuration, or a file that it names
// for one of them, was changed. Nothing else of the configuration is read again.
type clientFollower struct {
	app     *app
	ca      *proxy.CA
	stderr  io.Writer
	updates chan []proxy.Client

	inForce       []proxy.Client
	paths         []string
	taken, before string // fingerprints: of what was read last, and of the last look
	failing       string // why that was not taken over, as it was told; "": it was

	owed     *audit.Record // of what is in force, while it may not be in the log; nil: it is
	recorded *audit.Future // of owed
}

// follow looks at the files until ctx ends; the returned function waits for that.
func (f *clientFollower) follow(ctx context.Context) (wait func()) {
	if f.app.cfg.File == "" {
		return func() {}
	}
	f.watch(f.app.cfg.Proxy.Clients)
	return beside(ctx, f.run)
}

func (f *clientFollower) run(ctx context.Context, hup <-chan os.Signal) {
	look := time.NewTicker(followEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			f.taken, f.failing = "", "" // at the next look that finds the files at rest
		case <-look.C:
			f.look(ctx)
			f.settle(ctx)
		}
	}
}

func (f *clientFollower) watch(list []config.Client) {
	f.paths = []string{f.app.cfg.File}
	for _, c := range list {
		f.paths = append(f.paths, c.TokenFile, c.CertFile)
	}
}

// look reads files that changed, once they have stopped changing.
func (f *clientFollower) look(ctx context.Context) {
	now := policies.Fingerprint(f.paths...)
	settled := now == f.before
	f.before = now
	if settled && (now != f.taken || f.failing != "") {
		f.taken = now
		f.load(ctx)
	}
}

func (f *clientFollower) load(ctx context.Context) {
	list, err := f.read()
	if err != nil { // it may only be for now: it is tried again, and told once
		if f.failing != err.Error() {
			f.failing = err.Error()
			fmt.Fprintln(f.stderr, "warder: proxy: the clients stay as they were:", err)
		}
		return
	}
	f.failing = ""
	if slices.Equal(list, f.inForce) {
		return
	}
	f.record(ctx, list) // before the first request that it lets in
	select {
	case f.updates <- list:
	case <-ctx.Done():
		return
	}
	f.inForce = list
	names := make([]string, len(list))
	for i, c := range list {
		names[i] = c.Name
	}
	fmt.Fprintf(f.stderr, "warder: proxy: clients: %q\n", names)
}

// record has the log say who is known from here on. A log that cannot be written holds up
// nobody's removal: what it lacks is written when it can be.
func (f *clientFollower) record(ctx context.Context, list []proxy.Client) {
	r := clientsRecord(list, f.inForce)
	if f.owed != nil { // nor does the log say who went before
		for _, name := range f.owed.Gone {
			if !slices.Contains(r.Gone, name) {
				r.Gone = append(r.Gone, name)
			}
		}
	}
	f.owed, f.recorded = r, f.append(ctx, r)
}

// append gives the log a record, which it may have no room for while its disk hangs.
func (f *clientFollower) append(ctx context.Context, r *audit.Record) *audit.Future {
	ctx, cancel := context.WithTimeout(ctx, followEvery)
	defer cancel()
	return f.app.audit.Append(ctx, r)
}

// settle writes again what the log refused.
func (f *clientFollower) settle(ctx context.Context) {
	if f.owed == nil {
		return
	}
	wait, cancel := context.WithTimeout(ctx, followEvery)
	defer cancel()
	switch err := f.recorded.Wait(wait); {
	case err == nil:
		f.owed, f.recorded = nil, nil
	case wait.Err() == nil:
		f.recorded = f.append(ctx, f.owed)
	}
}

// clientsRecord tells who is known, and who was before and is not any more.
func clientsRecord(list, before []proxy.Client) *audit.Record {
	r := &audit.Record{Event: audit.EventClients, Callers: &audit.Callers{}}
	for _, c := range list {
		known := audit.Caller{Name: c.Name, KnownBy: "token"}
		if c.Certificate != [sha256.Size]byte{} {
			known.KnownBy, known.CertSHA256 = "certificate", hex.EncodeToString(c.Certificate[:])
		}
		known.Credentials, _ = granted(c.Grants) // our own JSON
		r.Clients = append(r.Clients, known)
	}
	for _, c := range before {
		if !slices.Contains(list, c) {
			r.Gone = append(r.Gone, c.Name)
		}
	}
	return r
}

func (f *clientFollower) read() ([]proxy.Client, error) {
	file := policies.Fingerprint(f.app.cfg.File)
	cfg, err := config.Load(f.app.cfg.File)
	if err != nil {
		return nil, err
	}
	list := cfg.Proxy.Clients
	f.watch(list)
	files := policies.Fingerprint(f.paths...)
	if len(list) == 0 && len(f.inForce) > 0 {
		return nil, errors.New("there are none; hint: without clients everybody would come in, which takes a new start")
	}
	for _, c := range list {
		for _, name := range c.Credentials {
			if _, ok := f.app.cfg.Credentials[name]; !ok {
				return nil, fmt.Errorf("proxy.clients: %s: credential %q is newer than this process; hint: start it anew", c.Name, name)
			}
		}
	}
	clients, err := proxyClients(list, f.ca)
	if err == nil && (policies.Fingerprint(f.app.cfg.File) != file || policies.Fingerprint(f.paths...) != files) {
		err = errors.New("a file was changed while it was read")
	}
	return clients, err
}

// granted is what a client is offered; nil: all.
func granted(grants string) (names []string, err error) {
	if grants != "" {
		err = json.Unmarshal([]byte(grants), &names)
	}
	return names, err
}

// proxyClients reads what clients are known by. A client that names no credentials is
// offered all.
func proxyClients(list []config.Client, ca *proxy.CA) ([]proxy.Client, error) {
	var out []proxy.Client
	for _, c := range list {
		grants := ""
		if c.Credentials != nil {
			text, err := json.Marshal(c.Credentials)
			if err != nil {
				return nil, fmt.Errorf("proxy.clients: %s: %w", c.Name, err)
			}
			grants = string(text)
		}
		if c.CertFile != "" {
			known, err := certifiedClient(c, ca)
			if err != nil {
				return nil, fmt.Errorf("proxy.clients: %s: %w", c.Name, err)
			}
			known.Grants = grants
			out = append(out, known)
			continue
		}
		b, err := config.ReadOwned(c.TokenFile, 64<<10)
		if err != nil {
			return nil, fmt.Errorf("proxy.clients: %s: %w", c.Name, err)
		}
		token := strings.TrimSpace(string(b))
		if token == "" {
			return nil, fmt.Errorf("proxy.clients: %s: token_file is empty", c.Name)
		}
		out = append(out, proxy.Client{Name: c.Name, Token: sha256.Sum256([]byte(token)), Grants: grants})
	}
	for i, c := range out {
		if j := slices.IndexFunc(out, func(o proxy.Client) bool { return o.Token == c.Token && o.Certificate == c.Certificate }); j < i {
			return nil, fmt.Errorf("proxy.clients: %s and %s are known by the same token or certificate", out[j].Name, c.Name)
		}
	}
	return out, nil
}

// certifiedClient is known by the very certificate in the file, over TLS with the
// listener itself.
func certifiedClient(c config.Client, ca *proxy.CA) (proxy.Client, error) {
	if ca == nil {
		return proxy.Client{}, errors.New("a client certificate needs TLS with the listener; hint: set proxy.ca")
	}
	if err := config.CheckOwned(c.CertFile); err != nil {
		return proxy.Client{}, err
	}
	text, err := os.ReadFile(c.CertFile)
	if err != nil {
		return proxy.Client{}, err
	}
	sum, err := proxy.CertificateOf(text)
	return proxy.Client{Name: c.Name, Certificate: sum}, err
}
