package broker

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"warder/internal/config"
	"warder/internal/identity"
)

// broken is a source that panics with what it has just fetched.
type broken struct {
	source
	values []string
}

func (p *broken) fetch(ctx context.Context, s *Session, requestID string) (*material, error) {
	m, err := p.source.fetch(ctx, s, requestID)
	if err != nil {
		return nil, err
	}
	for _, v := range []string{m.value.Reveal(), m.user.Reveal(), m.session.Reveal()} {
		if v != "" {
			p.values = append(p.values, v)
		}
	}
	if m.sign != nil {
		mac, _, err := m.sign(ctx, []byte("text"), requestID)
		if err != nil {
			return nil, err
		}
		p.values = append(p.values, hex.EncodeToString(mac))
	}
	if m.cert != nil {
		key, err := x509.MarshalPKCS8PrivateKey(m.cert.PrivateKey)
		if err != nil {
			return nil, err
		}
		p.values = append(p.values, string(key))
	}
	panic(fmt.Errorf("a fault at %q, of %v", p.values, m))
}

// holds reports whether a text holds a value in any usual form.
func holds(text, value string) bool {
	quoted, _ := json.Marshal(value)
	return slices.ContainsFunc([]string{
		value, url.QueryEscape(value), strings.Trim(string(quoted), `"`), hex.EncodeToString([]byte(value)), base64.StdEncoding.EncodeToString([]byte(value)),
		fmt.Sprintf("%q", value), fmt.Sprintf("%x", value),
	}, func(form string) bool { return strings.Contains(text, form) })
}

// TestI2APanicShowsNoValueOfAnyKind: each kind of source panics, on the goroutine of
// the fetch, with the very value in the panic. Neither the log nor the error has it.
func TestI2APanicShowsNoValueOfAnyKind(t *testing.T) { // I2, I10, F077
	br := benchKinds(t)
	l := &log{}
	br.opts.Log = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	br.vault.log = br.opts.Log
	kinds := slices.Sorted(maps.Keys(br.creds))
	if len(kinds) < 15 {
		t.Fatal("kinds", kinds)
	}
	for _, kind := range kinds {
		s, err := br.Begin(identity.Run{ID: identity.NewRunID()}, []string{kind}, &journal{})
		if err != nil {
			t.Fatal(err)
		}
		c := br.creds[kind]
		was := c.source
		p := &broken{source: was}
		c.source = p
		_, err = s.Grant(t.Context(), kind, issues)
		said := refused(t, err, ReasonUnavailable).Error()
		if !strings.Contains(said, "a fault in the source") || len(p.values) == 0 {
			t.Errorf("control: %s did not panic with a value: %s", kind, said)
		}
		if !strings.Contains(l.String(), "panicked\" credential="+kind) {
			t.Errorf("%s: the panic is not in the log", kind)
		}
		for _, v := range p.values {
			if holds(said, v) || holds(l.String(), v) {
				t.Errorf("I2 a value of %s is in the error or the log", kind)
			}
			if !holds("x "+base64.StdEncoding.EncodeToString([]byte(v)), v) || !holds(fmt.Sprintf("%q", []string{v}), v) {
				t.Errorf("control: a value of %s is not found", kind)
			}
		}
		c.source = was
		s.End(t.Context())
	}
}

// TestI2AnAnswerThatQuotesItsRequestShowsNothing: an error of Vault's, or of what
// stands before it, with the token and the login in its text, also cut short.
func TestI2AnAnswerThatQuotesItsRequestShowsNothing(t *testing.T) { // I2, F079
	const token, secretID = "S3CR3T-CANARY-broker-token-0123456789", "S3CR3T-CANARY-secret-id-0123456789"
	for _, before := range []string{"", strings.Repeat("x", 190)} {
		quote := func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			raw, _ := json.Marshal(map[string]any{"errors": []string{before + r.Header.Get("X-Vault-Token") + " sent " + string(body)}})
			jsonAnswer(http.StatusBadRequest, string(raw))(w, r)
		}
		f := newFake(t, map[string]http.HandlerFunc{"auth/token/create/agent-run": quote, "auth/approle/login": quote})
		byRole := &config.Vault{Address: f.URL, TokenRole: "agent-run", Auth: config.Auth{
			Method: "approle", RoleIDFile: secretFile(t, "role"), SecretIDFile: secretFile(t, secretID),
		}}
		for _, v := range []*config.Vault{tokenFile(t, f.URL, token), byRole} {
			r := newRig(t, v, map[string]config.Credential{"github-read": githubCred()})
			sess, _ := r.begin(t)
			_, err := sess.Grant(t.Context(), "github-read", issues)
			said := refused(t, err, ReasonUnavailable).Error() + r.log.String()
			if strings.Contains(said, "S3CR3T") {
				t.Errorf("I2 %s: a part of it is said", v.Auth.Method)
			}
			if before == "" && !strings.Contains(said, "[masked]") {
				t.Errorf("control: %s: nothing was quoted: %s", v.Auth.Method, said)
			}
		}
	}
}
