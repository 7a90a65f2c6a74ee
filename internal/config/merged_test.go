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

// The arguments of a command may hold a secret in spite of the documentation.
func TestMergedNeverPrintsArguments(t *testing.T) {
	const canary = "S3CR3T-CANARY-config"
	c := mustParse(t, `version: 1
credentials:
  a:
    source: {local: {command: [/bin/helper, --token, `+canary+`]}}
    inject: {header: X}
    hosts: [a.example]
`)
	out, err := json.Marshal(c.Merged())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), canary) {
		t.Errorf("printed: %s", out)
	}
	// Positive control: the setting is there, by name.
	if !strings.Contains(string(out), "/bin/helper (2 arguments not shown)") {
		t.Errorf("the program is missing in %s", out)
	}
}

// No place of a credential is free form: what is not known is refused.
func TestSlotsAndKindsAreStrict(t *testing.T) {
	for _, text := range []string{
		"inject: {hmac: {key: x}}", "inject: {sigv4: {secret: x}}", "inject: {mtls: {cert: x}}",
		"source: {local: {totp: {seed: x}}}", "source: {local: {hmac: {key: x}}}", "source: {local: {pki: {key: x}}}",
	} {
		_, err := parse("/etc/w/warder.yaml", []byte("version: 1\ncredentials: {a: {"+text+"}}\n"), "/home/u")
		if err == nil || !strings.Contains(err.Error(), "unknown key") {
			t.Errorf("%s: %v", text, err)
		}
	}
	c := mustParse(t, "version: 1\ncredentials: {a: {source: {local: {env: A}}, inject: {mtls: {}}, hosts: [a.example]}}\n")
	if c.Credentials["a"].Inject.MTLS == nil {
		t.Error("an empty mapping is not set")
	}
}
