package interop

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"warder/internal/config"
)

const nginxConf = `daemon off;
%s
pid %[2]s/nginx.pid;
error_log stderr warn;
worker_processes 1;
events { worker_connections 128; }
http {
	access_log off;
	client_body_temp_path %[2]s/t1; proxy_temp_path %[2]s/t2; fastcgi_temp_path %[2]s/t3; uwsgi_temp_path %[2]s/t4; scgi_temp_path %[2]s/t5;
	client_max_body_size 0;
	server {
		listen %[3]s ssl;
		ssl_certificate %[4]s;
		ssl_certificate_key %[5]s;
		auth_basic "git";
		auth_basic_user_file %[2]s/htpasswd;
		location / {
			fastcgi_pass unix:%[2]s/fcgi.sock;
			fastcgi_param SCRIPT_FILENAME %[6]s;
			fastcgi_param GIT_PROJECT_ROOT %[2]s/repos;
			fastcgi_param GIT_HTTP_EXPORT_ALL 1;
			fastcgi_param PATH_INFO $uri;
			fastcgi_param QUERY_STRING $query_string;
			fastcgi_param REQUEST_METHOD $request_method;
			fastcgi_param CONTENT_TYPE $content_type;
			fastcgi_param CONTENT_LENGTH $content_length;
			fastcgi_param REMOTE_USER $remote_user;
			fastcgi_param REMOTE_ADDR $remote_addr;
			fastcgi_param SERVER_PROTOCOL $server_protocol;
		}
	}
}
`

// gitServer is git http-backend behind nginx, with Basic, and its address.
func gitServer(t *testing.T, a *authority) (addr, repo string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "git") // short: a Unix socket is in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	_, certFile, keyFile := a.leaf(t, "git.test")
	hash := strings.TrimSpace(output(t, nil, "", "openssl", "passwd", "-apr1", canary))
	if err := os.WriteFile(filepath.Join(dir, "htpasswd"), []byte("robot:"+hash+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	repo = filepath.Join(dir, "repos", "project.git")
	output(t, nil, "", "git", "init", "-q", "--bare", "-b", "main", repo)
	ln := listen(t)
	addr = ln.Addr().String()
	ln.Close() // nginx has no port 0
	user := ""
	if os.Getuid() == 0 {
		user = "user root;"
	}
	backend := filepath.Join(strings.TrimSpace(output(t, nil, "", "git", "--exec-path")), "git-http-backend")
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, user, dir, addr, certFile, keyFile, backend), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon(t, dir, "fcgiwrap", "-c", "2", "-s", "unix:"+dir+"/fcgi.sock")
	daemon(t, dir, "nginx", "-p", dir, "-c", conf)
	waitFor(t, "tcp", addr)
	waitFor(t, "unix", dir+"/fcgi.sock")
	return addr, repo
}

// daemon runs a program, and what it starts, until the test ends.
func daemon(t *testing.T, home string, argv ...string) {
	t.Helper()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		path = filepath.Join("/usr/sbin", argv[0])
	}
	said, err := os.CreateTemp(home, "said")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), path, argv[1:]...)
	cmd.Env, cmd.Stderr, cmd.Stdout = append(environ(), "HOME="+home), said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		if text, err := os.ReadFile(said.Name()); err != nil || t.Failed() {
			t.Logf("%s: %s %v", argv[0], text, err)
		}
		said.Close()
	})
}

func waitFor(t *testing.T, network, addr string) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial(network, addr)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
}

// git clones and pushes without a password: the proxy has it.
func TestGitCloneAndPushWithBasicInjected_F084(t *testing.T) {
	a := newAuthority(t)
	addr, repo := gitServer(t, a)
	l := newLab(t, labOptions{
		authority: a, upstreams: map[string]string{"git.test": addr},
		policy: `allow contains {"rule": "git", "credential": "git"} if input.request.host == "git.test"
`,
		credentials: map[string]config.Credential{"git": {
			Source: config.Source{Local: &config.LocalSource{Env: "GIT_PASSWORD"}}, Inject: config.Inject{Basic: &config.Basic{Username: "robot"}}, Hosts: []string{"git.test"},
		}},
		secrets: map[string]string{"GIT_PASSWORD": canary},
	})
	// Positive control: without the proxy it is refused.
	direct := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: poolOf(t, a.file), ServerName: "git.test"},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}}
	resp, err := direct.Get("https://git.test/project.git/info/refs?service=git-upload-pack")
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatalf("without the proxy: %v %v", resp, err)
	}
	resp.Body.Close()

	home := t.TempDir()
	env := []string{"HOME=" + home, "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1", "GIT_SSL_CAINFO=" + l.caFile, "HTTPS_PROXY=http://" + l.explicit()}
	git := func(dir string, args ...string) string {
		t.Helper()
		return output(t, env, dir, append([]string{"git", "-c", "user.name=A", "-c", "user.email=a@example.test", "-c", "init.defaultBranch=main"}, args...)...)
	}
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		work := filepath.Join(t.TempDir(), "work")
		git("", "-c", "http.version="+version, "clone", "-q", "https://git.test/project.git", work)
		big := make([]byte, 3<<20) // over http.postBuffer: sent in chunks
		rand.Read(big)
		if err := os.WriteFile(filepath.Join(work, "big "+strings.ReplaceAll(version, "/", "")), big, 0o600); err != nil {
			t.Fatal(err)
		}
		git(work, "add", ".")
		git(work, "commit", "-q", "-m", version)
		git(work, "-c", "http.version="+version, "push", "-q", "origin", "HEAD:refs/heads/main")
		pushed := strings.TrimSpace(git(work, "rev-parse", "HEAD"))
		if got := strings.TrimSpace(output(t, nil, repo, "git", "rev-parse", "main")); got != pushed {
			t.Errorf("%s: %s was pushed, %s is there", version, pushed, got)
		}
		again := filepath.Join(t.TempDir(), "again")
		git("", "-c", "http.version="+version, "clone", "-q", "https://git.test/project.git", again)
		if got, err := os.ReadFile(filepath.Join(again, "big "+strings.ReplaceAll(version, "/", ""))); err != nil || !bytes.Equal(got, big) {
			t.Errorf("%s: cloned %d bytes, %v", version, len(got), err)
		}
		git(again, "fetch", "-q", "--all")
	}
	seen := map[string]bool{}
	for _, r := range l.completed() {
		seen[r.Request.Protocol+" "+r.Request.Method+" "+r.Request.Path] = true
		if r.Verdict != "allow" || r.Credential == nil || r.Credential.Name != "git" || r.Response.Status != 200 {
			t.Errorf("record %+v %+v", r, r.Request)
		}
	}
	for _, protocol := range []string{"http/1.1", "h2"} {
		for _, what := range []string{"GET /project.git/info/refs", "POST /project.git/git-upload-pack", "POST /project.git/git-receive-pack"} {
			if !seen[protocol+" "+what] {
				t.Errorf("no record of %s %s", protocol, what)
			}
		}
	}
}
