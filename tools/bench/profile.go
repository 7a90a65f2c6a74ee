package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// phaseCell is when a run reached a phase, from the start of its process.
type phaseCell struct {
	Phase string  `json:"phase"`
	MS    float64 `json:"ms"`
}

// benchPhases says where the time of a start goes: the process itself, the loading
// of the helper ("spawned"), gofer and sentry until the sandbox exists ("created"),
// the first record and the start of the task ("started"), the task and the end of
// its sandbox ("exited"), what is taken back ("revoked"), records and cgroups.
func benchPhases(o options) ([]phaseCell, error) {
	config := filepath.Join(o.dir, "phases.yaml")
	if err := os.WriteFile(config, []byte("version: 1\naudit: {dir: ./phases-audit}\n"), 0o600); err != nil {
		return nil, err
	}
	var names []string
	at := map[string][]float64{}
	for round := range o.rounds + 1 {
		trace := filepath.Join(o.dir, fmt.Sprintf("phases-%d", round))
		cmd := exec.Command(o.warder, "run", "--config", config, "--trace", trace, "--", trueCmd)
		cmd.Env = append(os.Environ(), "WARDER_STATE_DIR="+filepath.Join(o.dir, "state"))
		begin := time.Now()
		if err := cmd.Run(); err != nil {
			return nil, err
		}
		end := time.Since(begin)
		text, err := os.ReadFile(trace)
		if err != nil {
			return nil, err
		}
		for _, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
			var p struct {
				Phase string
				Time  time.Time
			}
			if err := json.Unmarshal(line, &p); err != nil {
				return nil, err
			}
			if round == 0 {
				names = append(names, p.Phase)
				continue // warms caches
			}
			at[p.Phase] = append(at[p.Phase], float64(p.Time.Sub(begin))/1e6)
		}
		if round > 0 {
			at["process gone"] = append(at["process gone"], float64(end)/1e6)
		}
	}
	var cells []phaseCell
	for _, name := range append(names, "process gone") {
		cells = append(cells, phaseCell{name, median(at[name])})
	}
	return cells, nil
}
