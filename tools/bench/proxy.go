package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// proxyCell is the median of one proxy at one concurrency.
type proxyCell struct {
	Name        string  `json:"name"`
	Concurrency int     `json:"concurrency"`
	RPS         float64 `json:"requests_per_second"`
	CPUUS       float64 `json:"cpu_us_per_request"` // of the proxy's process
	P50US       float64 `json:"p50_us"`
	P99US       float64 `json:"p99_us"`
	Refused     float64 `json:"refused"` // answers that were not the origin's
}

// peer is a running proxy.
type peer struct {
	name, addr, path string
	cmd              *exec.Cmd
	log              *bytes.Buffer
}

// relaxedProxy has audit.durable: credentialed; the others have all, the default.
const relaxedProxy = "warder proxy, durable: credentialed"

// warmUp is how many requests a cell sends before its clock starts.
const warmUp = 200

const policy = `package warder.egress

allow contains {"rule": "plain"} if {
	input.request.host == "` + originName + `"
	startswith(input.request.path, "/plain")
}

allow contains {"rule": "credential", "credential": "bench"} if {
	input.request.host == "` + originName + `"
	startswith(input.request.path, "/credential")
}
`

func benchProxy(o options) ([]proxyCell, error) {
	if err := makePKI(o.dir); err != nil {
		return nil, err
	}
	peers, err := startPeers(o)
	defer stopPeers(peers)
	if err != nil {
		return nil, err
	}
	self := peers[0] // the origin comes first; it is not measured
	measured := peers[1:]
	// One process serves both kinds of warder's requests.
	measured = append(measured, peer{name: "warder proxy, with a credential", addr: measured[1].addr, path: "/credential/j", cmd: measured[1].cmd, log: measured[1].log})
	type key struct {
		name string
		c    int
	}
	rounds := max(o.rounds/3, 3)
	samples := map[key][]sample{}
	for range rounds {
		for _, c := range []int{1, 32} {
			for _, p := range measured {
				s, err := measureProxy(p, o.dir, c, o.duration)
				if err != nil {
					return nil, fmt.Errorf("%s at %d: %w\n%s%s", p.name, c, err, p.log, self.log)
				}
				samples[key{p.name, c}] = append(samples[key{p.name, c}], s)
			}
		}
	}
	var cells []proxyCell
	for _, c := range []int{1, 32} {
		for _, p := range measured {
			cells = append(cells, medianCell(p.name, c, samples[key{p.name, c}]))
		}
	}
	return cells, nil
}

func medianCell(name string, c int, samples []sample) proxyCell {
	pick := func(f func(sample) float64) float64 {
		var v []float64
		for _, s := range samples {
			v = append(v, f(s))
		}
		return median(v)
	}
	return proxyCell{
		name, c,
		pick(func(s sample) float64 { return s.rps }), pick(func(s sample) float64 { return s.cpuUS }),
		pick(func(s sample) float64 { return s.p50US }), pick(func(s sample) float64 { return s.p99US }),
		pick(func(s sample) float64 { return float64(s.refused) }),
	}
}

// startPeers starts the origin, the reference and the product, each in a
// process of its own with the same settings of the runtime.
func startPeers(o options) ([]peer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var ports [4]string
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	config, err := writeProxyConfig(o.dir, ports[0], ports[2], "all")
	if err != nil {
		return nil, err
	}
	relaxed, err := writeProxyConfig(o.dir, ports[0], ports[3], "credentialed")
	if err != nil {
		return nil, err
	}
	specs := []struct {
		peer
		argv []string
	}{
		{peer{name: "origin", addr: ports[0]}, []string{self, "origin", "-listen", ports[0], "-pki", o.dir}},
		{peer{name: "net/http reverse proxy", addr: ports[1], path: "/plain/j"}, []string{self, "reference", "-listen", ports[1], "-pki", o.dir, "-origin", ports[0]}},
		{peer{name: "warder proxy", addr: ports[2], path: "/plain/j"}, []string{o.warder, "proxy", "--config", config}},
		{peer{name: relaxedProxy, addr: ports[3], path: "/plain/j"}, []string{o.warder, "proxy", "--config", relaxed}},
	}
	var peers []peer
	for _, s := range specs {
		p := s.peer
		p.log = &bytes.Buffer{}
		p.cmd = exec.Command(s.argv[0], s.argv[1:]...)
		p.cmd.Env = append(os.Environ(), "GOGC=100", "GOMEMLIMIT=off", "WARDER_STATE_DIR="+filepath.Join(o.dir, "state"), "BENCH_TOKEN=S3CR3T-CANARY-bench-0123456789")
		p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := p.cmd.Start(); err != nil {
			return peers, fmt.Errorf("%s: %w", p.name, err)
		}
		peers = append(peers, p)
		if err := waitFor(p); err != nil {
			return peers, err
		}
	}
	return peers, nil
}

func writeProxyConfig(dir, origin, listen, durable string) (string, error) {
	rego := filepath.Join(dir, "policies")
	if err := os.MkdirAll(rego, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(rego, "bench.rego"), []byte(policy), 0o600); err != nil {
		return "", err
	}
	text := fmt.Sprintf(`version: 1
policy: {path: ./policies}
credentials:
  bench:
    source: {local: {env: BENCH_TOKEN}}
    inject: {header: Authorization, format: "Bearer {value}"}
    hosts: [%[1]s]
proxy:
  listen: %[2]s
  ca: {cert_file: ca.crt, key_file: ca.key}
  upstream:
    ca_files: [origin-ca.crt]
    hosts: {%[1]s: "%[3]s"}
    allow_addresses: ["%[1]s=%[3]s"]
audit: {dir: ./audit-%[4]s, durable: %[4]s}
`, originName, listen, origin, durable)
	path := filepath.Join(dir, durable+".yaml")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// waitFor polls until the peer accepts connections.
func waitFor(p peer) error {
	for begin := time.Now(); time.Since(begin) < 30*time.Second; {
		c, err := net.Dial("tcp", p.addr)
		if err == nil {
			return c.Close()
		}
		time.Sleep(20 * time.Millisecond) // between two polls
	}
	return fmt.Errorf("%s does not listen on %s:\n%s", p.name, p.addr, p.log)
}

func stopPeers(peers []peer) {
	for _, p := range peers {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range peers {
		_ = p.cmd.Wait()
	}
}

// cpuTime is the user and system time of a process in clock ticks of 10 ms
// (proc(5), fields 14 and 15 of stat).
func cpuTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("stat is too short")
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

func proxyRatios(cells []proxyCell) []ratio {
	find := func(name string, c int) (proxyCell, bool) {
		for _, x := range cells {
			if x.Name == name && x.Concurrency == c {
				return x, true
			}
		}
		return proxyCell{}, false
	}
	var out []ratio
	for _, c := range []int{1, 32} {
		ref, ok := find("net/http reverse proxy", c)
		if !ok || ref.CPUUS == 0 {
			continue
		}
		for _, name := range []string{"warder proxy", "warder proxy, with a credential", relaxedProxy} {
			if w, ok := find(name, c); ok {
				out = append(out,
					ratio{fmt.Sprintf("c=%d, requests/s: %s / net/http reverse proxy", c, name), w.RPS / ref.RPS, ""},
					ratio{fmt.Sprintf("c=%d, CPU per request: %s / net/http reverse proxy", c, name), w.CPUUS / ref.CPUUS, ""})
			}
		}
	}
	for _, c := range []int{1, 32} {
		all, ok := find("warder proxy", c)
		if relaxed, both := find(relaxedProxy, c); ok && both && relaxed.P50US > 0 {
			out = append(out, ratio{fmt.Sprintf("c=%d, p50: durable all / credentialed", c), all.P50US / relaxed.P50US, ""})
		}
	}
	return out
}
