package image

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
)

const (
	loginUser   = "puller"
	loginCanary = "S3CR3T-CANARY-registry-password"
)

// lockedHub is a registry that answers those who are logged in only.
func lockedHub(t *testing.T) (h *hub, host string) {
	t.Helper()
	h = newHub(t)
	h.push(t, "app:1", testImage(t, runtime.GOARCH, testLayer(t, file("a", "1"))))
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, ok := r.BasicAuth(); !ok || u != loginUser || p != loginCanary {
			w.Header().Set("WWW-Authenticate", `Basic realm="locked"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(locked.Close)
	return h, strings.TrimPrefix(locked.URL, "http://")
}

func loginsFile(t *testing.T, mode os.FileMode, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(p, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p, mode); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRegistryLogins_I2(t *testing.T) {
	_, host := lockedHub(t)
	auth := base64.StdEncoding.EncodeToString([]byte(loginUser + ":" + loginCanary))
	wrong := base64.StdEncoding.EncodeToString([]byte(loginUser + ":" + loginCanary + "-old"))
	for what, tc := range map[string]struct {
		text string
		mode os.FileMode
		why  string // "": the image is had
	}{
		"auth":                         {fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, auth), 0o600, ""},
		"an address":                   {fmt.Sprintf(`{"auths": {"http://%s/v1/": {"auth": %q}}}`, host, auth), 0o600, ""},
		"name and password":            {fmt.Sprintf(`{"auths": {%q: {"username": %q, "password": %q}}}`, host, loginUser, loginCanary), 0o600, ""},
		"readable by others":           {fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, auth), 0o644, ""},
		"another host":                 {fmt.Sprintf(`{"auths": {"other.test": {"auth": %q}}}`, auth), 0o600, "hint: docker login " + host},
		"a wrong password":             {fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, wrong), 0o600, "hint: docker login " + host},
		"writable by others":           {fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, host, auth), 0o662, "hint: chmod"},
		"not base64":                   {fmt.Sprintf(`{"auths": {%q: {"auth": "%s!"}}}`, host, loginCanary), 0o600, "hint: log in again"},
		"not JSON":                     {`{"auths": ` + loginCanary, 0o600, "hint: log in again"},
		"a helper for all":             {fmt.Sprintf(`{"auths": {%q: {}}, "credsStore": "desktop"}`, host), 0o600, `credential helper "desktop"`},
		"a helper for it":              {fmt.Sprintf(`{"credHelpers": {%q: "../../x"}}`, host), 0o600, "helpers are not started"},
		"no login":                     {`{}`, 0o600, "hint: docker login " + host},
		"a helper is not needed there": {fmt.Sprintf(`{"auths": {%q: {"auth": %q}}, "credsStore": "desktop"}`, host, auth), 0o600, ""},
	} {
		t.Run(what, func(t *testing.T) {
			s := NewStore(Options{Dir: filepath.Join(t.TempDir(), "cache"), Logins: loginsFile(t, tc.mode, tc.text)})
			if tc.why == "" {
				get(t, s, host+"/app:1")
				return
			}
			mustFail(t, s, host+"/app:1", tc.why)
			if _, err := s.Get(t.Context(), host+"/app:1"); err == nil || strings.Contains(err.Error(), loginCanary) || strings.Contains(err.Error(), auth) {
				t.Errorf("the error shows the login: %v", err)
			}
		})
	}
	// No file is no login, and an open registry needs none.
	open := newHub(t)
	open.push(t, "app:1", testImage(t, runtime.GOARCH, testLayer(t, file("a", "1"))))
	get(t, NewStore(Options{Dir: filepath.Join(t.TempDir(), "cache"), Logins: filepath.Join(t.TempDir(), "absent")}), open.ref("app:1"))
}

// A login does not print itself, and goes to no other registry.
func TestALoginIsForItsRegistryAlone_I2(t *testing.T) {
	auth := base64.StdEncoding.EncodeToString([]byte(loginUser + ":" + loginCanary))
	l := logins{loginsFile(t, 0o600, fmt.Sprintf(`{"auths": {"a.test": {"auth": %q}, "https://index.docker.io/v1/": {"auth": %q}}}`, auth, auth))}
	for host, has := range map[string]bool{"a.test": true, "a.test:5000": false, "b.a.test": false, "test": false, name.DefaultRegistry: true} {
		reg, err := name.NewRegistry(host)
		if err != nil {
			t.Fatal(err)
		}
		a, _, err := l.of(reg)
		if err != nil {
			t.Fatal(err)
		}
		c, err := a.Authorization()
		if err != nil || (c.Password == loginCanary) != has {
			t.Errorf("%s: a login: %v, %v", host, c.Password == loginCanary, err)
		}
		if text := fmt.Sprintf("%v %+v %#v %s", a, a, a, a); strings.Contains(text, loginCanary) {
			t.Errorf("%s: a login prints itself", host)
		}
	}
}
