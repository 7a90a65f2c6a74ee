package main

import (
	"context"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// linkCell is what the same client costs inside, over one kind of network. The
// proxy, its policy and its log are the same; the start is taken off.
type linkCell struct {
	Name       string  `json:"name"`
	CPUSecGB   float64 `json:"cpu_s_per_gb"`
	CPUUSEach  float64 `json:"cpu_us_per_request"`
	RateGB     float64 `json:"gb_per_s"`
	RateSecond float64 `json:"requests_per_s"`
}

const (
	linkStreams  = 4 // of streamBytes each
	linkRequests = 4000
	linkOrigin   = "127.0.0.1:18480"
	linkGate     = "10.201.7.1" // the host's end of the veth pair, in a namespace of ours
	linkInside   = "10.201.7.2"
	linkToken    = "bench-token-of-the-benchmark"
)

// fetch is the client: it asks for long streams and for small answers through an
// explicit proxy, in clear text, on one connection.
func fetch(args []string) error {
	fs := flag.NewFlagSet("fetch", flag.ContinueOnError)
	via, token := fs.String("via", "", ""), fs.String("token", "", "")
	streams, requests := fs.Int("streams", 0, ""), fs.Int("requests", 0, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	proxy := &url.URL{Scheme: "http", Host: *via}
	tr := &http.Transport{Proxy: http.ProxyURL(proxy), MaxIdleConnsPerHost: 1, DisableCompression: true, ReadBufferSize: 256 << 10}
	buf := make([]byte, 1<<20)
	for i := range *streams + *requests {
		path := "/v1/item"
		if i < *streams {
			path = "/v1/stream"
		}
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://bench.test"+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("bench:"+*token)))
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return err
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, buf)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || i < *streams && n != streamBytes {
			return fmt.Errorf("%s: %d, %d bytes: %w", path, resp.StatusCode, n, err)
		}
	}
	return nil
}

// linkSide is one kind of network: run runs the client inside and returns what
// that took, with the proxy's part.
type linkSide struct {
	name string
	run  func(args ...string) (wall, cpu float64, err error)
}

// benchLink compares the socketpair with gVisor's own networking over a veth pair,
// in network namespaces that are made for it. Only root can make those.
func benchLink(o options) ([]linkCell, error) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "bench: the network inside is compared by root only: gVisor's own needs a veth pair")
		return nil, nil
	}
	bed, err := newLinkBed(o)
	if err != nil {
		return nil, errors.Join(err, bed.close())
	}
	cells, err := bed.measure(max(o.rounds/3, 3))
	return cells, errors.Join(err, bed.close())
}

func (b *linkBed) measure(rounds int) ([]linkCell, error) {
	sides := []*linkSide{{name: "socketpair", run: b.overPair}, {name: "veth", run: b.overVeth}}
	type sample struct{ cpuGB, cpuEach, rateGB, rate []float64 }
	samples := make([]sample, len(sides))
	const gb = float64(linkStreams) * streamBytes / 1e9
	for round := range rounds + 1 {
		for k, s := range sides {
			var t [3][2]float64
			for i, args := range [][]string{{}, {"-streams", strconv.Itoa(linkStreams)}, {"-requests", strconv.Itoa(linkRequests)}} {
				wall, cpu, err := s.run(args...)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", s.name, err)
				}
				t[i] = [2]float64{wall, cpu}
			}
			if round == 0 {
				continue // warms caches
			}
			m := &samples[k]
			m.cpuGB = append(m.cpuGB, (t[1][1]-t[0][1])/1e3/gb)
			m.cpuEach = append(m.cpuEach, (t[2][1]-t[0][1])*1e3/linkRequests)
			m.rateGB = append(m.rateGB, gb/((t[1][0]-t[0][0])/1e3))
			m.rate = append(m.rate, linkRequests/((t[2][0]-t[0][0])/1e3))
		}
	}
	var cells []linkCell
	for k, s := range sides {
		m := samples[k]
		cells = append(cells, linkCell{s.name, median(m.cpuGB), median(m.cpuEach), median(m.rateGB), median(m.rate)})
	}
	return cells, nil
}

// linkBed is what both sides need: configuration, namespaces, an origin in each,
// and a proxy in the namespace of the gate.
type linkBed struct {
	o                  options
	dir, gate, inside  string
	self, config, root string
	procs              []*exec.Cmd
	proxy              *exec.Cmd
	runs               int
}

func newLinkBed(o options) (*linkBed, error) {
	b := &linkBed{o: o, dir: filepath.Join(o.dir, "link"), gate: fmt.Sprintf("wbgate%d", os.Getpid()), inside: fmt.Sprintf("wbin%d", os.Getpid())}
	self, err := os.Executable()
	if err != nil {
		return b, err
	}
	b.self = self
	if err := os.MkdirAll(filepath.Join(b.dir, "policies"), 0o700); err != nil {
		return b, err
	}
	if b.root, err = curatedRoot(filepath.Join(b.dir, "root")); err != nil {
		return b, err
	}
	b.config = filepath.Join(b.dir, "warder.yaml")
	files := map[string]string{
		"policies/p.rego": "package warder.egress\n\nallow contains {\"rule\": \"bench\"} if input.request.host == \"bench.test\"\n",
		"token":           linkToken,
		"warder.yaml": fmt.Sprintf(`version: 1
policy: {path: ./policies}
sandbox: {cpus: 4}
proxy:
  upstream: {hosts: {bench.test: "%[1]s"}, allow_addresses: ["%[1]s"]}
  listen: %[2]s:3128
  clients: [{name: bench, token_file: ./token}]
audit: {dir: ./audit, durable: credentialed}
`, linkOrigin, linkGate),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			return b, err
		}
	}
	for _, c := range []string{
		"netns add " + b.gate, "netns add " + b.inside,
		"link add wb0 netns " + b.gate + " type veth peer name wb1 netns " + b.inside,
		"-n " + b.gate + " addr add " + linkGate + "/24 dev wb0", "-n " + b.gate + " link set wb0 up", "-n " + b.gate + " link set lo up",
		"-n " + b.inside + " addr add " + linkInside + "/24 dev wb1", "-n " + b.inside + " link set wb1 up", "-n " + b.inside + " link set lo up",
	} {
		if out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return b, fmt.Errorf("ip %s: %w: %s", c, err, out)
		}
	}
	return b, b.start()
}

// start starts an origin on the host's loopback and one in the gate's, and the
// proxy beside the latter.
func (b *linkBed) start() error {
	pki := filepath.Join(b.dir, "pki")
	if err := os.Mkdir(pki, 0o700); err != nil {
		return err
	}
	if err := makePKI(pki); err != nil {
		return err
	}
	origin := []string{b.self, "origin", "-plain", linkOrigin, "-listen", "127.0.0.1:18481", "-pki", pki}
	enter := []string{"ip", "netns", "exec", b.gate}
	for _, argv := range [][]string{origin, append(enter, origin...), append(enter, b.o.warder, "proxy", "--config", b.config)} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Env, cmd.Stderr = b.env(), os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		b.procs, b.proxy = append(b.procs, cmd), cmd
	}
	// The gate is another namespace: the client inside is the first to see it.
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, _, err := b.overVeth("-requests", "1")
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (b *linkBed) env() []string {
	return append(os.Environ(), "WARDER_STATE_DIR="+filepath.Join(b.dir, "state"))
}

func (b *linkBed) overPair(args ...string) (wall, cpu float64, err error) {
	argv := []string{b.o.warder, "run", "--config", b.config, "--input", b.self + ":bench", "--", "/workspace/bench", "fetch", "-via", net.JoinHostPort("10.0.2.2", "3128")}
	return measure(&variant{argv: append(argv, args...), env: b.env()})
}

func (b *linkBed) overVeth(args ...string) (wall, cpu float64, err error) {
	b.runs++
	bundle := filepath.Join(b.dir, "bundle")
	argv := append([]string{"/bench", "fetch", "-via", linkGate + ":3128", "-token", linkToken}, args...)
	if err := writeBundle(bundle, b.root, "/run/netns/"+b.inside, map[string]string{"/bench": b.self}, argv...); err != nil {
		return 0, 0, err
	}
	// gVisor takes the address of the interface away from the host's side.
	if out, err := exec.Command("ip", "-n", b.inside, "addr", "replace", linkInside+"/24", "dev", "wb1").CombinedOutput(); err != nil {
		return 0, 0, fmt.Errorf("ip addr: %w: %s", err, out)
	}
	before, err := cpuTime(b.proxy.Process.Pid)
	if err != nil {
		return 0, 0, err
	}
	wall, cpu, err = measure(&variant{argv: []string{
		b.o.runsc, "--root=" + filepath.Join(b.dir, "runsc"), "--platform=systrap", "--network=sandbox", "--host-settings=ignore", "--ignore-cgroups",
		"run", "--bundle", bundle, fmt.Sprintf("bench-%d", b.runs),
	}, env: os.Environ()})
	after, perr := cpuTime(b.proxy.Process.Pid)
	return wall, cpu + float64(after-before)/1e6, errors.Join(err, perr)
}

func (b *linkBed) close() error {
	for _, cmd := range b.procs {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	var errs []error
	for _, ns := range []string{b.gate, b.inside} {
		if out, err := exec.Command("ip", "netns", "del", ns).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("ip netns del: %w: %s", err, out))
		}
	}
	return errors.Join(errs...)
}

func linkRatios(cells []linkCell) []ratio {
	if len(cells) != 2 || cells[1].CPUSecGB <= 0 || cells[1].CPUUSEach <= 0 {
		return nil
	}
	return []ratio{
		bound("CPU of a GB inside: socketpair / veth", cells[0].CPUSecGB/cells[1].CPUSecGB, "<=", 1.2),
		bound("CPU of a request inside: socketpair / veth", cells[0].CPUUSEach/cells[1].CPUUSEach, "<=", 1.2),
	}
}
