package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// soaked is one running proxy under the soak, and what it serves from.
type soaked struct {
	peers
	o       soakOptions
	proxy   *peer
	admin   string
	rego    string
	secure  string
	clear   string
	toggled [2]int // answers that the two policies gave
	cut     int    // that the second cut
	mu      sync.Mutex
}

type soakOptions struct {
	warder  string
	time    time.Duration
	workers int
	names   int // of the flood
	tunnels int
	stream  int64 // bytes of a head without an end
}

// soakToken is what the credential of the soak is.
const soakToken = "S3CR3T-CANARY-soak-0123456789"

// soak sends mixed traffic at saturation for a while, with a new policy every second
// and faults of the upstream, and fails when anything went wrong that was not
// injected or when memory, descriptors or goroutines grew. Then one client floods,
// and another's slowest answers must stay as they are.
func soak(args []string) (err error) {
	var o soakOptions
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	fs.StringVar(&o.warder, "warder", "bin/warder", "the product's `binary`")
	fs.DurationVar(&o.time, "time", 20*time.Minute, "of the mixed traffic")
	fs.IntVar(&o.workers, "workers", 32, "clients at once")
	fs.IntVar(&o.names, "names", 100_000, "names that the flood asks for")
	fs.IntVar(&o.tunnels, "tunnels", 10_000, "tunnels that the flood opens")
	fs.Int64Var(&o.stream, "head", 1<<30, "bytes of the flood's head")
	if err := fs.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "warder-soak")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &soaked{peers: peers{dir: dir, by: map[string]*peer{}}, o: o}
	defer func() { err = errors.Join(err, s.finish()) }()
	if err := s.begin(); err != nil {
		return err
	}
	if err := s.mixed(); err != nil {
		return fmt.Errorf("mixed traffic: %w\n%s", err, s.logs())
	}
	return s.flood()
}

func (s *soaked) begin() error {
	if err := makePKI(s.dir); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var addrs [4]string
	for i := range addrs {
		if addrs[i], err = freePort(); err != nil {
			return err
		}
	}
	s.secure, s.clear, s.admin = addrs[0], addrs[1], addrs[2]
	for _, name := range []string{"busy", "flood", "quiet"} {
		if err := os.WriteFile(filepath.Join(s.dir, name+".token"), []byte(tokenOf(name)+"\n"), 0o600); err != nil {
			return err
		}
	}
	s.rego = filepath.Join(s.dir, "policies")
	if err := s.toggle(0); err != nil {
		return err
	}
	config := filepath.Join(s.dir, "soak.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, soakConfig, s.secure, s.clear, addrs[3], s.admin, originName, plainName, throughName), 0o600); err != nil {
		return err
	}
	if err := s.start(s.secure, []string{"origin"}, []string{self, "origin", "-listen", s.secure, "-plain", s.clear, "-pki", s.dir}); err != nil {
		return err
	}
	warder, err := filepath.Abs(s.o.warder)
	if err != nil {
		return err
	}
	s.o.warder = warder
	if err := s.start(addrs[3], []string{"warder"}, []string{warder, "proxy", "--config", config}); err != nil {
		return err
	}
	s.proxy = s.by["warder"]
	return nil
}

func tokenOf(client string) string { return "S3CR3T-CANARY-client-" + client }

// throughName is the host that is tunnelled.
const throughName = "through.bench.test"

const soakConfig = `version: 1
policy: {path: ./policies}
credentials:
  bench:
    source: {local: {env: SOAK_TOKEN}}
    inject: {header: Authorization, format: "Bearer {value}"}
    hosts: [%[5]s]
proxy:
  listen: %[3]s
  admin: %[4]s
  ca: {cert_file: ca.crt, key_file: ca.key}
  clients:
    - {name: busy, token_file: ./busy.token}
    - {name: flood, token_file: ./flood.token}
    - {name: quiet, token_file: ./quiet.token}
  upstream:
    ca_files: [origin-ca.crt]
    hosts: {%[5]s: "%[1]s", %[6]s: "%[2]s", %[7]s: "%[2]s"}
    allow_addresses: ["%[5]s=%[1]s", "%[6]s=%[2]s", "%[7]s=%[2]s"]
audit: {dir: ./audit, durable: all}
`

// toggle writes one of two policies, which differ in one path.
func (s *soaked) toggle(n int) error {
	if err := os.MkdirAll(s.rego, 0o700); err != nil {
		return err
	}
	text := fmt.Sprintf(`package warder.egress

allow contains {"rule": "plain"} if {
	input.request.host in {%[1]q, %[2]q}
	startswith(input.request.path, "/plain/")
}

allow contains {"rule": "toggle"} if {
	input.request.host == %[1]q
	input.request.path == "/toggle/%[4]d"
}

allow contains {"rule": "credential", "credential": "bench"} if {
	input.request.host == %[1]q
	startswith(input.request.path, "/credential/")
}

tunnel contains {"rule": "through"} if input.request.host == %[3]q
`, originName, plainName, throughName, n%2)
	temp := filepath.Join(s.dir, "next.rego")
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, filepath.Join(s.rego, "soak.rego"))
}

// reload changes the policy every second until ctx ends.
func (s *soaked) reload(ctx context.Context) (n int, err error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return n, nil
		case <-tick.C:
			n++
			if err := s.toggle(n); err != nil {
				return n, err
			}
			if err := s.proxy.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				return n, err
			}
		}
	}
}

// finish ends everything and has the log verified.
func (s *soaked) finish() error {
	s.stop()
	out, err := exec.Command(s.o.warder, "audit", "verify", "--dir", filepath.Join(s.dir, "audit")).CombinedOutput()
	fmt.Printf("soak: %s\n", bytes.TrimSpace(out))
	if err != nil {
		return fmt.Errorf("the log: %w", err)
	}
	return nil
}

// mixed is the first part.
func (s *soaked) mixed() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.o.time)
	defer cancel()
	t, err := newTraffic(s, "busy")
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var reloads int
	var reloadErr error
	wg.Go(func() { reloads, reloadErr = s.reload(ctx) })
	for w := range s.o.workers {
		wg.Go(func() { t.work(ctx, w) })
	}
	seen, err := s.watch(ctx)
	wg.Wait()
	t.close()
	t.print()
	fmt.Printf("soak: %d reloads; the policies gave %d and %d answers, and cut %d\n", reloads, s.toggled[0], s.toggled[1], s.cut)
	errs := []error{err, reloadErr, t.verdict(), flat(seen)}
	if s.toggled[0] == 0 || s.toggled[1] == 0 {
		errs = append(errs, errors.New("a policy was never in force"))
	}
	return errors.Join(errs...)
}

// flat compares the first third of what was seen, its start left out, with the last.
func flat(seen []gauges) error {
	if len(seen) < 9 {
		return fmt.Errorf("only %d samples: too short a soak to judge", len(seen))
	}
	seen = seen[len(seen)/9:]
	third := len(seen) / 3
	var errs []error
	for _, g := range []struct {
		name  string
		of    func(gauges) float64
		slack float64
	}{
		{"resident MB", func(g gauges) float64 { return g.resident }, 24},
		{"heap MB after collections", func(g gauges) float64 { return g.live }, 12},
		{"descriptors", func(g gauges) float64 { return g.descriptors }, 24},
		{"goroutines", func(g gauges) float64 { return g.goroutines }, 64},
	} {
		var first, last []float64
		for i := range third {
			first = append(first, g.of(seen[i]))
			last = append(last, g.of(seen[len(seen)-1-i]))
		}
		a, b := median(first), median(last)
		fmt.Printf("soak: %-26s %8.1f at first, %8.1f at last, most %8.1f\n", g.name, a, b, slices.Max(pick(seen, g.of)))
		if b > a*1.15+g.slack {
			errs = append(errs, fmt.Errorf("%s grew from %.1f to %.1f", g.name, a, b))
		}
	}
	return errors.Join(errs...)
}

func pick(seen []gauges, of func(gauges) float64) []float64 {
	var v []float64
	for _, g := range seen {
		v = append(v, of(g))
	}
	return v
}
