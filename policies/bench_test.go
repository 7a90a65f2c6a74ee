package policies

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/rego"

	"warder/internal/identity"
)

// benchPolicy holds n rules of the common shape: host, methods, path prefix, label.
func benchPolicy(n int) string {
	var b strings.Builder
	b.WriteString("package warder.egress\n")
	for i := range n {
		fmt.Fprintf(&b, "allow contains {\"rule\": \"r%05d\", \"credential\": \"c%d\"} if {\n\tinput.request.host == %q\n\tinput.request.method in {\"GET\", \"POST\"}\n\tstartswith(input.request.path, %q)\n\tinput.run.labels.env == \"ci\"\n}\n", i, i%50, benchHost(i), fmt.Sprintf("/v%d/", i%4))
	}
	return b.String()
}

func benchHost(i int) string { return fmt.Sprintf("api%d.example.com", i/4) }

func benchInput(n int) *Input {
	i := n / 2
	return &Input{
		Stage: StageRequest,
		Run:   identity.Run{ID: "r-0123", Agent: "coder", Labels: map[string]string{"env": "ci", "team": "core"}},
		Request: Request{
			ID: "q-1", Method: "POST", Scheme: "https", Host: benchHost(i), Port: 443,
			Path: fmt.Sprintf("/v%d/chat/completions", i%4), Segments: []string{"v1", "chat", "completions"},
			Headers:  map[string][]string{"accept": {"application/json"}, "content-type": {"application/json"}, "user-agent": {"agent/1.0"}, "authorization": {"-"}, "accept-encoding": {"gzip"}, "content-length": {"1024"}},
			Protocol: "http/1.1", ContentLength: 1024,
		},
		Destination: Destination{Transparent: true, SNI: benchHost(i)},
		Credentials: []string{fmt.Sprintf("c%d", i%50)},
		TimeNS:      time.Now().UnixNano(),
	}
}

var benchSizes = []int{10, 1000, 10000}

func BenchmarkDecide(b *testing.B) {
	ctx := context.Background()
	for _, n := range benchSizes {
		e := load(b, benchPolicy(n))
		in := benchInput(n)
		b.Run(fmt.Sprintf("rules=%d/cached", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := e.decide(ctx, in); d.Verdict != Allow {
					b.Fatalf("%+v", d)
				}
			}
		})
		b.Run(fmt.Sprintf("rules=%d/cached with id", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := e.Decide(ctx, in); d.Verdict != Allow {
					b.Fatalf("%+v", d)
				}
			}
		})
		e.cache = nil
		b.Run(fmt.Sprintf("rules=%d/uncached", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := e.Decide(ctx, in); d.Verdict != Allow {
					b.Fatalf("%+v", d)
				}
			}
		})
		b.Run(fmt.Sprintf("rules=%d/deny", n), func(b *testing.B) {
			in := benchInput(n)
			in.Request.Host = "denied.example.net"
			b.ReportAllocs()
			for b.Loop() {
				if d := e.Decide(ctx, in); d.Verdict != Deny {
					b.Fatalf("%+v", d)
				}
			}
		})
	}
}

// The same policy through the ordinary interface: the yardstick.
func BenchmarkYardstick(b *testing.B) {
	ctx := context.Background()
	for _, n := range benchSizes {
		e := load(b, benchPolicy(n))
		in := benchInput(n)
		full := wholeQuery(b, e)
		document := map[string]any{
			"stage": in.Stage, "credentials": []any{in.Credentials[0]}, "approvals": []any{},
			"run":     map[string]any{"id": in.Run.ID, "agent": in.Run.Agent, "labels": map[string]any{"env": "ci", "team": "core"}},
			"request": map[string]any{"method": in.Request.Method, "host": in.Request.Host, "port": 443, "path": in.Request.Path, "segments": []any{"v1", "chat", "completions"}, "headers": map[string]any{"accept": []any{"application/json"}, "content-type": []any{"application/json"}}},
		}
		b.Run(fmt.Sprintf("rules=%d/EvalInput", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rs, err := full.prepared.Eval(ctx, rego.EvalInput(document))
				if err != nil || len(rs) != 1 {
					b.Fatal(err)
				}
			}
		})
	}
}
