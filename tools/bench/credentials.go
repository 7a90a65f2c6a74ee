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

// credentialCell is what one kind of credential costs, with a real Vault on
// loopback that writes its audit log: in the broker alone, and to a request through
// `warder proxy` against the same one without a credential.
type credentialCell struct {
	Kind    string  `json:"kind"`
	HitUS   float64 `json:"hit_us"`   // the value is there; totp and the hmac of Vault have none to keep
	MissUS  float64 `json:"miss_us"`  // it is fetched
	FirstUS float64 `json:"first_us"` // and the run's token is made

	BareUS        float64 `json:"proxied_bare_us"` // the whole request without a credential
	ProxiedHitUS  float64 `json:"proxied_hit_us"`  // added to it
	ProxiedMissUS float64 `json:"proxied_miss_us"`
	Calls         float64 `json:"vault_calls_per_1000_requests"` // proxied, with the end of their run
}

var (
	credentialLine = regexp.MustCompile(`^BenchmarkCredential/(hit|miss|first)/([a-z0-9-]+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op`)
	proxiedLine    = regexp.MustCompile(`^BenchmarkProxiedCredential/([a-z0-9-]+?)(?:-\d+)?\s+\d+\s+(.*)`)
	proxiedValue   = regexp.MustCompile(`(-?[0-9.]+) ([a-z0-9/-]+)`)
)

// credentialRounds is how often the broker's benchmark goes through all kinds; that
// of the proxy has its rounds inside, within one process.
const credentialRounds = 5

// benchCredentials takes the medians of both benchmarks.
func benchCredentials() ([]credentialCell, error) {
	samples := map[string]map[string][]float64{} // kind → what → values
	add := func(kind, what, value string) error {
		v, err := strconv.ParseFloat(value, 64)
		if samples[kind] == nil {
			samples[kind] = map[string][]float64{}
		}
		samples[kind][what] = append(samples[kind][what], v)
		return err
	}
	for range credentialRounds {
		err := goBench("./broker", "^BenchmarkCredential$", "200ms", func(line string) error {
			if m := credentialLine.FindStringSubmatch(line); m != nil {
				return add(m[2], m[1], m[3])
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	err := goBench("./cmd/warder", "^BenchmarkProxiedCredential$", "1x", func(line string) error {
		m := proxiedLine.FindStringSubmatch(line)
		if m == nil {
			return nil
		}
		for _, v := range proxiedValue.FindAllStringSubmatch(strings.ReplaceAll(m[2], "\t", "  "), -1) {
			if err := add(m[1], v[2], v[1]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var cells []credentialCell
	for kind, s := range samples {
		for _, what := range []string{"hit", "miss", "first", "bare-us", "hit-us", "miss-us", "calls/1000"} {
			if len(s[what]) == 0 {
				return nil, fmt.Errorf("%s: no %s was measured", kind, what)
			}
		}
		cells = append(cells, credentialCell{
			kind, median(s["hit"]) / 1e3, median(s["miss"]) / 1e3, median(s["first"]) / 1e3,
			median(s["bare-us"]), median(s["hit-us"]), median(s["miss-us"]), median(s["calls/1000"]),
		})
	}
	slices.SortFunc(cells, func(a, b credentialCell) int { return strings.Compare(a.Kind, b.Kind) })
	if len(cells) == 0 {
		return nil, fmt.Errorf("the benchmarks printed nothing")
	}
	return cells, nil
}

// goBench runs one benchmark of a package and gives each line that it prints.
func goBench(pkg, name, benchtime string, each func(line string) error) error {
	cmd := exec.Command("go", "test", pkg, "-run", "^$", "-bench", name, "-benchtime", benchtime, "-timeout", "30m")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w\n%s%s", err, out, errs.String())
	}
	for line := range strings.Lines(string(out)) {
		if err := each(line); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
	}
	return nil
}

// signsEach are the kinds of which every request has its own value.
var signsEach = []string{"hmac", "totp", "local-totp"}

func credentialRatios(cells []credentialCell) []ratio {
	var hit, proxied, miss, calls float64
	for _, c := range cells {
		miss = max(miss, c.MissUS)
		if !slices.Contains(signsEach, c.Kind) {
			hit, proxied, calls = max(hit, c.HitUS), max(proxied, c.ProxiedHitUS), max(calls, c.Calls)
		}
	}
	if len(cells) == 0 {
		return nil
	}
	return []ratio{
		bound("credentials: us of the broker for a kept value, slowest kind", hit, "<=", 50),
		bound("credentials: ms of the broker for a fetch, slowest kind", miss/1e3, "<=", 5),
		bound("credentials: us that a kept value adds to a proxied request, slowest kind", proxied, "", 0),
		bound("credentials: calls of Vault in 1,000 proxied requests of a run, of what is kept", calls, "<=", 5),
	}
}
