package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// gauges are what the proxy says of itself.
type gauges struct {
	resident, live          float64 // MB; live is what the last collection left
	descriptors, goroutines float64
	panics                  float64
}

// sampleEvery is the time between two looks.
const sampleEvery = 2 * time.Second

// watch reads the gauges until ctx ends.
func (s *soaked) watch(ctx context.Context) ([]gauges, error) {
	var seen []gauges
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	said := time.Now()
	for {
		select {
		case <-ctx.Done():
			return seen, nil
		case <-tick.C:
			g, err := s.gauges()
			if err != nil {
				return seen, err
			}
			seen = append(seen, g)
			if time.Since(said) > time.Minute {
				said = time.Now()
				fmt.Printf("soak: %.0f MB resident, %.0f MB live, %.0f descriptors, %.0f goroutines\n", g.resident, g.live, g.descriptors, g.goroutines)
			}
			if g.panics > 0 {
				return seen, fmt.Errorf("%.0f panics were survived", g.panics)
			}
		}
	}
}

func (s *soaked) gauges() (g gauges, err error) {
	resp, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		return g, err
	}
	defer resp.Body.Close()
	found := 0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		to, unit := (*float64)(nil), 1.0
		switch name {
		case "process_resident_memory_bytes":
			to, unit = &g.resident, 1e6
		case "go_memstats_next_gc_bytes":
			to, unit = &g.live, 5e6 // the heap's goal is five times what lives (GOGC=400)
		case "process_open_fds":
			to = &g.descriptors
		case "go_goroutines":
			to = &g.goroutines
		case "warder_panics_total":
			to = &g.panics
		}
		if to != nil {
			*to = v / unit
			found++
		}
	}
	if found != 5 {
		return g, fmt.Errorf("the metrics have %d of 5 gauges", found)
	}
	return g, lines.Err()
}
