package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"warder/internal/identity"
	"warder/runner"
)

// trustProbe is one client's way to ask for a page over HTTPS, as a condition of
// sh. The page is answered inside Warder: no policy is asked and nothing leaves.
type trustProbe struct {
	client  string
	present string // a program, or a condition
	ask     string
}

const trustPage = "https://warder.internal/ca.pem"

var trustProbes = []trustProbe{
	{"curl", "curl", "curl -fsS -o /dev/null " + trustPage},
	{"wget", "wget", "wget -qO /dev/null " + trustPage},
	{"openssl", "openssl", "openssl s_client -brief -verify_return_error -servername warder.internal -connect warder.internal:443"},
	{"git", "git", `git ls-remote https://warder.internal/x.git 2>&1 | tee /dev/stderr | grep -q 'not found'`},
	{"python3 urllib", "python3", `python3 -c 'import urllib.request as u; u.urlopen("` + trustPage + `").read()'`},
	{"python3-requests", "python3 -c 'import requests'", `python3 -c 'import requests; requests.get("` + trustPage + `").raise_for_status()'`},
	{"python3-httpx", "python3 -c 'import httpx'", `python3 -c 'import httpx; httpx.get("` + trustPage + `").raise_for_status()'`},
	{"node", "node", `node -e 'fetch("` + trustPage + `").then(r => process.exit(r.ok ? 0 : 1), e => { console.error(String(e.cause)); process.exit(1) })'`},
	{"deno", "deno", `DENO_DIR=/tmp/deno deno eval 'const r = await fetch("` + trustPage + `"); Deno.exit(r.ok ? 0 : 1)'`},
	{"bun", "bun", `bun -e 'const r = await fetch("` + trustPage + `"); process.exit(r.ok ? 0 : 1)'`},
	{"go", "go", `HOME=/tmp GOTOOLCHAIN=local GOPROXY=https://warder.internal GONOSUMDB='*' GOFLAGS=-mod=mod go list -m x.test/y@v1.0.0 2>&1 | tee /dev/stderr | grep -q 404`},
	{"Java key store", "keytool", "keytool -list -cacerts -storepass changeit 2>&1 | tee /dev/stderr | grep -q warder-0"},
	{"ruby", "ruby -rnet/http -ropenssl -e 0", `ruby -rnet/http -e 'exit Net::HTTP.get_response(URI("` + trustPage + `")).is_a?(Net::HTTPOK)'`},
	{"apt", "test -x /usr/lib/apt/apt-helper", "/usr/lib/apt/apt-helper download-file " + trustPage + " /tmp/apt-probe"},
}

// clientTrust is what became of a probe.
type clientTrust struct {
	Client string `json:"client"`
	Status string `json:"status"` // ok | failed | absent
	Detail string `json:"detail,omitempty"`
}

type trustReport struct {
	Root      string                 `json:"root"`
	Variables []runner.TrustVariable `json:"variables"`
	Clients   []clientTrust          `json:"clients"`
}

// trustScript tries every probe and writes "N ok", "N absent" or "N failed LINE".
func trustScript() string {
	var b strings.Builder
	for i, p := range trustProbes {
		present := p.present
		if !strings.ContainsAny(present, " /") {
			present = "command -v " + present
		}
		fmt.Fprintf(&b, "if ! { %s; } >/dev/null 2>&1; then echo %d absent; elif { %s; } </dev/null >/tmp/said 2>&1; then echo %d ok; else echo %d failed $(tail -n 1 /tmp/said); fi\n", present, i, p.ask, i, i)
	}
	return b.String()
}

func readTrust(out string) []clientTrust {
	var list []clientTrust
	for line := range strings.Lines(out) {
		n, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		status, detail, _ := strings.Cut(rest, " ")
		i, err := strconv.Atoi(n)
		if err != nil || i < 0 || i >= len(trustProbes) {
			continue
		}
		list = append(list, clientTrust{trustProbes[i].client, status, detail})
	}
	return list
}

// reportTrust tries the clients of a root file system and prints the table.
func reportTrust(file, image, output string, stdout, stderr io.Writer) error {
	rep, err := tryTrust(file, image, stderr)
	if err != nil {
		return err
	}
	failed := 0
	err = printAs(stdout, output, rep, func(w io.Writer) {
		fmt.Fprintf(w, "variables\n")
		for _, v := range rep.Variables {
			fmt.Fprintf(w, "\t%s=%s\t%s\n", v.Name, v.Value, v.Clients)
		}
		fmt.Fprintf(w, "clients of %s\n", rep.Root)
		for _, c := range rep.Clients {
			fmt.Fprintf(w, "\t%s\t%s", c.Status, c.Client)
			if c.Detail != "" { // the root's own words
				fmt.Fprintf(w, "\t%q", c.Detail)
			}
			fmt.Fprintln(w)
		}
	})
	for _, c := range rep.Clients {
		if c.Status == "failed" {
			failed++
		}
	}
	if err == nil && failed > 0 {
		return &exitError{2, fmt.Errorf("%d clients do not trust the CA of their run; hint: see the variables above, and what the client itself wants", failed)}
	}
	return err
}

func tryTrust(file, image string, stderr io.Writer) (trustReport, error) {
	rep := trustReport{Root: image, Variables: runner.TrustVariables()}
	if image == "" {
		rep.Root = "the host's /usr"
	}
	ctx := context.Background()
	a, err := openApp(ctx, appOptions{config: file, stderr: stderr})
	if err != nil {
		return rep, err
	}
	images, err := a.images()
	if err != nil {
		return rep, errors.Join(err, a.close())
	}
	none := ""
	r := &runner.Runner{Proxy: a.proxy, Broker: a.broker, State: a.state, Log: a.log, Ready: a.ready, Images: images}
	res, err := r.Run(ctx, runner.Task{
		Run: identity.Run{ID: identity.NewRunID(), Task: "doctor", User: callerName()}, Argv: []string{"sh", "-c", trustScript()},
		Image: image, Entrypoint: &none, Workdir: "/workspace", Credentials: []string{},
		UIDRange: a.cfg.Sandbox.UIDRange, Limits: runner.Limits{Memory: 1 << 30, Timeout: 5 * time.Minute},
	})
	if err = errors.Join(err, a.close()); err != nil {
		return rep, err
	}
	if rep.Clients = readTrust(string(res.Stdout)); len(rep.Clients) != len(trustProbes) {
		return rep, fmt.Errorf("trust: %d of %d clients were tried (cause %s, exit code %d): %s", len(rep.Clients), len(trustProbes), res.Cause, res.ExitCode, strings.TrimSpace(string(res.Stderr)))
	}
	return rep, nil
}
