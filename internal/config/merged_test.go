package config

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestMergedNamesOrigins(t *testing.T) {
	c := mustParse(t, "version: 1\npolicy: {path: p}\nsandbox: {memory: 64Mi}\n")
	got := map[string]Setting{}
	for _, s := range c.Merged(Override{"policy.path", "/flag", OriginFlag}, Override{"audit.dir", "/env", OriginEnv}) {
		got[s.Key] = s
	}
	for key, want := range map[string]Setting{
		"version":        {"version", 1, OriginFile, "/etc/w/warder.yaml:1:10"},
		"policy.path":    {"policy.path", "/flag", OriginFlag, ""},
		"policy.mode":    {"policy.mode", "enforce", OriginDefault, ""},
		"sandbox.memory": {"sandbox.memory", "64Mi", OriginFile, "/etc/w/warder.yaml:3:19"},
		"sandbox.disk":   {"sandbox.disk", "1Gi", OriginDefault, ""},
		"audit.dir":      {"audit.dir", "/env", OriginEnv, ""},
	} {
		if got[key] != want {
			t.Errorf("%s = %+v, want %+v", key, got[key], want)
		}
	}
}

// Free-form places may hold a secret in spite of the documentation.
func TestMergedNeverPrintsFreeFormValues(t *testing.T) {
	const canary = "S3CR3T-CANARY-config"
	c := mustParse(t, `version: 1
credentials:
  a:
    source: {local: {command: [/bin/helper, --token, `+canary+`]}}
    inject: {hmac: {key: `+canary+`, deep: {er: `+canary+`}}}
    hosts: [a.example]
  b:
    source: {local: {totp: {seed: `+canary+`}}}
    inject: {sigv4: {secret: `+canary+`}}
    hosts: [a.example]
`)
	out, err := json.Marshal(c.Merged())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), canary) {
		t.Errorf("printed: %s", out)
	}
	// Positive control: the same settings are there, by name.
	for _, want := range []string{"/bin/helper (2 arguments not shown)", "keys deep, key (values not shown)", "keys seed (values not shown)"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing in %s", want, out)
		}
	}
}
