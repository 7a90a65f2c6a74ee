package runner

import "sort"

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

// trustEnv returns the trust variables as NAME=value, sorted by name.
func trustEnv() []string {
	out := make([]string, 0, len(trustTable))
	for _, v := range trustTable {
		out = append(out, v.name+"="+v.file)
	}
	sort.Strings(out)
	return out
}
