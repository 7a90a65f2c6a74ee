package main

import "fmt"

// proxyRatios compares the cells. A ratio of two cells is the median of the
// rounds' ratios, because both are measured within moments of each other.
func proxyRatios(cells []proxyCell) []ratio {
	g := goals{cells: cells}
	for _, c := range []int{1, 32} {
		at := fmt.Sprintf(", %d connections", c)
		most := map[int]float64{1: 1.7, 32: 1.8}[c]
		g.ratio("CPU"+at+": "+relaxed, cpu, relaxed, refMITM, keepAlive, c, "<=", most)
		g.ratio("requests/s"+at+": "+relaxed, rate, relaxed, refMITM, keepAlive, c, "", 0)
		g.ratio("CPU"+at+": "+strict, cpu, strict, refMITM, keepAlive, c, "", 0)
		g.ratio("requests/s"+at+": "+strict, rate, strict, refMITM, keepAlive, c, "", 0)
		g.ratio("CPU"+at+": "+strictCred, cpu, strictCred, refMITM, keepAlive, c, "<=", 2.2)
		g.ratio("requests/s"+at+": "+strictCred, rate, strictCred, refMITM, keepAlive, c, ">=", .4)
		g.ratio("CPU"+at+": "+stockProxy, cpu, stockProxy, refMITM, keepAlive, c, "", 0)
	}
	g.pair("CPU, 32 connections: "+relaxedNew, cpu, relaxedNew, eachPathOnce, 32, refMITM, keepAlive, 32, "", 0)
	g.pair("requests/s at 256 connections to its own at 32: "+relaxed, rate, relaxed, keepAlive, 256, relaxed, keepAlive, 32, ">=", .7)
	g.latency()
	g.ratio("CPU of a new connection, 32 at a time: "+relaxed, cpu, relaxed, refMITM, newConnection, 32, "<=", 1.2)
	g.pair("CPU, plain HTTP, 32 connections: "+relaxed, cpu, relaxed, plainHTTP, 32, refPlain, plainHTTP, 32, "<=", 1.8)
	g.ratio("MB/s of a stream: "+relaxed, rate, relaxed, refMITM, stream, 1, ">=", .95)
	g.pair("MB/s of a stream: "+strictCred, rate, strictCred, stream, 1, refMITM, stream, 1, "", 0)
	g.value("ms to the first byte of a stream, p99: "+relaxed, relaxed, firstByte, 1, 5)
	g.value("ms to the first byte of a stream, p99: "+strictCred, strictCred, firstByte, 1, 5)
	g.ratio("WebSocket messages/s, 32 connections: "+relaxed, rate, relaxed, refMITM, webSocket, 32, ">=", .95)
	g.pair("requests/s in a tunnel, 32 connections: "+tunneling, rate, tunneling, tunnelled, 32, refTCP, tunnelled, 32, ">=", .95)
	return g.out
}

type goals struct {
	cells []proxyCell
	out   []ratio
}

func cpu(s sample) float64  { return s.cpuUS }
func rate(s sample) float64 { return s.rate }

func (g *goals) find(name string, l load, c int) *proxyCell {
	for i, x := range g.cells {
		if x.Name == name && x.Load == l.name && x.Concurrency == c {
			return &g.cells[i]
		}
	}
	return nil
}

func (g *goals) ratio(what string, of func(sample) float64, name, to string, l load, c int, sense string, goal float64) {
	g.pair(what, of, name, l, c, to, l, c, sense, goal)
}

// pair adds the ratio of two cells; nothing when one was not measured.
func (g *goals) pair(what string, of func(sample) float64, name string, l load, c int, to string, l2 load, c2 int, sense string, goal float64) {
	a, b := g.find(name, l, c), g.find(to, l2, c2)
	if a == nil || b == nil {
		return
	}
	var all []float64
	for i := range a.rounds {
		if d := of(b.rounds[i]); d > 0 {
			all = append(all, of(a.rounds[i])/d)
		}
	}
	g.add(what, median(all), sense, goal)
}

// latency holds what waiting for the disk adds at one connection to the disk's own
// time, measured in the same rounds.
func (g *goals) latency() {
	a, b, disk := g.find(strictCred, keepAlive, 1), g.find(refMITM, keepAlive, 1), g.find(diskWait, load{name: diskWait}, 1)
	if a == nil || b == nil || disk == nil {
		return
	}
	var all []float64
	for i := range a.rounds {
		all = append(all, a.rounds[i].p50US-b.rounds[i].p50US-disk.rounds[i].p50US)
	}
	g.add("us beyond the reference and one fdatasync, p50, 1 connection: "+strictCred, median(all), "<=", 150)
}

func (g *goals) value(what, name string, l load, c int, most float64) {
	if a := g.find(name, l, c); a != nil {
		g.add(what, a.P99US/1e3, "<=", most)
	}
}

func (g *goals) add(what string, v float64, sense string, goal float64) {
	g.out = append(g.out, bound(what, v, sense, goal))
}

// bound is a value beside its goal, "<=" or ">=" a number; "": it has none.
func bound(what string, v float64, sense string, goal float64) ratio {
	r := ratio{Name: what, Value: v}
	if sense == "" {
		return r
	}
	r.Goal, r.Met = fmt.Sprintf("%s %g", sense, goal), "met"
	if sense == "<=" && v > goal || sense == ">=" && v < goal {
		r.Met = "missed"
	}
	return r
}
