package runner

import (
	"bytes"
	"fmt"
	"sort"
)

// Outside is what policy and configuration say about the hosts outside, as far as
// the sandbox's files and variables depend on it. It grants nothing.
type Outside struct {
	// Roots are the authorities (PEM) of hosts that policy passes through without
	// interception, so that their certificates are the servers' own; nil when it
	// passes nothing through.
	Roots []byte
	// GitHosts are names that git asks over HTTPS also where a remote says SSH:
	// only HTTPS leads out.
	GitHosts []string
}

// trust is what clients inside learn to believe.
type trust struct {
	ca     []byte // the run's CA, PEM
	bundle []byte // ca, and what Outside.Roots adds
}

func newTrust(ca, roots []byte) trust {
	t := trust{ca: ca, bundle: ca}
	if len(roots) > 0 {
		t.bundle = bytes.Join([][]byte{bytes.TrimRight(ca, "\n"), roots}, []byte("\n"))
	}
	return t
}

// Where the CA bundle stands inside the sandbox. The first path is the real
// file, the others are where distributions' clients look without being told.
const (
	caBundlePath = "/etc/ssl/certs/ca-certificates.crt"
	caOnlyPath   = "/etc/ssl/warder/ca.pem"
	caJavaPath   = "/etc/ssl/certs/java/cacerts" // Debian; others by a link
)

var caBundleLinks = map[string]string{
	"/etc/ssl/cert.pem":                "certs/ca-certificates.crt",              // Alpine, LibreSSL
	"/etc/pki/tls/certs/ca-bundle.crt": "../../../ssl/certs/ca-certificates.crt", // RHEL family
	"/etc/pki/tls/cert.pem":            "../../ssl/certs/ca-certificates.crt",
	"/etc/ssl/ca-bundle.pem":           "certs/ca-certificates.crt",    // SUSE
	"/etc/pki/java/cacerts":            "../../ssl/certs/java/cacerts", // RHEL family
	"/etc/ssl/certs/ca-bundle.crt":     "ca-certificates.crt",
}

// trustVar is one row of the trust table: a variable, the file it names, and
// the client that reads it.
type trustVar struct {
	name, file, client string
}

// trustTable is the one place that says how clients learn to trust the run's
// CA. "Replacing" variables name the bundle, "adding" ones the CA alone.
var trustTable = []trustVar{
	{"SSL_CERT_FILE", caBundlePath, "OpenSSL, curl, Python ssl, Go, Ruby, .NET"},
	{"CURL_CA_BUNDLE", caBundlePath, "curl, Python requests"},
	{"REQUESTS_CA_BUNDLE", caBundlePath, "Python requests, pip, boto3"},
	{"PIP_CERT", caBundlePath, "pip"},
	{"GIT_SSL_CAINFO", caBundlePath, "git"},
	{"AWS_CA_BUNDLE", caBundlePath, "AWS CLI, boto3"},
	{"NODE_EXTRA_CA_CERTS", caOnlyPath, "Node.js, Bun, Deno from 2.8 (adding)"},
	{"DENO_CERT", caOnlyPath, "Deno (adding)"},
	{"npm_config_cafile", caBundlePath, "npm"},
	{"CARGO_HTTP_CAINFO", caBundlePath, "cargo"},
	{"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", caBundlePath, "gcloud"},
	{"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", caBundlePath, "gRPC C-core, grpc-js"},
	{"HTTPLIB2_CA_CERTS", caBundlePath, "httplib2"},
	{"NIX_SSL_CERT_FILE", caBundlePath, "Nix"},
	{"UV_SYSTEM_CERTS", "true", "uv"},
}

// TrustVariable is a variable of every task, for those who ask what is set.
type TrustVariable struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Clients string `json:"clients"` // that read it
}

// TrustVariables returns the table of variables, in its order.
func TrustVariables() []TrustVariable {
	var out []TrustVariable
	for _, v := range trustTable {
		out = append(out, TrustVariable{v.name, v.file, v.client})
	}
	return out
}

// gitOverHTTPS rewrites the remotes of these hosts to HTTPS, by git's variables
// for settings (git(1), GIT_CONFIG_COUNT).
func gitOverHTTPS(hosts []string) []string {
	if len(hosts) == 0 {
		return nil
	}
	var out []string
	n := 0
	for _, h := range hosts {
		for _, from := range []string{"git@" + h + ":", "ssh://git@" + h + "/"} {
			out = append(out, fmt.Sprintf("GIT_CONFIG_KEY_%d=url.https://%s/.insteadOf", n, h), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", n, from))
			n++
		}
	}
	return append(out, fmt.Sprintf("GIT_CONFIG_COUNT=%d", n))
}

// trustEnv returns the trust variables as NAME=value, sorted by name.
func trustEnv() []string {
	out := make([]string, 0, len(trustTable))
	for _, v := range trustTable {
		out = append(out, v.name+"="+v.file)
	}
	sort.Strings(out)
	return out
}
