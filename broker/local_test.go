package broker

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"warder/internal/config"
	"warder/internal/identity"
)

func certPEM(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// shiftWall changes the wall clock of a time that has a monotonic reading, as a
// set clock or a suspended machine does. Nothing in package time can.
func shiftWall(t time.Time, by time.Duration) time.Time {
	type layout struct {
		wall uint64
		ext  int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&t)).wall += uint64(by/time.Second) << 30
	return t
}

func local(l config.LocalSource) config.Credential {
	c := valid()
	c.StandIn = nil
	c.Source = config.Source{Local: &l}
	return c
}

func localRig(t *testing.T, creds map[string]config.Credential) (*rig, *Session) {
	t.Helper()
	r := newRig(t, nil, creds, func(o *Options) {
		o.ConfigFile = secretFile(t, "version: 1")
		o.Getenv = func(k string) (string, bool) {
			return map[string]string{"GOOD": "S3CR3T-CANARY-env", "EMPTY": "", "LINE": "S3CR3T-CANARY\nX: y"}[k], k != "UNSET"
		}
	})
	s, err := r.Begin(identity.Run{ID: "r-1"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, s) })
	return r, s
}

func TestEnvSource(t *testing.T) {
	_, s := localRig(t, map[string]config.Credential{
		"good": local(config.LocalSource{Env: "GOOD"}), "empty": local(config.LocalSource{Env: "EMPTY"}),
		"line": local(config.LocalSource{Env: "LINE"}), "unset": local(config.LocalSource{Env: "UNSET"}),
	})
	g := grant(t, s, "good")
	if injected(t, g) != "Bearer S3CR3T-CANARY-env" || g.Kind != KindEnv || !g.Expires.IsZero() {
		t.Fatal("not the variable's value")
	}
	for _, name := range []string{"empty", "line", "unset"} {
		_, err := s.Grant(t.Context(), name, issues)
		refused(t, err, ReasonUnavailable)
	}
	if out := end(t, s); len(out) != 1 || out[0] != (Outcome{Name: "good", Kind: KindEnv, Status: StatusStatic}) {
		t.Fatalf("%+v", out)
	}
}

func TestFileSourceJudgesTheFileAndItsFolder(t *testing.T) {
	path := secretFile(t, "S3CR3T-CANARY-file")
	r, s := localRig(t, map[string]config.Credential{"f": local(config.LocalSource{File: path})})
	if injected(t, grant(t, s, "f")) != "Bearer S3CR3T-CANARY-file" {
		t.Fatal("not the file's text without its line break")
	}
	dir := filepath.Dir(path)
	for name, c := range map[string]struct {
		spoil, mend func() error
	}{
		"others write the file":   {func() error { return os.Chmod(path, 0o602) }, func() error { return os.Chmod(path, 0o600) }},
		"the group writes it":     {func() error { return os.Chmod(path, 0o620) }, func() error { return os.Chmod(path, 0o600) }},
		"others write the folder": {func() error { return os.Chmod(dir, 0o777) }, func() error { return os.Chmod(dir, 0o700) }},
		"it is a folder":          {func() error { return os.Rename(path, path+"x") }, func() error { return os.Rename(path+"x", path) }},
		"it is too long": {
			func() error { return os.WriteFile(path, bytes.Repeat([]byte("a"), maxValue+10), 0o600) },
			func() error { return os.WriteFile(path, []byte("S3CR3T-CANARY-file\r\n"), 0o600) },
		},
		"it has two lines": {
			func() error { return os.WriteFile(path, []byte("S3CR3T-CANARY\nb\n"), 0o600) },
			func() error { return os.WriteFile(path, []byte("S3CR3T-CANARY-file"), 0o600) },
		},
		"others write the configuration": {
			func() error { return os.Chmod(r.opts.ConfigFile, 0o666) }, func() error { return os.Chmod(r.opts.ConfigFile, 0o600) },
		},
	} {
		if err := c.spoil(); err != nil {
			t.Fatal(err)
		}
		r.clock.add(time.Hour)
		if _, err := s.Grant(t.Context(), "f", issues); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			refused(t, err, ReasonUnavailable)
		}
		if err := c.mend(); err != nil {
			t.Fatal(err)
		}
		r.clock.add(time.Hour)
		if injected(t, grant(t, s, "f")) != "Bearer S3CR3T-CANARY-file" {
			t.Errorf("%s: not mended", name)
		}
	}
	if os.Geteuid() == 0 { // only root can give a file away
		if err := os.Chown(path, 65534, -1); err != nil {
			t.Fatal(err)
		}
		r.clock.add(time.Hour)
		_, err := s.Grant(t.Context(), "f", issues)
		if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "belongs to uid 65534") {
			t.Fatal(e)
		}
	}
}

func TestCommandSource(t *testing.T) {
	cmd := func(script string) config.Credential {
		return local(config.LocalSource{Command: []string{"/bin/sh", "-c", script}})
	}
	r, s := localRig(t, map[string]config.Credential{
		"good": cmd("echo S3CR3T-CANARY-command"), "fails": cmd("echo S3CR3T-CANARY; echo S3CR3T-CANARY >&2; exit 3"),
		"endless": cmd("yes S3CR3T-CANARY"), "nothing": cmd("true"), "reads": cmd("cat; echo S3CR3T-CANARY"),
		"missing": local(config.LocalSource{Command: []string{"/nonexistent/program"}}),
	})
	for _, name := range []string{"good", "reads"} {
		if g := grant(t, s, name); !strings.HasPrefix(injected(t, g), "Bearer S3CR3T-CANARY") || g.Kind != KindCommand {
			t.Fatal("not the output")
		}
	}
	for _, name := range []string{"fails", "endless", "nothing", "missing"} {
		_, err := s.Grant(t.Context(), name, issues)
		refused(t, err, ReasonUnavailable)
	}
	if err := os.Chmod(r.opts.ConfigFile, 0o602); err != nil {
		t.Fatal(err)
	}
	r.clock.add(time.Hour)
	_, err := s.Grant(t.Context(), "good", issues)
	if e := refused(t, err, ReasonUnavailable); !strings.Contains(e.Error(), "names a command") {
		t.Fatal(e)
	}
	if _, err := New(Options{Credentials: map[string]config.Credential{"c": cmd("true")}}); err == nil {
		t.Fatal("a command without a configuration file")
	}
}

// verifyJWT checks a token against a key set with nothing of the signer's code.
func verifyJWT(t *testing.T, token string, jwks []byte) map[string]any {
	t.Helper()
	var set struct {
		Keys []struct{ Kty, Crv, X, Y, Kid, Alg, Use string }
	}
	if err := json.Unmarshal(jwks, &set); err != nil || len(set.Keys) != 1 {
		t.Fatal("key set", err)
	}
	k := set.Keys[0]
	part := strings.Split(token, ".")
	if len(part) != 3 {
		t.Fatal("not a JWT")
	}
	raw := func(s string) []byte {
		b, err := base64.RawURLEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var head struct{ Alg, Kid, Typ string }
	if err := json.Unmarshal(raw(part[0]), &head); err != nil || head.Alg != "ES256" || head.Kid != k.Kid || k.Kty != "EC" || k.Crv != "P-256" || k.Alg != "ES256" || k.Use != "sig" {
		t.Fatal("header", head, err)
	}
	sig := raw(part[2])
	pub, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, raw(k.X), raw(k.Y)))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(part[0] + "." + part[1]))
	if len(sig) != 64 || !ecdsa.Verify(pub, sum[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])) {
		t.Fatal("the signature does not verify")
	}
	var claims map[string]any
	if err := json.Unmarshal(raw(part[1]), &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

func TestJWTSourceVerifiesWithItsKeySetAndExpires(t *testing.T) {
	r, s := localRig(t, map[string]config.Credential{
		"j":     local(config.LocalSource{JWT: &config.LocalJWT{Audience: "api.test", Subject: "svc", TTL: config.Duration(time.Minute)}}),
		"other": local(config.LocalSource{JWT: &config.LocalJWT{Audience: "api.test"}}),
		"env":   local(config.LocalSource{Env: "GOOD"}),
	})
	jwks, err := r.JWKS("j")
	if err != nil || bytes.Contains(jwks, []byte(`"d"`)) {
		t.Fatal("the set is missing, or has the private part", err)
	}
	g := grant(t, s, "j")
	token := strings.TrimPrefix(injected(t, g), "Bearer ")
	c := verifyJWT(t, token, jwks)
	now := r.clock.Now().Unix()
	if c["aud"] != "api.test" || c["sub"] != "svc" || c["iss"] != "warder" || c["run_id"] != "r-1" || c["jti"] == "" ||
		int64(c["exp"].(float64))-now > 60 || int64(c["nbf"].(float64)) > now || g.Expires.Unix() != int64(c["exp"].(float64)) {
		t.Fatal("claims", c)
	}
	if again := grant(t, s, "j"); injected(t, again) != injected(t, g) {
		t.Fatal("not from the cache")
	}
	r.clock.add(51 * time.Second)
	if next := grant(t, s, "j"); injected(t, next) == injected(t, g) || !next.Expires.After(g.Expires) {
		t.Fatal("an old token was handed out")
	}
	o := strings.TrimPrefix(injected(t, grant(t, s, "other")), "Bearer ")
	oset, err := r.JWKS("other")
	if err != nil || bytes.Equal(oset, jwks) || verifyJWT(t, o, oset)["sub"] != "r-1" {
		t.Fatal("two credentials share a key", err)
	}
	for _, name := range []string{"env", "nope"} {
		if _, err := r.JWKS(name); err == nil {
			t.Error(name, "has a key set")
		}
	}
	path := filepath.Join(r.opts.StateDir, "keys", "j.pem")
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatal("key file", err)
	}
	if out := end(t, s); len(out) != 2 || out[0].Status != StatusExpires || out[0].Expires.IsZero() {
		t.Fatalf("%+v", out)
	}

	second, err := New(r.opts) // a new process has the same key
	if err != nil {
		t.Fatal(err)
	}
	if again, err := second.JWKS("j"); err != nil || !bytes.Equal(again, jwks) {
		t.Fatal("the key changed", err)
	}
	if err := os.Chmod(path, 0o622); err != nil {
		t.Fatal(err)
	}
	third, err := New(r.opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := third.JWKS("j"); err == nil {
		t.Fatal("a key that others may write was used")
	}
}

func TestStandInsAreFreshAndTokenShaped(t *testing.T) {
	a := valid()
	b := valid()
	b.StandIn = map[string]string{"GITHUB_TOKEN": "ghp_{random:36}", "AWS": "AKIA{random:8}-{random:2}"}
	r := newRig(t, nil, map[string]config.Credential{"a": a, "b": b})
	one, err := r.Begin(identity.Run{ID: "r-1"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	two, err := r.Begin(identity.Run{ID: "r-2"}, []string{"a"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, y := one.StandIns(), two.StandIns()
	if len(x) != 2 || len(y) != 1 || x["GITHUB_TOKEN"] == y["GITHUB_TOKEN"] || x["GITHUB_TOKEN"] != one.StandIns()["GITHUB_TOKEN"] {
		t.Fatal(x, y)
	}
	if !regexp.MustCompile(`^ghp_[A-Za-z0-9]{36}$`).MatchString(x["GITHUB_TOKEN"]) || !regexp.MustCompile(`^AKIA[A-Za-z0-9]{8}-[A-Za-z0-9]{2}$`).MatchString(x["AWS"]) {
		t.Fatal(x)
	}
	b.StandIn = map[string]string{"GITHUB_TOKEN": "other_{random:36}"}
	if _, err := New(Options{Credentials: map[string]config.Credential{"a": a, "b": b}}); err == nil || !strings.Contains(err.Error(), "credentials.b.stand_in.GITHUB_TOKEN") {
		t.Fatal("one variable with two shapes", err)
	}
}

func TestI3GrantIsRefusedOutsideOfTheBindingBeforeAnythingIsFetched(t *testing.T) {
	asked := 0
	r := newRig(t, nil, map[string]config.Credential{"a": valid(), "b": valid()}, func(o *Options) {
		o.Getenv = func(string) (string, bool) { asked++; return "S3CR3T-CANARY", true }
	})
	s, err := r.Begin(identity.Run{ID: "r-1"}, []string{"a"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(f func(*Target)) Target { x := issues; f(&x); return x }
	for name, c := range map[string]struct {
		cred   string
		target Target
		reason string
	}{
		"zero target":   {"a", Target{}, ReasonClearText},
		"clear text":    {"a", edit(func(t *Target) { t.Scheme = "http" }), ReasonClearText},
		"no scheme":     {"a", edit(func(t *Target) { t.Scheme = "" }), ReasonClearText},
		"other host":    {"a", edit(func(t *Target) { t.Host = "evil.test" }), ReasonBinding},
		"other port":    {"a", edit(func(t *Target) { t.Port = 8443 }), ReasonBinding},
		"other method":  {"a", edit(func(t *Target) { t.Method = "POST" }), ReasonBinding},
		"other path":    {"a", edit(func(t *Target) { t.Path = "/user" }), ReasonBinding},
		"dot segments":  {"a", edit(func(t *Target) { t.Path = "/repos/acme/../../user" }), ReasonBinding},
		"not offered":   {"b", issues, ReasonBinding},
		"unknown":       {"nope", issues, ReasonBinding},
		"without name":  {"", issues, ReasonBinding},
		"CONNECT":       {"a", edit(func(t *Target) { t.Method = "CONNECT" }), ReasonBinding},
		"another label": {"a", edit(func(t *Target) { t.Host = "api.github.com.evil.test" }), ReasonBinding},
	} {
		if _, err := s.Grant(t.Context(), c.cred, c.target); err == nil {
			t.Errorf("%s: granted", name)
		} else {
			refused(t, err, c.reason)
		}
	}
	if asked != 0 {
		t.Fatal("the source was asked")
	}
	grant(t, s, "a")
	if asked != 1 {
		t.Fatal("the control: the source was not asked")
	}
}
