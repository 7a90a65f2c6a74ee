package vaulttest

import (
	"net/http"
	"os"
	"strings"
	"testing"
)

func TestServerDoesWhatTheTestsNeed(t *testing.T) {
	s := Start(t)
	s.Setup(t, "S3CR3T-CANARY-github")
	log := s.AuditFile(t)
	s.KV(t, "old", 1)
	for _, engine := range []string{"transit", "totp", "pki", "ssh", "rabbitmq", "database"} {
		s.Mount(t, "x-"+engine, engine, nil)
	}
	for _, method := range []string{"jwt", "cert", "userpass"} {
		s.Must(t, http.MethodPost, "sys/auth/"+method, map[string]any{"type": method})
	}
	if id, secret := s.AppRole(t); id == "" || secret == "" {
		t.Fatal("AppRole gives nothing")
	}
	s.Must(t, http.MethodPost, "identity/oidc/key/k", map[string]any{"algorithm": "ES256"})

	token, accessor := s.BrokerToken(t)
	if ok, _ := s.Alive(t, accessor); !ok {
		t.Fatal("the broker's token is not alive")
	}
	if status, _ := s.Do(t, token, http.MethodGet, "secret/data/github", nil); status != http.StatusForbidden {
		t.Fatal("the broker's token reads a secret:", status)
	}
	status, out := s.Do(t, token, http.MethodPost, "auth/token/create/"+TokenRole, map[string]any{"policies": []string{"run-github"}})
	if status != http.StatusOK {
		t.Fatal("the broker's token makes no run token:", status)
	}
	run, _ := out["auth"].(map[string]any)["client_token"].(string)
	if status, _ := s.Do(t, run, http.MethodGet, "secret/data/github", nil); status != http.StatusOK {
		t.Fatal("the run's token does not read its secret:", status)
	}

	s.Seal(t)
	if status, _ := s.Do(t, run, http.MethodGet, "secret/data/github", nil); status != http.StatusServiceUnavailable {
		t.Fatal("a sealed server answers", status)
	}
	s.Open(t)
	if status, _ := s.Do(t, run, http.MethodGet, "secret/data/github", nil); status != http.StatusOK {
		t.Fatal("an opened server answers", status)
	}
	raw, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(raw), "secret/data/github") || strings.Contains(string(raw), "CANARY") {
		t.Fatal("the audit file does not show the calls, or shows a value:", err)
	}
}

func TestADurableServerIsRestarted(t *testing.T) {
	s := StartDurable(t)
	s.Setup(t, "S3CR3T-CANARY-github")
	_, accessor := s.BrokerToken(t)
	s.Kill()
	s.Restart(t)
	if ok, _ := s.Alive(t, accessor); !ok {
		t.Fatal("a token is lost")
	}
	s.Must(t, http.MethodGet, "secret/data/github", nil)
}
