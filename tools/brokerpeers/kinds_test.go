package brokerpeers

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ask is a client in the sandbox; the words behind it are curl's.
const ask = `curl -sS -m 60 -w '\nSTATUS %{http_code}\n' `

func TestPeers(t *testing.T) {
	t.Parallel()
	l := startLab(t)
	t.Run("kinds", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"stored passwords, judged by RabbitMQ":                         l.testStored,
			"a leased user of RabbitMQ is refused right after the run":     l.testRabbit,
			"a leased user of PostgreSQL is gone after the run":            l.testPostgres,
			"F142 PostgreSQL refuses to drop a user: told, and done later": l.testRevocationRefused,
			"client certificates, judged by nginx":                         l.testMTLS,
			"tokens, judged by the JWT login of a second Vault":            l.testTokens,
			"codes, judged by oathtool":                                    l.testTOTP,
			"signatures, judged by openssl":                                l.testHMAC,
			"a query parameter, judged by nginx":                           l.testQuery,
			"S3, judged by versitygw":                                      l.testS3,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	t.Run("F065 sent back in every form, nothing of it arrives inside", l.testReflection)
	t.Run("F077 nothing in use stands in metrics, logs, errors, records or a crash", l.testHeld)
	l.testNothingWasWritten(t)
}

// verified runs one client in the sandbox with a credential and without, and
// returns the run in which the judge agreed.
func (l *lab) verified(t *testing.T, name, words, want, status string) result {
	t.Helper()
	bare := l.run(t, name, ask+words+` -H 'X-Bare: 1'`)
	if strings.Contains(bare.Stdout, "STATUS 200") {
		t.Fatalf("%s: control: the judge takes a request without the credential: %s", name, bare.Stdout)
	}
	r := l.run(t, name, ask+words+`; env; cat /proc/*/environ /proc/*/cmdline`)
	if !strings.Contains(r.Stdout, "STATUS 200") || !strings.Contains(r.Stdout, want) {
		t.Fatalf("%s: %s", name, r.raw)
	}
	if strings.Contains(r.raw, "CANARY") {
		t.Errorf("%s: a value is in what the run printed", name)
	}
	if r.status(name) != status {
		t.Errorf("%s: receipt %+v", name, r.Credentials)
	}
	recs := l.completed(t, r.RunID)
	if len(recs) != 1 || recs[0].Verdict != "allow" || recs[0].Credential == nil || recs[0].Credential.Name != name {
		t.Fatalf("%s: records %+v", name, recs)
	}
	if fromVault := !strings.HasPrefix(name, "local-"); fromVault != (recs[0].Credential.VaultRequestID != "") {
		t.Errorf("%s: Vault's request %q", name, recs[0].Credential.VaultRequestID)
	}
	return r
}

func (l *lab) testStored(t *testing.T) {
	for _, name := range []string{"kv1", "kv2", "local-env", "local-file", "local-command"} {
		l.verified(t, name, "https://"+mqHost+"/api/whoami", `"name":"static"`, "static")
	}
}

// testRabbit: RabbitMQ itself names the leased user, and refuses the very pair
// that it took once the run has ended.
func (l *lab) testRabbit(t *testing.T) {
	r := l.verified(t, "rabbit", "https://"+mqHost+"/api/overview", `"rabbitmq_version"`, "revoked")
	if users := l.mq.leased(t); len(users) != 0 {
		t.Errorf("I7 left at RabbitMQ: %v", users)
	}
	if lease := l.completed(t, r.RunID)[0].Credential.LeaseID; !strings.HasPrefix(lease, "rabbit/creds/monitor/") {
		t.Errorf("lease %q", lease)
	}
	r = l.verified(t, "rabbit-kept", "https://"+frontHost+"/mq/", "verified", "revoked")
	pair := l.front.carried("/mq/")
	if !strings.HasPrefix(pair, "Basic ") {
		t.Fatal("the pair was not kept")
	}
	if status, _ := l.mq.ask(t, pair, "/api/whoami"); status != http.StatusUnauthorized {
		t.Errorf("I7 the user of run %s: RabbitMQ says %d right after it", r.RunID, status)
	}
	if status, _ := l.mq.ask(t, l.mq.basic(), "/api/whoami"); status != http.StatusOK {
		t.Error("control: RabbitMQ refuses everybody")
	}
}

func (l *lab) testPostgres(t *testing.T) {
	r := l.verified(t, "postgres", "https://"+frontHost+"/db", "verified", "revoked")
	req := &http.Request{Header: http.Header{"Authorization": {l.front.carried("/db")}}}
	user, pass, ok := req.BasicAuth()
	if !ok || !strings.HasPrefix(user, "v-") {
		t.Fatal("not a user that Vault made:", user)
	}
	if strings.Contains(r.raw, user) || strings.Contains(r.raw, pass) {
		t.Error("I2 the leased user or its password is in what the run printed")
	}
	n, err := l.pg.sql("admin", l.pg.pass, "select count(*) from pg_roles where rolname = '"+user+"'")
	if err != nil || n != "0" {
		t.Errorf("I7 the role is still there: %s %v", n, err)
	}
	if _, err := l.pg.sql(user, pass, "select 1"); err == nil || !strings.Contains(err.Error(), "password authentication failed") {
		t.Errorf("I7 the leased user logs in after the run: %v", err)
	}
}

// testRevocationRefused: PostgreSQL does not drop a role that owns something. The
// receipt says so, and the next start after the obstacle is gone takes it back.
func (l *lab) testRevocationRefused(t *testing.T) {
	r := l.run(t, "postgres", ask+"https://"+frontHost+"/db-held")
	if !strings.Contains(r.Stdout, "STATUS 200") || r.status("postgres") != "unconfirmed" {
		t.Fatalf("%+v %s", r.Credentials, r.raw)
	}
	req := &http.Request{Header: http.Header{"Authorization": {l.front.carried("/db-held")}}}
	user, _, _ := req.BasicAuth()
	roles := "select count(*) from pg_roles where rolname = '" + user + "'"
	if n, err := l.pg.sql("admin", l.pg.pass, roles); err != nil || n != "1" {
		t.Fatalf("control: PostgreSQL dropped the role all the same: %s %v", n, err)
	}
	if _, err := l.pg.sql("admin", l.pg.pass, "drop table held"); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := l.command(t, "run", "--", "true"); code != 0 {
		t.Fatal(out, errs)
	}
	if n, err := l.pg.sql("admin", l.pg.pass, roles); err != nil || n != "0" {
		t.Errorf("I7 the role is still there after the next start: %s %v", n, err)
	}
}

func (l *lab) testMTLS(t *testing.T) {
	for name, cn := range map[string]string{"pki": "CN=agent-r-", "local-pki": "CN=local-r-"} {
		l.verified(t, name, "https://"+mtlsHost+"/", "SUCCESS "+cn, "expires")
	}
}

// testTokens: the judge gives a token of its own for one that it could verify.
func (l *lab) testTokens(t *testing.T) {
	out, errs, code := l.command(t, "credential", "jwks", "local-jwt")
	if code != 0 {
		t.Fatal(errs)
	}
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(out)) }))
	defer keys.Close()
	l.trust(t, "local", map[string]any{"jwks_url": keys.URL}, "judge")
	for name, mount := range map[string]string{"oidc": "oidc", "jwt": "transit", "local-jwt": "local"} {
		l.verified(t, name, "-d role=agent -d jwt=mine https://"+judgeHost+"/v1/auth/"+mount+"/login", `"policies":["default"]`, "expires")
	}
	// A token is for its audience alone: the judge of one does not take the other's.
	if r := l.run(t, "jwt", ask+"-d role=agent https://"+judgeHost+"/v1/auth/oidc/login"); !strings.Contains(r.Stdout, "STATUS 400") {
		t.Errorf("control: %s", r.raw)
	}
}

func (l *lab) testTOTP(t *testing.T) {
	for _, name := range []string{"totp", "local-totp"} {
		l.verified(t, name, "-H 'X-Code: 000000' https://"+frontHost+"/otp", "verified", "expires")
	}
}

func (l *lab) testHMAC(t *testing.T) {
	l.verified(t, "hmac", "-H 'X-Key: vault' -d 'a body' https://"+frontHost+"/hook", "verified", "static")
	l.verified(t, "local-hmac", "-H 'X-Signature: mine' -d 'a body' https://"+frontHost+"/hook", "verified", "static")
}

func (l *lab) testQuery(t *testing.T) {
	l.verified(t, "query", "'https://"+judgeHost+"/query?key=mine'", "key accepted", "static")
}

// testNothingWasWritten: after all runs, nothing that was granted stands in the
// log, the state or the cache, and Vault knows no token or lease of a run.
func (l *lab) testNothingWasWritten(t *testing.T) {
	if out, errs, code := l.command(t, "audit", "verify"); code != 0 || !strings.Contains(out, "complete") {
		t.Errorf("audit verify: %d %s%s", code, out, errs)
	}
	secrets := []string{"S3CR3T-CANARY", s3Access, hmacKey, totpKey}
	for _, path := range []string{"/db", "/mq/"} {
		_, pair, _ := strings.Cut(l.front.carried(path), " ")
		req := &http.Request{Header: http.Header{"Authorization": {"Basic " + pair}}}
		user, pass, _ := req.BasicAuth()
		secrets = append(secrets, pair, user, pass)
	}
	secrets = append(secrets, l.front.carried("/hook"))
	if slices.Contains(secrets, "") {
		t.Fatal("control: something that was granted is not known")
	}
	files := 0
	for _, dir := range []string{"audit", "state", "cache"} {
		_ = filepath.WalkDir(filepath.Join(l.dir, dir), func(p string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(p)
			if err != nil {
				t.Error(err)
			}
			files++
			for i, s := range secrets {
				if strings.Contains(string(raw), s) {
					t.Errorf("I2 value %d of those granted stands in %s", i, p)
				}
			}
			return nil
		})
	}
	if files == 0 {
		t.Error("control: no file was searched")
	}
	if left, _ := l.vault.Do(t, l.vault.Root, "LIST", "sys/leases/lookup/rabbit/creds/monitor", nil); left != http.StatusNotFound {
		t.Errorf("I7 leases are left: status %d", left)
	}
}
