package main

import (
	"crypto/x509"
	"fmt"
	"path/filepath"
	"regexp"
	"time"
)

// proxyCell is the median of one proxy under one load.
type proxyCell struct {
	Name        string  `json:"name"`
	Load        string  `json:"load"`
	Concurrency int     `json:"concurrency"`
	Rate        float64 `json:"per_second"`      // of the load's unit
	CPUUS       float64 `json:"cpu_us_per_unit"` // of the proxy's process
	P50US       float64 `json:"p50_us"`
	P99US       float64 `json:"p99_us"`
	RSSMB       float64 `json:"resident_mb"`
	Refused     float64 `json:"refused"` // answers that were not the origin's

	rounds []sample
}

// The proxies, by the names that the tables give them.
const (
	refMITM    = "net/http reverse proxy"
	refPlain   = "net/http reverse proxy, plain"
	refTCP     = "io.Copy of TCP"
	stockProxy = "goproxy, as documented"
	relaxed    = "warder, durable: credentialed"
	relaxedNew = "warder, durable: credentialed, each path once"
	strict     = "warder, durable: all"
	strictCred = "warder, durable: all, with a credential"
	tunneling  = "warder, tunnel"
)

// diskWait is the row of what one fdatasync takes.
const diskWait = "fdatasync"

// cell is one measurement of a round: a proxy under a load.
type cell struct {
	name string
	load load
	c    int
	from func(peers) target
}

// target is a proxy and what is asked of it.
type target struct {
	peer  *peer
	roots *x509.CertPool // who signs what the client sees
	path  string
	auth  string // name:token of a client; "": none is asked for
}

// cells is one round, in order: what is compared stands side by side.
func cells() []cell {
	at := func(name string, l load, c int, path string) cell {
		return cell{name, l, c, func(p peers) target { return p.target(name, path) }}
	}
	var out []cell
	for _, c := range []int{1, 32, 256} {
		out = append(out,
			at(refMITM, keepAlive, c, "/plain/j"), at(relaxed, keepAlive, c, "/plain/j"),
			at(strict, keepAlive, c, "/plain/j"), at(strictCred, keepAlive, c, "/credential/j"))
	}
	out = append(out, at(stockProxy, keepAlive, 1, "/plain/j"), at(stockProxy, keepAlive, 32, "/plain/j"), at(relaxedNew, eachPathOnce, 32, "/plain/"))
	for _, l := range []load{newConnection, webSocket, stream, firstByte} {
		c := map[string]int{newConnection.name: 32, webSocket.name: 32}[l.name]
		for _, name := range []string{refMITM, relaxed} {
			out = append(out, at(name, l, max(c, 1), l.path))
		}
	}
	out = append(out, at(strictCred, stream, 1, "/credential/stream"), at(strictCred, firstByte, 1, "/credential/trickle"))
	out = append(out, at(refPlain, plainHTTP, 32, "/plain/j"), at(relaxed, plainHTTP, 32, "/plain/j"))
	return append(out, at(refTCP, tunnelled, 32, "/plain/j"), at(tunneling, tunnelled, 32, "/plain/j"))
}

func benchProxy(o options) ([]proxyCell, error) {
	only, err := regexp.Compile(o.cells)
	if err != nil {
		return nil, err
	}
	if err := makePKI(o.dir); err != nil {
		return nil, err
	}
	running, err := startPeers(o)
	defer running.stop()
	if err != nil {
		return nil, err
	}
	var out []proxyCell
	for _, x := range cells() {
		if label := fmt.Sprintf("%s c=%d %s", x.load.name, x.c, x.name); only.MatchString(label) && (x.name != stockProxy || o.goproxy != "") {
			out = append(out, proxyCell{Name: x.name, Load: x.load.name, Concurrency: x.c})
		}
	}
	disk := proxyCell{Name: diskWait, Load: diskWait, Concurrency: 1}
	for range max(o.rounds/3, 3) {
		s, err := measureDisk(filepath.Join(o.dir, "disk"))
		if err != nil {
			return nil, err
		}
		disk.rounds = append(disk.rounds, s)
		for i := range out {
			if s, err = out[i].measure(running, o.duration); err != nil {
				return nil, fmt.Errorf("%s, %s at %d: %w\n%s", out[i].Name, out[i].Load, out[i].Concurrency, err, running.logs())
			}
			out[i].rounds = append(out[i].rounds, s)
		}
	}
	out = append(out, disk)
	for i := range out {
		out[i].settle()
	}
	return out, nil
}

// measure fills one round of the cell.
func (p *proxyCell) measure(running peers, d time.Duration) (sample, error) {
	for _, x := range cells() {
		if x.name == p.Name && x.load.name == p.Load && x.c == p.Concurrency {
			return measureLoad(x.load, x.from(running), x.c, d)
		}
	}
	return sample{}, fmt.Errorf("no such cell")
}

// settle takes the medians of the rounds.
func (p *proxyCell) settle() {
	pick := func(f func(sample) float64) float64 {
		var v []float64
		for _, s := range p.rounds {
			v = append(v, f(s))
		}
		return median(v)
	}
	p.Rate = pick(func(s sample) float64 { return s.rate })
	p.CPUUS = pick(func(s sample) float64 { return s.cpuUS })
	p.P50US = pick(func(s sample) float64 { return s.p50US })
	p.P99US = pick(func(s sample) float64 { return s.p99US })
	p.RSSMB = pick(func(s sample) float64 { return s.rssMB })
	p.Refused = pick(func(s sample) float64 { return float64(s.refused) })
}
