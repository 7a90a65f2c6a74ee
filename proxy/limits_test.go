package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"warder/policies"
)

// 500 at once against a limit of 100, from the client's socket to the upstream's.
func TestLimitHoldsAgainstParallelRequests(t *testing.T) {
	var policy reloaded
	var arrived atomic.Int64
	e := newEnv(t, func(http.ResponseWriter, *http.Request) { arrived.Add(1) }, policy.with(engineOf(t,
		"package warder.egress\n\nallow contains {\"rule\": \"few\", \"limits\": [{\"requests\": 100}]} if input.request.host == \"plain.allowed.test\"\n")))
	const clients, each = 50, 10
	var statuses [600]atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range clients {
		c := e.tls("plain.allowed.test")
		wg.Go(func() {
			<-start
			for range each { // all on their way at once
				io.WriteString(c, get("/", "plain.allowed.test"))
			}
			br := bufio.NewReader(c)
			for range each {
				resp, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				statuses[resp.StatusCode].Add(1)
			}
		})
	}
	close(start)
	wg.Wait()
	if ok, over := statuses[200].Load(), statuses[429].Load(); ok != 100 || over != 400 || arrived.Load() != 100 {
		t.Errorf("%d passed, %d were refused, %d arrived", ok, over, arrived.Load())
	}
}

func TestLimitsCountTheirRuleOrTheKeyTheyName(t *testing.T) {
	var policy reloaded
	e := newEnv(t, nil, policy.with(engineOf(t, `package warder.egress

allow contains {"rule": "a", "limits": [{"requests": 2}]} if input.request.path == "/a"

allow contains {"rule": "b", "limits": [{"requests": 2, "per": "host"}]} if input.request.path == "/b"

allow contains {"rule": "c", "limits": [{"requests": 3, "per": "shared"}]} if input.request.path == "/c"

allow contains {"rule": "d", "limits": [{"requests": 3, "per": "shared"}]} if input.request.path == "/d"
`)))
	for i, c := range []struct {
		host, path, detail string // detail: refused
	}{
		{"plain", "/a", ""},
		{"plain", "/a", ""},
		{"other", "/a", "rule a allows 2 requests per run: 2 used, 0 left"},
		{"plain", "/b", ""}, // what /a used is its own
		{"plain", "/b", ""},
		{"plain", "/b", "rule b allows 2 requests per host: 2 used, 0 left"},
		{"other", "/b", ""},
		{"plain", "/c", ""},
		{"plain", "/d", ""},
		{"plain", "/c", ""},
		{"plain", "/d", "rule d allows 3 requests per shared: 3 used, 0 left"},
	} {
		host := c.host + ".allowed.test"
		r := ask(t, e.tls(host), get(c.path, host))
		if (c.detail == "") != (r.StatusCode == 200) || !strings.Contains(r.body, c.detail) {
			t.Errorf("request %d: %d %s", i, r.StatusCode, r.body)
		}
	}
}

func TestUsageIsWhatWasLetThrough(t *testing.T) {
	var policy reloaded
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Warder-Cost", "7")
		io.WriteString(w, "12345")
	}, policy.with(engineOf(t, `package warder.egress

allow contains {"rule": "r", "limits": [{"cost": 1000, "per": "k"}]} if input.request.path == "/ok"

allow contains {"rule": "with", "credential": "api"} if input.request.path == "/with"

deny contains {"rule": "told", "message": json.marshal(input.usage)} if input.request.path == "/told"

deny contains {"rule": "enough"} if input.usage.run.requests >= 3
`)))
	told := func(host string) string {
		r := ask(t, e.tls(host), get("/told", host))
		var d struct{ Detail string }
		if err := json.Unmarshal([]byte(r.body), &d); err != nil {
			t.Fatal(err)
		}
		return d.Detail
	}
	const none = `{"bytes_in":0,"bytes_out":0,"cost":0,"requests":0}`
	if got, want := told("plain.allowed.test"), `{"credentials":{},"host":`+none+`,"run":`+none+`}`; got != want {
		t.Errorf("at first %s", got)
	}
	e.tape.completed(t, 1)
	for i, raw := range []string{"POST /ok HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Length: 3\r\n\r\nabc", get("/no", "plain.allowed.test"), get("/with", "api.allowed.test")} {
		ask(t, e.tls([]string{"plain", "plain", "api"}[i]+".allowed.test"), raw)
		e.tape.completed(t, i+2)
	}
	if got, want := told("plain.allowed.test"), `{"credentials":{"api":{"bytes_in":5,"bytes_out":0,"cost":0,"requests":1}},`+
		`"host":{"bytes_in":5,"bytes_out":3,"cost":7,"requests":1},"run":{"bytes_in":10,"bytes_out":3,"cost":7,"requests":2}}`; got != want {
		t.Errorf("then %s", got)
	}
	for i, want := range []int{200, 403} {
		if r := ask(t, e.tls("plain.allowed.test"), get("/ok", "plain.allowed.test")); r.StatusCode != want {
			t.Errorf("request %d: %d %s", i, r.StatusCode, r.body)
		}
	}
}

// What a WebSocket sends is bounded like a body.
func TestByteLimitsHoldForWebSockets(t *testing.T) {
	for _, way := range []string{"bytes_out", "bytes_in"} {
		t.Run(way, func(t *testing.T) {
			var policy reloaded
			e := newEnv(t, ticking(t), policy.with(engineOf(t, fmt.Sprintf("package warder.egress\n\nallow contains {\"rule\": \"ws\", \"limits\": [{%q: 4096}]} if true\n", way))))
			c := e.tls("plain.allowed.test")
			send(t, c, wsRequest)
			br := bufio.NewReader(c)
			if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != 101 {
				t.Fatalf("%v %v", resp, err)
			}
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				for range 100 {
					if _, err := c.Write(make([]byte, 1024)); err != nil {
						return
					}
				}
			}()
			got, _ := io.Copy(io.Discard, br)
			<-sent
			rec := e.tape.completed(t, 1)[0]
			if rec.Reason != reasonLimitExceeded || got > 4096+64 || rec.Request.Bytes > 4096 && way == "bytes_out" {
				t.Errorf("%d came back; record %+v %+v", got, rec.Request, rec.Reason)
			}
		})
	}
}

// The sandbox chooses hosts and what keys are made of: what is counted is bounded.
func TestCountersAreBounded(t *testing.T) {
	e := newEnv(t, nil, policy(func(in *policies.Input) policies.Decision {
		d := byHost(in)
		d.Limits = []policies.Limit{{Requests: 5, Per: in.Request.Path}}
		return d
	}))
	for i := range maxCounters {
		e.run.used[fmt.Sprint("key ", i)] = &counter{}
	}
	if r := ask(t, e.tls("plain.allowed.test"), get("/another", "plain.allowed.test")); r.StatusCode != 429 {
		t.Errorf("one more key: %d %s", r.StatusCode, r.body)
	}
	delete(e.run.used, "key 0")
	if r := ask(t, e.tls("plain.allowed.test"), get("/another", "plain.allowed.test")); r.StatusCode != 200 {
		t.Errorf("a key in place of another: %d %s", r.StatusCode, r.body)
	}
}
