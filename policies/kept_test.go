package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
)

const keepingPolicy = `package warder.egress

allow contains {"rule": "a"} if {
	input.request.host == "api.allowed.test"
	input.request.headers.accept
	input.request.headers.authorization
	input.request.query
	input.request.body
}
`

func keepingEngine(t *testing.T, keep bool) *Engine {
	t.Helper()
	e, err := Load(Options{Dir: write(t, map[string]string{"a.rego": keepingPolicy}), KeepInput: keep})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// keptRequest is a request with canaries wherever a secret may stand.
func keptRequest() *Input {
	body := `{"note": "hello", "password": "S3CR3T-CANARY-1", "n": 1.50, "list": [{"apiKey": "S3CR3T-CANARY-2"}], "text": "x ghp_S3CR3TCANARY3 y", "id": 12345678901234567890}`
	return &Input{
		Stage: StageRequest,
		Request: Request{
			ID: "q1", Method: "POST", Scheme: "https", Host: "api.allowed.test", Port: 443, Path: "/p",
			Query: map[string][]string{"page": {"2"}, "access_token": {"S3CR3T-CANARY-4"}, "q": {"S3CR3T0CANARY0S3CR3T0CANARY5"}},
			Headers: map[string][]string{
				"accept": {"application/vnd.github.v3+json"}, "authorization": {"Bearer S3CR3T-CANARY-6"},
				"x-unread": {"never referred to"}, "content-type": {"application/json"},
			},
			Protocol: "http/1.1", ContentType: "application/json", ContentLength: int64(len(body)), Body: []byte(body), BodyRead: true,
		},
	}
}

// What is kept of an input: the parts that the policy refers to, no others, in one
// form, named by its content, with every secret masked.
func TestTheInputThatIsKept(t *testing.T) {
	e := keepingEngine(t, true)
	d := e.Decide(t.Context(), keptRequest())
	want := `{"approvals":[],"credentials":[],"request":{"body":{"id":12345678901234567890,"list":[{"apiKey":"(masked)"}],"n":1.50,"note":"hello","password":"(masked)","text":"(masked)"},"body_truncated":false,` +
		`"headers":{"accept":["application/vnd.github.v3+json"],"authorization":["(masked)"]},"host":"api.allowed.test",` +
		`"query":{"access_token":["(masked)"],"page":["2"],"q":["(masked)"]},"unparsed":false},"stage":"request"}`
	if string(d.Input) != want || !json.Valid(d.Input) {
		t.Errorf("kept\n%s\nwant\n%s", d.Input, want)
	}
	sum := sha256.Sum256(d.Input)
	if d.InputRef != "sha256:"+hex.EncodeToString(sum[:]) {
		t.Errorf("its name is %s", d.InputRef)
	}
	if strings.Contains(string(d.Input), "CANARY") {
		t.Error("a secret is kept")
	}
	if again := e.Decide(t.Context(), keptRequest()); again.InputRef != d.InputRef || again.ID == d.ID {
		t.Errorf("the same input has another name: %s", again.InputRef)
	}
}

func TestNoInputIsKeptUnasked(t *testing.T) {
	if d := keepingEngine(t, false).Decide(t.Context(), keptRequest()); d.Input != nil || d.InputRef != "" {
		t.Errorf("kept %s", d.Input)
	}
	in := keptRequest()
	in.Request.Query["page"] = []string{strings.Repeat("a ", maxKeptInput)}
	if d := keepingEngine(t, true).Decide(t.Context(), in); d.Input != nil || d.InputRef != "" {
		t.Errorf("kept %d bytes", len(d.Input))
	}
}

// A decision out of the cache is kept like one that was made.
func TestACachedDecisionKeepsItsInput(t *testing.T) {
	e, err := Load(Options{Dir: write(t, map[string]string{"a.rego": "package warder.egress\n\nallow contains {\"rule\": \"a\"} if input.request.host == \"api.allowed.test\"\n"}), KeepInput: true})
	if err != nil {
		t.Fatal(err)
	}
	in := &Input{Stage: StageRequest, Request: Request{Host: "api.allowed.test", ContentLength: 0}}
	first := e.Decide(t.Context(), in)
	second := e.Decide(t.Context(), in)
	if e.cache.len() != 1 {
		t.Fatal("the decision is not in the cache: the test shows nothing")
	}
	if first.InputRef == "" || second.InputRef != first.InputRef || string(second.Input) != `{"approvals":[],"credentials":[],"request":{"host":"api.allowed.test"},"stage":"request"}` {
		t.Errorf("%s, then %s: %s", first.InputRef, second.InputRef, second.Input)
	}
}

func TestWhatLooksLikeASecret(t *testing.T) {
	for s, want := range map[string]bool{
		"": false, "2": false, "hello world": false, "application/vnd.github.v3+json": false, "curl/8.5.0": false,
		"Mozilla/5.0 (X11; Linux x86_64)": false, "2026-11-29T17:00:00Z": false, "a-long-name-without-any-number-in-it": false,
		"ghp_0123456789": true, "glpat-abcdefgh": true, "sk-proj-abc123": true, "AKIAIOSFODNN7": true, "x eyJhbGciOi y": true,
		"hvs.CAESIabc": true, "0123456789abcdef0123456789abcdef": true, "Basic dXNlcjpwYXNz": true,
	} {
		if got := looksSecret(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}
