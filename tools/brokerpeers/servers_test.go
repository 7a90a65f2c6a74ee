package brokerpeers

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rabbit is RabbitMQ with its management API over TLS alone.
type rabbit struct {
	addr, admin, password string
	client                *http.Client
}

func startRabbit(t *testing.T, ca *authority) *rabbit {
	t.Helper()
	dir := home(t, "rabbit")
	crt, key := ca.server(t, dir, "mq.peers.test")
	write(t, filepath.Join(dir, "ca.pem"), string(ca.pem))
	port, dist, epmd := freePort(t), freePort(t), freePort(t)
	r := &rabbit{
		addr: local(port), admin: "admin", password: "S3CR3T-CANARY-mq-admin",
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: ca.client(), DisableKeepAlives: true}, Timeout: 30 * time.Second},
	}
	write(t, filepath.Join(dir, "rabbitmq.conf"), fmt.Sprintf(`listeners.tcp = none
management.ssl.ip = 127.0.0.1
management.ssl.port = %d
management.ssl.cacertfile = %s
management.ssl.certfile = %s
management.ssl.keyfile = %s
default_user = %s
default_pass = %s
log.file = false
log.console = true
log.console.level = warning
`, port, filepath.Join(dir, "ca.pem"), crt, key, r.admin, r.password))
	write(t, filepath.Join(dir, "plugins"), "[rabbitmq_management].\n")
	hand(t, dir)
	// Erlang's name server would outlive us as a daemon, so it is one of ours.
	epmdEnv := []string{fmt.Sprintf("ERL_EPMD_PORT=%d", epmd), "ERL_EPMD_ADDRESS=127.0.0.1"}
	daemon(t, dir, epmdEnv, listens(local(epmd)), "/usr/bin/epmd")
	daemon(t, dir, append(epmdEnv,
		"RABBITMQ_MNESIA_BASE="+filepath.Join(dir, "data"), "RABBITMQ_LOG_BASE="+filepath.Join(dir, "log"),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(dir, "rabbitmq.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(dir, "plugins"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null", "RABBITMQ_NODENAME=w@localhost", fmt.Sprintf("RABBITMQ_DIST_PORT=%d", dist),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
	), func() error {
		if status, _ := r.ask(t, r.basic(), "/api/whoami"); status != http.StatusOK {
			return fmt.Errorf("whoami: status %d", status)
		}
		return nil
	}, "/usr/lib/rabbitmq/bin/rabbitmq-server")
	return r
}

func (r *rabbit) basic() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(r.admin+":"+r.password))
}

// ask calls the management API; status 0 is no answer.
func (r *rabbit) ask(t *testing.T, authorization, path string) (int, string) {
	t.Helper()
	return r.do(t, http.MethodGet, authorization, path, "")
}

func (r *rabbit) do(t *testing.T, method, authorization, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://"+r.addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", authorization)
	resp, err := r.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw)
}

// leased are the users that Vault made.
func (r *rabbit) leased(t *testing.T) []string {
	t.Helper()
	_, body := r.ask(t, r.basic(), "/api/users")
	var users []struct{ Name string }
	if err := json.Unmarshal([]byte(body), &users); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	var out []string
	for _, u := range users {
		if u.Name != r.admin && u.Name != "static" {
			out = append(out, u.Name)
		}
	}
	return out
}

// postgres is PostgreSQL that takes TLS connections with a password alone.
type postgres struct {
	port          int
	dir, ca, pass string
}

func startPostgres(t *testing.T, ca *authority) *postgres {
	t.Helper()
	bin := postgresBin(t)
	p := &postgres{port: freePort(t), dir: home(t, "postgres"), pass: "S3CR3T-CANARY-pg-admin"}
	crt, key := ca.server(t, p.dir, "db.peers.test")
	p.ca = filepath.Join(p.dir, "ca.pem")
	write(t, p.ca, string(ca.pem))
	write(t, filepath.Join(p.dir, "pw"), p.pass)
	hand(t, p.dir)
	data := filepath.Join(p.dir, "data")
	must(t, p.dir, nil, filepath.Join(bin, "initdb"), "-D", data, "-U", "admin", "-A", "scram-sha-256", "--pwfile", filepath.Join(p.dir, "pw"), "--no-sync", "--locale=C")
	write(t, filepath.Join(data, "pg_hba.conf"), "hostssl all all 127.0.0.1/32 scram-sha-256\n")
	hand(t, data)
	daemon(t, p.dir, nil, func() error {
		if _, err := p.sql("admin", p.pass, "select 1"); err != nil {
			return err
		}
		return nil
	}, filepath.Join(bin, "postgres"), "-D", data, "-p", fmt.Sprint(p.port), "-h", "127.0.0.1", "-k", "",
		"-c", "ssl=on", "-c", "ssl_cert_file="+crt, "-c", "ssl_key_file="+key, "-c", "fsync=off")
	return p
}

func postgresBin(t *testing.T) string {
	t.Helper()
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(all) == 0 {
		t.Fatal("PostgreSQL is not installed; hint: apt-get install postgresql")
	}
	return filepath.Dir(all[len(all)-1])
}

// sql runs one statement as a user; an error is PostgreSQL's own word.
func (p *postgres) sql(user, password, text string) (string, error) {
	cmd := exec.Command("psql", "-X", "-A", "-t", "-w", "-c", text)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=/nonexistent", "PGHOST=127.0.0.1", fmt.Sprintf("PGPORT=%d", p.port), "PGDATABASE=postgres",
		"PGUSER=" + user, "PGPASSWORD=" + password, "PGSSLMODE=verify-full", "PGSSLROOTCERT=" + p.ca, "PGCONNECT_TIMEOUT=10",
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("psql: %s", exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// startNginx serves two names on one port: mtls.peers.test only to clients with a
// certificate of clientCAs, and vault.peers.test as the TLS in front of a Vault.
func startNginx(t *testing.T, ca *authority, clientCAs, vault, queryKey string) string {
	t.Helper()
	dir := home(t, "nginx")
	port := freePort(t)
	crt, key := ca.server(t, dir, "mtls.peers.test")
	vcrt, vkey := ca.server(t, dir, "vault.peers.test")
	write(t, filepath.Join(dir, "client-cas.pem"), clientCAs)
	write(t, filepath.Join(dir, "nginx.conf"), fmt.Sprintf(`daemon off;
pid %[1]s/pid;
error_log stderr warn;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  server {
    listen 127.0.0.1:%[2]d ssl;
    server_name mtls.peers.test;
    ssl_certificate %[3]s;
    ssl_certificate_key %[4]s;
    ssl_client_certificate %[1]s/client-cas.pem;
    ssl_verify_client on;
    location / { return 200 "$ssl_client_verify $ssl_client_s_dn\n"; }
  }
  server {
    listen 127.0.0.1:%[2]d ssl;
    server_name vault.peers.test;
    ssl_certificate %[5]s;
    ssl_certificate_key %[6]s;
    location = /query {
      if ($arg_key != "%[7]s") { return 401; }
      return 200 "key accepted\n";
    }
    location / { proxy_pass %[8]s; }
  }
}
`, dir, port, crt, key, vcrt, vkey, queryKey, vault))
	hand(t, dir)
	daemon(t, dir, nil, listens(local(port)), "/usr/sbin/nginx", "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"), "-p", dir)
	return local(port)
}

// startS3 is versitygw over a folder, with one root account.
func startS3(t *testing.T, ca *authority, binary, access, secretKey string) string {
	t.Helper()
	dir := home(t, "s3")
	port := freePort(t)
	crt, key := ca.server(t, dir, "s3.peers.test")
	for _, d := range []string{"data", "meta"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	hand(t, dir)
	daemon(t, dir, []string{"ROOT_ACCESS_KEY=" + access, "ROOT_SECRET_KEY=" + secretKey}, listens(local(port)),
		binary, "--port", local(port), "--cert", crt, "--key", key, "--region", "eu-central-1", "--quiet",
		"posix", "--sidecar", filepath.Join(dir, "meta"), filepath.Join(dir, "data"))
	return local(port)
}
