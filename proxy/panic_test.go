package proxy

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"warder/internal/config"
)

// TestPanicsWithAPlacedCredentialShowNothing_I2_I10: in each slot, a goroutine of the
// product, the transport's, panics while the value is in the request, and with that
// value in the panic.
func TestPanicsWithAPlacedCredentialShowNothing_I2_I10(t *testing.T) {
	const form = "POST / HTTP/1.1\r\nHost: api.allowed.test\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\n\r\na=b"
	for slot, c := range map[string]struct {
		in  config.Inject
		raw string
	}{
		"header": {config.Inject{Header: "Authorization", Format: "Bearer {value}"}, get("/", "api.allowed.test")},
		"basic":  {config.Inject{Basic: &config.Basic{Username: "u"}}, get("/", "api.allowed.test")},
		"query":  {config.Inject{Query: "key"}, get("/?a=b", "api.allowed.test")},
		"form":   {config.Inject{Form: "key"}, form},
	} {
		t.Run(slot, func(t *testing.T) {
			e := newEnv(t, nil, func(e *env, _ *Options, ro *RunOptions) { ro.Granter = testSession(e.t, ro.Run, c.in) })
			admin := e.admin(func() error { return nil })
			used := e.run.dialer.used
			e.run.dialer.used = func(context.Context, string, override) { panic(fmt.Errorf("dial with %q", canary)) }
			first := ask(t, e.tls("api.allowed.test"), c.raw)
			e.run.dialer.used = used
			second := ask(t, e.tls("api.allowed.test"), c.raw) // it lives on
			if first.StatusCode != 500 || first.reason() != reasonInternalError || second.StatusCode != 200 {
				t.Fatalf("control: %d %q, then %d", first.StatusCode, first.body, second.StatusCode)
			}
			sent := e.up.bytes()
			if basic := base64.StdEncoding.EncodeToString([]byte("u:" + canary)); !strings.Contains(sent, canary) && !strings.Contains(sent, basic) {
				t.Fatalf("control: the value is not placed: %q", sent)
			}
			all := e.logs.String() + first.body + fmt.Sprint(first.Header) + fetch(t, admin, "/metrics", "localhost").body + dump(e.tape.recs) + written(t, e.auditDir)
			for _, want := range []string{"proxy: panic", "goroutine ", "warder_panics_total 1", `"reserved"`} {
				if !strings.Contains(all, want) {
					t.Errorf("control: %q is missing", want)
				}
			}
			for name, v := range map[string]string{
				"plain": canary, "url": url.QueryEscape(canary), "hex": hex.EncodeToString([]byte(canary)),
				"base64": base64.StdEncoding.EncodeToString([]byte(canary)), "basic": base64.StdEncoding.EncodeToString([]byte("u:" + canary)),
			} {
				if strings.Contains(all, v) {
					t.Errorf("I2 the value stands there, %s", name)
				}
			}
		})
	}
}

// written is the text of all files of the log.
func written(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(p)
		all.Write(raw)
		return err
	})
	if err != nil || all.Len() == 0 {
		t.Fatal("control: no file of the log", err)
	}
	return all.String()
}
