package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// peer is a running server of this benchmark.
type peer struct {
	name, addr string
	cmd        *exec.Cmd
	log        *bytes.Buffer
}

type peers struct {
	dir string
	all []*peer
	by  map[string]*peer // by the name of what it serves
}

// plainName is the host that is reached in clear text.
const plainName = "plain.bench.test"

// rules is how many rules the policy has.
const rules = 1000

// writePolicy makes rules of one shape, those of the benchmark in their middle.
func writePolicy(dir string, tunnel bool) error {
	var b strings.Builder
	b.WriteString("package warder.egress\n")
	rule := func(name, host, prefix string, more string) {
		fmt.Fprintf(&b, "\nallow contains {\"rule\": %q%s} if {\n\tinput.request.host == %q\n\tstartswith(input.request.path, %q)\n}\n", name, more, host, prefix)
	}
	for i := range rules - 3 {
		if i == rules/2 {
			rule("plain", originName, "/plain", "")
			rule("clear", plainName, "/plain", "")
			rule("credential", originName, "/credential", `, "credential": "bench"`)
		}
		name := fmt.Sprintf("service-%03d", i)
		rule(name, name+".bench.test", "/v1/", "")
	}
	if tunnel {
		fmt.Fprintf(&b, "\ntunnel contains {\"rule\": \"through\"} if input.request.host == %q\n", originName)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "bench.rego"), []byte(b.String()), 0o600)
}

// startPeers starts the origin, the references and the product, each in a
// process of its own with the settings of the runtime that it comes with.
func startPeers(o options) (peers, error) {
	p := peers{dir: o.dir, by: map[string]*peer{}}
	self, err := os.Executable()
	if err != nil {
		return p, err
	}
	addrs := make([]string, 7)
	for i := range addrs {
		if addrs[i], err = freePort(); err != nil {
			return p, err
		}
	}
	secure, clear := addrs[0], addrs[1]
	config := func(i int, durable string, tunnel bool) []string {
		path, cerr := writeProxyConfig(o.dir, secure, clear, addrs[i], durable, tunnel)
		err = errors.Join(err, cerr)
		return []string{o.warder, "proxy", "--config", path}
	}
	type spec struct {
		addr  string
		serve []string
		argv  []string
	}
	specs := []spec{
		{secure, []string{"origin"}, []string{self, "origin", "-listen", secure, "-plain", clear, "-pki", o.dir}},
		{addrs[2], []string{refMITM, refPlain}, []string{self, "reference", "-listen", addrs[2], "-pki", o.dir, "-origin", secure, "-plain", clear}},
		{addrs[3], []string{refTCP}, []string{self, "splice", "-listen", addrs[3], "-origin", secure}},
		{addrs[4], []string{strict, strictCred}, config(4, "all", false)},
		{addrs[5], []string{relaxed, relaxedNew}, config(5, "credentialed", false)},
		{addrs[6], []string{tunneling}, config(6, "credentialed", true)},
	}
	if err != nil {
		return p, err
	}
	if o.goproxy != "" {
		addr, err := freePort()
		if err != nil {
			return p, err
		}
		specs = append(specs, spec{addr, []string{stockProxy}, []string{o.goproxy, addr, filepath.Join(o.dir, "ca.crt"), filepath.Join(o.dir, "ca.key"), secure}})
	}
	for _, s := range specs {
		if err := p.start(s.addr, s.serve, s.argv); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (p *peers) start(addr string, serves, argv []string) error {
	x := &peer{name: serves[0], addr: addr, log: &bytes.Buffer{}}
	x.cmd = exec.Command(argv[0], argv[1:]...)
	x.cmd.Env = append(asShipped(os.Environ()), "SSL_CERT_FILE="+filepath.Join(p.dir, "origin-ca.crt"),
		"WARDER_STATE_DIR="+filepath.Join(p.dir, "state"), "BENCH_TOKEN=S3CR3T-CANARY-bench-0123456789", "SOAK_TOKEN="+soakToken)
	x.cmd.Stdout, x.cmd.Stderr = x.log, x.log
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := x.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", x.name, err)
	}
	p.all = append(p.all, x)
	for _, name := range serves {
		p.by[name] = x
	}
	return waitFor(x)
}

// asShipped leaves out what changes a program's own settings of the runtime.
func asShipped(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "GOGC" || name == "GOMEMLIMIT" || name == "GODEBUG" || name == "GOMAXPROCS"
	})
}

// target is a proxy by the name of its row.
func (p *peers) target(name, path string) target {
	authority := "ca.crt"
	if name == refTCP || name == tunneling {
		authority = "origin-ca.crt" // nobody opens what is inside
	}
	roots, err := pool(filepath.Join(p.dir, authority))
	if err != nil {
		return target{}
	}
	return target{peer: p.by[name], roots: roots, path: path}
}

func (p *peers) logs() string {
	var b strings.Builder
	for _, x := range p.all {
		if x.log.Len() > 0 {
			fmt.Fprintf(&b, "%s: %s\n", x.name, x.log)
		}
	}
	return b.String()
}

func (p *peers) stop() {
	for _, x := range p.all {
		_ = x.cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, x := range p.all {
		_ = x.cmd.Wait()
	}
}

func writeProxyConfig(dir, secure, clear, listen, durable string, tunnel bool) (string, error) {
	name := durable
	if tunnel {
		name = "tunnel"
	}
	if err := writePolicy(filepath.Join(dir, "policies-"+name), tunnel); err != nil {
		return "", err
	}
	text := fmt.Sprintf(`version: 1
policy: {path: ./policies-%[6]s}
credentials:
  bench:
    source: {local: {env: BENCH_TOKEN}}
    inject: {header: Authorization, format: "Bearer {value}"}
    hosts: [%[1]s]
proxy:
  listen: %[3]s
  ca: {cert_file: ca.crt, key_file: ca.key}
  upstream:
    ca_files: [origin-ca.crt]
    hosts: {%[1]s: "%[2]s", %[4]s: "%[5]s"}
    allow_addresses: ["%[1]s=%[2]s", "%[4]s=%[5]s"]
audit: {dir: ./audit-%[6]s, durable: %[7]s}
`, originName, secure, listen, plainName, clear, name, durable)
	path := filepath.Join(dir, name+".yaml")
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
func waitFor(p *peer) error {
	for begin := time.Now(); time.Since(begin) < 30*time.Second; {
		c, err := net.Dial("tcp", p.addr)
		if err == nil {
			return c.Close()
		}
		time.Sleep(20 * time.Millisecond) // between two polls
	}
	return fmt.Errorf("%s does not listen on %s:\n%s", p.name, p.addr, p.log)
}

// resident is the process's memory in MB (proc(5), VmRSS of status).
func resident(pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, errors.New("status has no VmRSS")
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
