package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// policyCell is the median of one way to decide, in microseconds and allocations.
type policyCell struct {
	Name   string  `json:"name"` // decision or yardstick, number of rules, way
	US     float64 `json:"us"`
	MinUS  float64 `json:"fastest_us"` // of all rounds: what other work of the machine disturbed least
	Allocs float64 `json:"allocations"`
}

// benchPolicy runs the benchmarks of package policies, whose names say what is
// decided; goals are held against the fastest round. Decide is the engine, Yardstick the same policy by rego's EvalInput of a
// map. Each round runs all of them, so that a busy moment of the machine falls on all.
func benchPolicy(o options) ([]policyCell, error) {
	times, allocs := map[string][]float64{}, map[string][]float64{}
	var order []string
	line := regexp.MustCompile(`(?m)^Benchmark(Decide|Yardstick)/(\S+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op.*?\s(\d+) allocs/op`)
	for range max(3, o.rounds/3) {
		cmd := exec.CommandContext(context.Background(), "go", "test", "-run", "^$", "-bench", "^Benchmark(Decide|Yardstick)$", "-benchtime", "100ms", "./policies")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%w\n%s", err, out)
		}
		for _, m := range line.FindAllStringSubmatch(string(out), -1) {
			name := strings.ReplaceAll(m[2], "_", " ")
			if times[name] == nil {
				order = append(order, name)
			}
			ns, err1 := strconv.ParseFloat(m[3], 64)
			n, err2 := strconv.ParseFloat(m[4], 64)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("cannot read %q", m[0])
			}
			times[name], allocs[name] = append(times[name], ns/1000), append(allocs[name], n)
		}
	}
	var cells []policyCell
	for _, name := range order {
		cells = append(cells, policyCell{name, middle(times[name]), slices.Min(times[name]), middle(allocs[name])})
	}
	if len(cells) < 6 {
		return nil, fmt.Errorf("only %d benchmarks ran", len(cells))
	}
	return cells, nil
}

func middle(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

func policyRatios(cells []policyCell) []ratio {
	if len(cells) == 0 {
		return nil
	}
	cell := func(name string) policyCell {
		i := slices.IndexFunc(cells, func(c policyCell) bool { return c.Name == name })
		if i < 0 {
			return policyCell{}
		}
		return cells[i]
	}
	most := func(name string, value, goal float64, text string) ratio {
		r := ratio{Name: name, Value: value, Goal: text, Met: "met"}
		if value > goal || value <= 0 && goal > 0 {
			r.Met = "missed"
		}
		return r
	}
	uncached, cached := cell("rules=1000/uncached"), cell("rules=1000/cached")
	return []ratio{
		most("a decision, 1000 rules, us", uncached.MinUS, 30, "<= 30"),
		most("a decision, 1000 rules, allocations", uncached.Allocs, 100, "<= 100"),
		most("a decision, 10000 rules / 10 rules", cell("rules=10000/uncached").MinUS/cell("rules=10/uncached").MinUS, 1.3, "<= 1.3"),
		most("a decision remembered, us", cached.MinUS, 0.5, "<= 0.5"),
		most("a decision remembered, allocations", cached.Allocs, 0, "0"),
		{Name: "a decision / EvalInput(map) of the same", Value: uncached.MinUS / cell("rules=1000/EvalInput").MinUS},
	}
}
