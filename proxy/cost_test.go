package proxy

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"warder/policies"
)

func TestCostLimitCountsWhatAnswersSay(t *testing.T) {
	for name, c := range map[string]struct {
		header, body string
		cost         int64
	}{
		"a header":             {"42", `{"usage":{"total_tokens":7}}`, 42},
		"a broken header":      {"x", `{"usage":{"total_tokens":7}}`, 7},
		"total":                {"", `{"usage":{"prompt_tokens": 10, "completion_tokens":5,"total_tokens": 16}}`, 16},
		"a pair":               {"", `{"usage" : {"input_tokens" : 30 ,` + "\n" + `"output_tokens":12}}`, 42},
		"another spelling":     {"", `{"usageMetadata":{"totalTokenCount":9}}`, 9},
		"a stream":             {"", "data: {\"usage\":{\"output_tokens\":1}}\n\ndata: {\"usage\":{\"output_tokens\":25}}\n\n", 25},
		"a number at the end":  {"", `"total_tokens":123`, 123},
		"content that says it": {"", `{"text":"\"total_tokens\":999999","usage":{"total_tokens":3}}`, 3},
		"nothing":              {"", strings.Repeat("x", 401), 101},
		"not a number":         {"", `{"total_tokens":null,"pad":"` + strings.Repeat("x", 372) + `"}`, 101},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Accept-Encoding") != "identity" {
					t.Errorf("Accept-Encoding %q", r.Header.Get("Accept-Encoding"))
				}
				if c.header != "" {
					w.Header().Set("Warder-Cost", c.header)
				}
				for i := range len(c.body) { // byte by byte
					w.Write([]byte{c.body[i]})
				}
			})
			limit := c.cost + 1
			e.policy.fn = func(*policies.Input) policies.Decision {
				return policies.Decision{Verdict: policies.Allow, Rule: "model", Limits: []policies.Limit{{Cost: limit, Per: "run"}, {Cost: limit, Per: "tokens"}}}
			}
			var got []int
			for range 3 { // the second uses it up, the third is refused
				r := ask(t, e.tls("plain.allowed.test"), "GET / HTTP/1.1\r\nHost: plain.allowed.test\r\nAccept-Encoding: gzip\r\n\r\n")
				got = append(got, r.StatusCode)
				e.tape.completed(t, len(got))
			}
			if got[0] != 200 || got[1] != 200 || got[2] != 429 {
				t.Errorf("statuses %v", got)
			}
			if n := e.run.used["key tokens"].cost.Load(); n != 2*c.cost || e.run.total.cost.Load() != n {
				t.Errorf("counted %d for two answers", n)
			}
		})
	}
}

func TestCostOfACodedAnswerIsItsSize(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		io.WriteString(z, `{"usage":{"total_tokens":0}}`)
		z.Close()
	})
	e.policy.fn = func(*policies.Input) policies.Decision {
		return policies.Decision{Verdict: policies.Allow, Rule: "model", Limits: []policies.Limit{{Cost: 5, Per: "run"}}}
	}
	for _, want := range []int{200, 429} {
		if r := ask(t, e.tls("plain.allowed.test"), get("/", "plain.allowed.test")); r.StatusCode != want {
			t.Errorf("%d, want %d", r.StatusCode, want)
		}
	}
}
