package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// credentialCell is what the broker adds to one request with one kind of
// credential, with a real Vault on loopback that writes its audit log.
type credentialCell struct {
	Kind    string  `json:"kind"`
	HitUS   float64 `json:"hit_us"`   // the value is there; totp and the hmac of Vault have none to keep
	MissUS  float64 `json:"miss_us"`  // it is fetched
	FirstUS float64 `json:"first_us"` // and the run's token is made
	Calls   float64 `json:"vault_calls_per_1000_requests"`
}

var credentialLine = regexp.MustCompile(`^BenchmarkCredential/(hit|miss|first|calls)/([a-z0-9-]+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op(?:\s+([0-9.]+) calls/1000)?`)

// benchCredentials runs the benchmark of the broker's package three times and
// takes the medians, and once for the number of calls.
func benchCredentials() ([]credentialCell, error) {
	const times = "hit|miss|first"
	samples := map[string]map[string][]float64{} // kind → what → values
	for _, run := range []struct{ what, time string }{{times, "200ms"}, {times, "200ms"}, {times, "200ms"}, {"calls", "1x"}} {
		cmd := exec.Command("go", "test", "./broker", "-run", "^$", "-bench", "^BenchmarkCredential$/^("+run.what+")$", "-benchtime", run.time)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%w\n%s%s", err, out, errs.String())
		}
		for line := range strings.Lines(string(out)) {
			m := credentialLine.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			value := m[3]
			if m[1] == "calls" {
				value = m[4]
			}
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", line, err)
			}
			if samples[m[2]] == nil {
				samples[m[2]] = map[string][]float64{}
			}
			samples[m[2]][m[1]] = append(samples[m[2]][m[1]], v)
		}
	}
	var cells []credentialCell
	for kind, s := range samples {
		cells = append(cells, credentialCell{kind, median(s["hit"]) / 1e3, median(s["miss"]) / 1e3, median(s["first"]) / 1e3, median(s["calls"])})
	}
	slices.SortFunc(cells, func(a, b credentialCell) int { return strings.Compare(a.Kind, b.Kind) })
	if len(cells) == 0 {
		return nil, fmt.Errorf("the benchmark of the broker printed nothing")
	}
	return cells, nil
}

// signsEach are the kinds of which every request has its own value.
var signsEach = []string{"hmac", "totp", "local-totp"}

func credentialRatios(cells []credentialCell) []ratio {
	var hit, miss, calls float64
	for _, c := range cells {
		miss = max(miss, c.MissUS)
		if !slices.Contains(signsEach, c.Kind) {
			hit, calls = max(hit, c.HitUS), max(calls, c.Calls)
		}
	}
	if len(cells) == 0 {
		return nil
	}
	return []ratio{
		bound("credentials: us that a kept value adds to a request, slowest kind", hit, "<=", 50),
		bound("credentials: ms that a fetch adds, slowest kind", miss/1e3, "<=", 5),
		bound("credentials: calls of Vault in 1,000 requests of a run, of what is kept", calls, "<=", 5),
	}
}
