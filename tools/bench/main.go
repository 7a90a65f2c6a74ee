// Bench measures Warder beside what it is compared with, in one interleaved run
// on this machine: the start of a sandbox (warder run, runsc do, unsandboxed)
// and the request path (warder proxy, a reverse proxy made of the standard
// library). Everything is on loopback; ratios carry over to other machines,
// absolute numbers do not.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

type options struct {
	warder, runsc string // binaries
	sqlite        string // binary of tools/sqlitelog; "": left out
	goproxy       string // binary of tools/stockgoproxy; "": left out
	dir           string // scratch folder
	out           string // result file
	rounds        int
	duration      time.Duration // of one cell of the proxy's part
	only          string        // "", start, image, proxy or audit
	cells         string        // pattern of the proxy's cells to measure
}

func main() {
	if err := dispatch(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// dispatch runs the benchmark, the soak, or one of their servers in a process of its own.
func dispatch(args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "origin":
			return serveOrigin(args[1:])
		case "reference":
			return serveReference(args[1:])
		case "splice":
			return serveSplice(args[1:])
		case "soak":
			return soak(args[1:])
		case "flood":
			return floodProxy(args[1:])
		case "once":
			return once(args[1:])
		case "fetch":
			return fetch(args[1:])
		}
	}
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	if o.dir, err = os.MkdirTemp("", "warder-bench"); err != nil {
		return err
	}
	defer os.RemoveAll(o.dir)
	return run(o)
}

func parseOptions(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&o.warder, "warder", "bin/warder", "the product's `binary`")
	fs.StringVar(&o.runsc, "runsc", "", "gVisor's own `binary`, built from tools/runsc")
	fs.StringVar(&o.out, "out", "bench-result.json", "result `file`")
	fs.IntVar(&o.rounds, "rounds", 15, "interleaved rounds of the start; a third of it for the proxy")
	fs.DurationVar(&o.duration, "duration", 3*time.Second, "of one cell of the proxy's part")
	fs.StringVar(&o.only, "only", "", "start, alive, link, image, proxy, credentials, audit or policy")
	fs.StringVar(&o.sqlite, "sqlite", "", "what the log is compared with, built from tools/sqlitelog; none: left out")
	fs.StringVar(&o.goproxy, "goproxy", "", "a yardstick of the proxy's part, built from tools/stockgoproxy; none: left out")
	fs.StringVar(&o.cells, "cells", "", "only the proxy's cells whose \"LOAD c=N PROXY\" matches this `pattern`")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.rounds < 3 || o.duration < time.Second || o.runsc == "" && (o.only == "" || o.only == "start") {
		return o, errors.New("needs -runsc, at least 3 rounds and 1s a cell")
	}
	var err error
	for _, p := range []*string{&o.warder, &o.runsc, &o.sqlite, &o.goproxy} {
		if *p != "" && err == nil {
			*p, err = filepath.Abs(*p)
		}
	}
	return o, err
}

// result is the JSON of one run.
type result struct {
	Machine machine     `json:"machine"`
	Start   []startCell `json:"start,omitempty"`
	Image   []startCell `json:"image,omitempty"`
	Phases  []phaseCell `json:"phases,omitempty"`
	Alive   []aliveCell `json:"alive,omitempty"`
	Link    []linkCell  `json:"link,omitempty"`
	Proxy   []proxyCell `json:"proxy,omitempty"`
	Audit   []auditCell `json:"audit,omitempty"`
	Ratios  []ratio     `json:"ratios"`

	Credentials []credentialCell `json:"credentials,omitempty"`
	Policy      []policyCell     `json:"policy,omitempty"`
}

type machine struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	CPUs   int    `json:"cpus"`
	Go     string `json:"go"`
	Kernel string `json:"kernel"`
	Rounds int    `json:"rounds"`
}

// ratio is one comparison; below 1 is better for what is smaller-is-better.
type ratio struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Goal  string  `json:"goal,omitempty"`
	Met   string  `json:"met,omitempty"` // "met" or "missed"; "": no goal
}

func run(o options) error {
	r := result{Machine: machine{runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), kernel(), o.rounds}}
	var err error
	wants := func(part string) bool { return o.only == "" || o.only == part }
	if wants("start") {
		if r.Start, err = benchStart(o); err != nil {
			return fmt.Errorf("start: %w", err)
		}
		if r.Phases, err = benchPhases(o); err != nil {
			return fmt.Errorf("phases: %w", err)
		}
	}
	if wants("alive") {
		if r.Alive, err = benchAlive(o); err != nil {
			return fmt.Errorf("alive: %w", err)
		}
	}
	if wants("link") {
		if r.Link, err = benchLink(o); err != nil {
			return fmt.Errorf("link: %w", err)
		}
	}
	if wants("image") {
		if r.Image, err = benchImage(o); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	if wants("proxy") {
		if r.Proxy, err = benchProxy(o); err != nil {
			return fmt.Errorf("proxy: %w", err)
		}
	}
	if wants("credentials") {
		if r.Credentials, err = benchCredentials(); err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
	}
	if wants("audit") {
		if r.Audit, err = benchAudit(o); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
	}
	if wants("policy") {
		if r.Policy, err = benchPolicy(o); err != nil {
			return fmt.Errorf("policy: %w", err)
		}
	}
	r.Ratios = slices.Concat(startRatios(r.Start), aliveRatios(r.Alive), linkRatios(r.Link), credentialRatios(r.Credentials), imageRatios(r.Image), proxyRatios(r.Proxy), auditRatios(r.Audit), policyRatios(r.Policy))
	printTables(os.Stdout, r)
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.out, append(text, '\n'), 0o644)
}

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return string(b[:len(b)-1])
}
