package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func sortedNames(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// debianRoot is a Debian root file system of tools/debianroot, built when it is
// not there.
func debianRoot(t *testing.T, name string) string {
	t.Helper()
	cmd := exec.Command("../../tools/debianroot/ensure.sh", name)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tools/debianroot/ensure.sh %s: %v\n%s", name, err, log.String())
	}
	return strings.TrimSpace(string(out))
}

// httpsClient is a program that speaks HTTPS with what it finds in the sandbox.
type httpsClient struct {
	name   string
	script string            // of sh, in /workspace
	files  map[string]string // there
	want   string            // on standard output
}

const at = "https://" + allowedHost

// httpsClients are tried by TestClients_F094, from the Debian root named clients.
var httpsClients = []httpsClient{
	{name: "curl", script: "curl -sS " + at + "/v1/curl", want: "answer to GET /v1/curl"},
	{name: "wget", script: "wget -qO- " + at + "/v1/wget", want: "answer to GET /v1/wget"},
	{name: "openssl s_client", script: `printf 'GET /v1/openssl HTTP/1.1\r\nHost: ` + allowedHost + `\r\nConnection: close\r\n\r\n' | openssl s_client -quiet -verify_return_error -verify_hostname ` + allowedHost + ` -servername ` + allowedHost + ` -connect ` + allowedHost + `:443`, want: "answer to GET /v1/openssl"},
	{name: "git", script: `export HOME=/tmp; git config --global user.email t@t.test; git config --global user.name t
		git clone -q ` + at + `/git/repo.git && cd repo && cat README && echo more >more && git add more && git commit -qm more && git push -q origin main
		cd .. && git clone -q ` + at + `/git/repo.git again && cat again/more`, want: "the repository of the tests\nmore\n"},
	{name: "git over SSH is git over HTTPS", script: `git clone -q git@` + allowedHost + `:git/repo.git && git clone -q ssh://git@` + allowedHost + `/git/repo.git two && cat repo/README two/README`, want: "the repository of the tests\nthe repository of the tests\n"},
	{name: "python3 urllib", script: `python3 -c 'import urllib.request as u; print(u.urlopen("` + at + `/v1/urllib").read().decode())'`, want: "answer to GET /v1/urllib"},
	{name: "python3-requests", script: `python3 -c 'import requests; print(requests.get("` + at + `/v1/requests").text)'`, want: "answer to GET /v1/requests"},
	{name: "python3-httpx", script: `python3 -c 'import httpx; print(httpx.get("` + at + `/v1/httpx").text)'`, want: "answer to GET /v1/httpx"},
	{name: "node fetch", script: `node -e 'fetch("` + at + `/v1/node").then(r => r.text()).then(console.log)'`, want: "answer to GET /v1/node"},
	{name: "npm install", script: `export HOME=/tmp; npm install --silent --no-audit --no-fund --registry ` + at + `/npm/ tiny && node -p 'require("tiny")'`, want: "the package of the tests"},
	{
		name: "go", script: `export HOME=/tmp GOPROXY=` + at + `/go GONOSUMDB=* GOFLAGS=-mod=mod; go mod download -json example.test/tiny@v1.0.0 && cat /tmp/go/pkg/mod/example.test/tiny@v1.0.0/tiny.go`,
		files: map[string]string{"go.mod": "module x\n"}, want: "the module of the tests",
	},
	{name: "Java HttpClient", script: "java -Xshare:auto -XX:TieredStopAtLevel=1 Fetch.java", files: map[string]string{"Fetch.java": javaFetch}, want: "answer to GET /v1/java"},
	{name: "Ruby Net::HTTP", script: `ruby -rnet/http -e 'puts Net::HTTP.get(URI("` + at + `/v1/ruby"))'`, want: "answer to GET /v1/ruby"},
	{
		name: "cargo", script: `export CARGO_HOME=/tmp/cargo; cargo fetch -q && cat /tmp/cargo/registry/src/*/tiny-0.1.0/src/lib.rs`,
		files: map[string]string{
			"Cargo.toml": "[package]\nname = \"x\"\nversion = \"0.1.0\"\n[dependencies]\ntiny = { version = \"0.1.0\", registry = \"test\" }\n", "src/lib.rs": "",
			".cargo/config.toml": "[registries.test]\nindex = \"" + at + "/git/index.git\"\n",
		}, want: "pub fn tiny() {}",
	},
	{
		name: "grpcurl", script: `grpcurl -proto echo.proto -d '{"text": "said by grpcurl"}' ` + allowedHost + `:443 test.Echo/Say`,
		files: map[string]string{"echo.proto": "syntax = \"proto3\";\npackage test;\nmessage Text { string text = 1; }\nservice Echo { rpc Say(Text) returns (Text); }\n"}, want: "said by grpcurl",
	},
	{name: "Deno", script: `export DENO_DIR=/tmp/deno NO_COLOR=1; deno eval 'console.log(await (await fetch("` + at + `/v1/deno")).text())'`, want: "answer to GET /v1/deno"},
	{name: "Bun", script: `bun -e 'console.log(await (await fetch("` + at + `/v1/bun")).text())'`, want: "answer to GET /v1/bun"},
}

const javaFetch = `import java.net.URI;
import java.net.http.*;
public class Fetch {
    public static void main(String[] a) throws Exception {
        var req = HttpRequest.newBuilder(URI.create("` + at + `/v1/java")).build();
        System.out.println(HttpClient.newHttpClient().send(req, HttpResponse.BodyHandlers.ofString()).body());
    }
}
`

const clientsRego = `package warder.egress

# METADATA
# title: The API, with its credential
allow contains {"rule": "api", "credential": "api"} if {
	input.request.host == "` + allowedHost + `"
	startswith(input.request.path, "/v1/")
}

# METADATA
# title: Packages and repositories
allow contains {"rule": "packages"} if {
	input.request.host == "` + allowedHost + `"
	not startswith(input.request.path, "/v1/")
}
`

// TestClients_F094: programs as Debian has them reach an allowed host over HTTPS
// through the interception, with nothing configured in their root file system and
// no proxy variable; the credential is added outside of their sight.
func TestClients_F094(t *testing.T) { // I2
	root := debianRoot(t, "clients")
	l := newLab(t)
	l.up.handler = clientServer(t)
	l.write("policies/api.rego", clientsRego)
	for _, c := range httpsClients {
		t.Run(c.name, func(t *testing.T) { l.tryClient(t, "dir:"+root, c) })
	}
	l.mustBeComplete()
}

// tryClient runs one client and looks at what it got and what the upstream got.
func (l *lab) tryClient(t *testing.T, ref string, c httpsClient) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "work")
	for name, text := range c.files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"run", "--image", ref, "--memory", "2Gi", "--cpus", "2", "--timeout", "2m"}
	if len(c.files) > 0 {
		args = append(args, "--input", dir+":.")
	}
	before := len(l.up.seen())
	o := l.warder(append(args, "--", "sh", "-c", "env | grep -i _proxy\n"+c.script)...)
	if o.code != 0 || !strings.Contains(o.stdout, c.want) {
		t.Fatalf("exit %d, no %q\nstdout: %s\nstderr: %s", o.code, c.want, o.stdout, o.stderr)
	}
	if strings.Contains(strings.ToLower(o.stdout), "_proxy=") {
		t.Errorf("a proxy variable is set: %s", o.stdout)
	}
	if strings.Contains(o.stdout+o.stderr, canary) {
		t.Error("the credential was seen inside")
	}
	got := l.up.seen()[before:]
	if len(got) == 0 {
		t.Fatal("nothing arrived at the upstream")
	}
	for _, r := range got {
		if with := r.authorization == "Bearer "+canary; with != strings.HasPrefix(r.target, "/v1/") {
			t.Errorf("%s %s arrived with the credential: %v", r.method, r.target, with)
		}
	}
}
