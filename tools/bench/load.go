package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// sample is one measurement of one cell.
type sample struct {
	rate, cpuUS, p50US, p99US float64
	rssMB                     float64
	refused                   int
}

// load is a kind of traffic.
type load struct {
	name, unit string
	path       string
	warm       int // units before the clock starts, over all workers
	open       func(target) (worker, error)
}

// worker is one client. It sends one thing after the other.
type worker interface {
	// once does one and says how many units it was, and how long it took in
	// microseconds, or whatever else the load measures.
	once() (units, micros float64, err error)
	// refused counts the answers that were a refusal, and has the last one.
	refused() (int, string)
	close()
}

var (
	keepAlive     = load{"HTTPS, keep-alive", "request", "/plain/j", 200, openKeepAlive}
	eachPathOnce  = load{"HTTPS, keep-alive, each path once", "request", "/plain/", 200, openFreshPaths}
	plainHTTP     = load{"plain HTTP, keep-alive", "request", "/plain/j", 200, openPlain}
	tunnelled     = load{"tunnel, keep-alive", "request", "/plain/j", 200, openKeepAlive}
	newConnection = load{"HTTPS, new connection each", "connection", "/plain/j", 64, openDialer}
	webSocket     = load{"WebSocket, echo of 128 bytes", "message", "/plain/ws", 200, openWebSocket}
	stream        = load{"HTTPS, stream", "MB", "/plain/stream", 1, openStream}
	firstByte     = load{"HTTPS, first byte of a stream", "stream", "/plain/trickle", 20, openTrickle}
)

// measureLoad keeps c workers busy for d and reads the proxy's CPU time before and after.
func measureLoad(l load, t target, c int, d time.Duration) (sample, error) {
	if t.peer == nil {
		return sample{}, errors.New("this proxy was not started")
	}
	workers := make([]worker, c)
	defer func() {
		for _, w := range workers {
			if w != nil {
				w.close()
			}
		}
	}()
	var err error
	for i := range workers {
		if workers[i], err = l.open(t); err != nil {
			return sample{}, err
		}
	}
	warm := func(w worker) error {
		for range l.warm/c + 1 {
			if _, _, err := w.once(); err != nil {
				return err
			}
		}
		return nil
	}
	if err := each(workers, func(_ int, w worker) error { return warm(w) }); err != nil {
		return sample{}, err
	}
	before, err := cpuTime(t.peer.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	units, micros := make([]float64, c), make([][]float64, c)
	err = each(workers, func(i int, w worker) error {
		for time.Since(begin) < d {
			n, us, err := w.once()
			if err != nil {
				return err
			}
			units[i] += n
			micros[i] = append(micros[i], us)
		}
		return nil
	})
	elapsed := time.Since(begin)
	if err != nil {
		return sample{}, err
	}
	after, err := cpuTime(t.peer.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	s, err := summarise(workers, units, slices.Concat(micros...), elapsed, after-before)
	if err != nil {
		return s, err
	}
	s.rssMB, err = resident(t.peer.cmd.Process.Pid)
	return s, err
}

func summarise(workers []worker, units, micros []float64, elapsed, spent time.Duration) (sample, error) {
	refused, said := 0, ""
	for _, w := range workers {
		n, last := w.refused()
		if refused += n; n > 0 {
			said = last
		}
	}
	if refused*100 > len(micros) { // a comparison of something else
		return sample{}, fmt.Errorf("%d of %d were refused: %s", refused, len(micros), said)
	}
	n := 0.0
	for _, u := range units {
		n += u
	}
	return sample{
		rate: n / elapsed.Seconds(), cpuUS: float64(spent.Microseconds()) / n,
		p50US: quantile(micros, .5), p99US: quantile(micros, .99), refused: refused,
	}, nil
}

// each runs f for all workers at once and returns the first error.
func each(workers []worker, f func(int, worker) error) error {
	errs := make([]error, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() { errs[i] = f(i, w) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func median(v []float64) float64 { return quantile(v, .5) }

// quantile is the nearest-rank quantile; 0 for no values.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[int(q*float64(len(s)-1)+.5)]
}
