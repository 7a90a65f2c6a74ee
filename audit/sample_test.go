package audit

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"warder/internal/identity"
)

// The sample is the log that docs/audit.md explains; it is made with
// go test ./audit -run TestTheSampleLog -update.
var update = flag.Bool("update", false, "make testdata/sample anew")

const sampleDir = "testdata/sample"

func TestTheSampleLog(t *testing.T) {
	if *update {
		makeSample(t)
	}
	rep := wantVerdict(t, sampleDir, VerdictComplete)
	if rep.Records != 10 || rep.Runs != 1 || rep.Streams != 1 || len(rep.OpenStreams) != 0 {
		t.Errorf("%+v", rep)
	}
	var story strings.Builder
	no(t, Story(&story, Read(t.Context(), sampleDir, Filter{Run: "r-"})))
	for _, want := range []string{
		`starts: "python3" "report.py"`, "limits not enforced: [cpus]", "about to send GET api.example.test:443/v1/report",
		"allowed GET api.example.test:443/v1/report: 200, masked 1 time in the answer, by rule report-read, with credential report",
		"denied POST api.example.test:443/v1/admin: 403, no-rule", "led nowhere: 2 icmp, 7 udp",
		`ends: exit 0, artefact "/out/report.txt" of 512 bytes, credential report revoked`,
	} {
		if !strings.Contains(story.String(), want) {
			t.Errorf("the story lacks %q:\n%s", want, story.String())
		}
	}
}

func makeSample(t *testing.T) {
	t.Helper()
	no(t, os.RemoveAll(sampleDir))
	now := time.Date(2026, 11, 29, 17, 0, 0, 0, time.UTC)
	clock := func() time.Time { now = now.Add(time.Millisecond); return now }
	l, err := Open(t.Context(), Options{Dir: sampleDir, Clock: clock})
	no(t, err)
	g := &rig{Log: l, dir: sampleDir, run: &identity.Run{ID: identity.NewRunID(), Task: "report", User: "ann"}}
	pol := &Policy{Revision: "3f2a", Digest: "sha256:" + strings.Repeat("5d", 32), Mode: "enforce"}
	code := 0
	request := func(id, method, path string) *Request {
		return &Request{ID: id, Method: method, Scheme: "https", Host: "api.example.test", Port: 443, Path: path, Protocol: "http/1.1", HeaderNames: []string{"accept"}, Attempts: 1}
	}
	read := request("q-1", "GET", "/v1/report")
	g.must(t,
		&Record{Event: EventPolicyLoad, Policy: pol},
		&Record{Event: EventRunStart, Run: g.run, RunStart: &RunStart{
			Argv: []string{"python3", "report.py"}, EnvNames: []string{"REPORT_TOKEN"}, Image: "curated root",
			Inputs: []File{{Path: "/workspace/report.py", Size: 900, Mode: "0644", SHA256: strings.Repeat("1a", 32)}},
			Limits: map[string]any{"memory": "512Mi", "timeout": "10m", "not_enforced": []string{"cpus"}},
		}},
		&Record{Event: EventRequest, Stage: StageReserved, Run: g.run, Request: read, Mode: "intercepted", Verdict: "allow", Rule: "report-read", Policy: pol},
		&Record{Event: EventLease + "issue", Run: g.run, Credential: &Credential{Name: "report", Kind: "kv"}},
		&Record{
			Event: EventRequest, Stage: StageCompleted, Run: g.run, Request: read, Mode: "intercepted", Verdict: "allow", Rule: "report-read", Policy: pol,
			Dst: &Dst{IP: "192.0.2.10", Port: 443, TLSVersion: "1.3"}, Credential: &Credential{Name: "report", Kind: "kv"},
			Response: &Response{Status: 200, Bytes: 512, Scrubbed: 1}, Timing: &Timing{Decide: 21, Grant: 900, Upstream: 41000, Total: 42100},
		},
		&Record{
			Event: EventRequest, Stage: StageCompleted, Run: g.run, Request: request("q-2", "POST", "/v1/admin"), Mode: "refused",
			Verdict: "deny", Reason: "no-rule", Policy: pol, Response: &Response{Status: 403, Bytes: 310},
		},
		&Record{Event: EventOverride, Run: g.run, Override: &Override{Setting: "proxy.upstream.hosts", Value: "api.example.test=192.0.2.10"}},
		&Record{Event: EventLease + "revoke", Run: g.run, Credential: &Credential{Name: "report", Kind: "kv", Status: "revoked"}},
		&Record{Event: EventDrop, Run: g.run, Drop: &Drop{Dropped: map[string]uint64{"udp": 7, "icmp": 2}}},
		&Record{Event: EventRunEnd, Run: g.run, RunEnd: &RunEnd{
			Cause: "exit", ExitCode: &code, Stdout: &Stream{Bytes: 20, SHA256: strings.Repeat("2b", 32)}, Stderr: &Stream{SHA256: strings.Repeat("e3", 32)},
			Artifacts:   []File{{Path: "/out/report.txt", Size: 512, Mode: "0644", SHA256: strings.Repeat("3c", 32)}},
			Credentials: []Credential{{Name: "report", Kind: "kv", Status: "revoked"}},
		}})
	g.close(t)
	// An auditor's copy has no private key, and nothing that is on its way.
	no(t, os.RemoveAll(filepath.Join(sampleDir, tempDir)))
	no(t, os.Remove(filepath.Join(sampleDir, keysDir, signingKey)))
}
