package proxy

import (
	"encoding/json"
	"strings"
	"testing"

	"warder/internal/config"
)

func TestReservedNameTellsWhatTheRunMayCall(t *testing.T) {
	e := newEnv(t, nil, plainUpstream, rego(regoPolicy+`
allow contains {"rule": "not-offered", "credential": "other"} if input.request.host == "other.allowed.test"
`), withStandIn(config.Inject{Header: "Authorization"}))
	denied := ask(t, e.plain("plain.allowed.test"), get("/admin", "plain.allowed.test"))
	var d document
	if err := json.Unmarshal([]byte(denied.body), &d); err != nil || !strings.Contains(d.Hint, "http://warder.internal/") {
		t.Errorf("the denial %q does not name it: %v", denied.body, err)
	}
	var all struct {
		Run      string        `json:"run"`
		Rules    []callable    `json:"rules"`
		StandIns []standInName `json:"stand_ins"`
		Denials  []Denial      `json:"denials"`
		CA       string        `json:"ca"`
	}
	r := ask(t, e.plain("warder.internal"), get("/", "warder.internal"))
	if err := json.Unmarshal([]byte(r.body), &all); err != nil {
		t.Fatalf("%q: %v", r.body, err)
	}
	seen := map[string]callable{}
	for _, c := range all.Rules {
		seen[c.Rule] = c
	}
	if len(seen) != 3 || seen["read"].Title != "Read what is public" || seen["read"].Hint != "read only" || seen["orders"].Credential != "api" ||
		seen["no-secrets"].Kind != "deny" || seen["no-secrets"].Message != "this path is closed" {
		t.Errorf("rules %+v", all.Rules)
	}
	if len(all.StandIns) != 1 || all.StandIns[0].Env != "API_KEY" || strings.Contains(r.body, e.standIn()) || strings.Contains(r.body, ".rego") {
		t.Errorf("answer %q", r.body)
	}
	if all.Run != e.run.identity() || len(all.Denials) != 1 || all.Denials[0].Reason != "no-rule" {
		t.Errorf("answer %q", r.body)
	}
	for path, want := range map[string]string{"/rules": `"rule":"read"`, "/stand-ins": `"env":"API_KEY"`, "/denials": `"no-rule"`, "/ca.pem": "BEGIN CERTIFICATE"} {
		for _, c := range []string{"plain", "explicit", "TLS"} {
			var r reply
			switch c {
			case "plain":
				r = ask(t, e.plain("warder.internal"), get(path, "warder.internal"))
			case "explicit":
				r = ask(t, e.explicit(), get("http://warder.internal"+path, "warder.internal"))
			default:
				r = ask(t, e.tls("warder.internal"), get(path, "warder.internal"))
			}
			if r.StatusCode != 200 || !strings.Contains(r.body, want) {
				t.Errorf("%s %s: %d %q", c, path, r.StatusCode, r.body)
			}
		}
	}
}

func TestReservedNameWithoutACatalogue(t *testing.T) {
	e := newEnv(t, nil) // a policy that cannot tell its rules
	if r := ask(t, e.plain("warder.internal"), get("/", "warder.internal")); r.StatusCode != 200 || !strings.Contains(r.body, `"rules":[]`) || !strings.Contains(r.body, `"stand_ins":[]`) {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
}
