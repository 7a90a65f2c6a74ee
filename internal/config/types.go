// Package config reads warder.yaml: one strict file, one struct. Unknown keys,
// duplicate keys, a second document and an empty file are errors with file, line
// and column. Relative paths are relative to the file; "~/" is the caller's home.
//
// Invariants:
//
//   - The working directory is never searched: an untrusted checkout must not
//     configure the host.
//   - A value that cannot be read as it is written is an error; nothing is
//     guessed, coerced or silently dropped.
//   - No secret stands in the file. Secrets are named (a file, a variable, a
//     command, a path in Vault), so a Config may be printed and compared.
//   - A Config returned without an error has its defaults filled in and its paths
//     absolute. Credentials still have to pass broker.Validate, which knows what
//     they need; it denies those that do not.
//   - No file means Default, which offers no credential and denies everything.
package config

import "time"

// Config is the whole of warder.yaml, version 1.
type Config struct {
	Version     int                   `yaml:"version"`
	Policy      Policy                `yaml:"policy"`
	Vault       *Vault                `yaml:"vault"`
	Credentials map[string]Credential `yaml:"credentials"`
	Sandbox     Sandbox               `yaml:"sandbox"`
	Proxy       Proxy                 `yaml:"proxy"`
	Audit       Audit                 `yaml:"audit"`

	File string `yaml:"-"` // absolute path it was read from; "" when there is none

	marks marks // where each key stood in File
}

// Policy says where the Rego is. Mode is enforce (default) or monitor.
type Policy struct {
	Path  string   `yaml:"path"`
	Mode  string   `yaml:"mode"`
	Roots []string `yaml:"roots"` // further folders, as if they were in Path
	Floor string   `yaml:"floor"` // the operator's folder; the others can only narrow it

	Bundle *PolicyBundle `yaml:"bundle"` // in place of Path
}

// PolicyBundle is a signed OPA bundle. Exactly one of URL and File is set.
type PolicyBundle struct {
	URL       string   `yaml:"url"`
	File      string   `yaml:"file"`
	KeyFile   string   `yaml:"key_file"`  // public key or certificate, PEM
	Algorithm string   `yaml:"algorithm"` // of RFC 7518; default RS256
	Scope     string   `yaml:"scope"`     // what the signature must say of its scope
	CAFile    string   `yaml:"ca_file"`   // of the server; default: the system's authorities
	Poll      Duration `yaml:"poll"`      // with URL; default 1m
	MaxAge    Duration `yaml:"max_age"`   // with URL: since the server last confirmed it; default 24h
}

// Vault is the connection to HashiCorp Vault (or OpenBao).
type Vault struct {
	Address   string   `yaml:"address"`
	Addresses []string `yaml:"addresses"` // further servers of the same cluster
	Stale     Duration `yaml:"stale"`     // how long a value outlives its time while Vault is away; default 0
	CAFile    string   `yaml:"ca_file"`
	Namespace string   `yaml:"namespace"`
	Timeout   Duration `yaml:"timeout"` // per call; default 5s
	Auth      Auth     `yaml:"auth"`
	TokenRole string   `yaml:"token_role"`
}

// Auth is one login method.
type Auth struct {
	Method       string `yaml:"method"` // approle | token_file | jwt | kubernetes | cert
	Mount        string `yaml:"mount"`
	RoleIDFile   string `yaml:"role_id_file"`
	SecretIDFile string `yaml:"secret_id_file"`
	Wrapped      bool   `yaml:"wrapped"`
	TokenFile    string `yaml:"token_file"`
	Role         string `yaml:"role"`
	JWTFile      string `yaml:"jwt_file"`
	CertFile     string `yaml:"cert_file"`
	KeyFile      string `yaml:"key_file"`
}

// Credential binds a source of a value to the places it may be sent to.
type Credential struct {
	Source  Source            `yaml:"source"`
	Inject  Inject            `yaml:"inject"`
	Hosts   []string          `yaml:"hosts"`
	Methods *[]string         `yaml:"methods"` // nil: any; empty: none
	Paths   *[]string         `yaml:"paths"`   // nil: any; empty: none
	StandIn map[string]string `yaml:"stand_in"`
	Ranges  bool              `yaml:"ranges"` // let Range through on credentialed exchanges
}

// Source has exactly one member set.
type Source struct {
	Vault *VaultSource `yaml:"vault"`
	Local *LocalSource `yaml:"local"`
}

// VaultSource has exactly one of KV, Read, OIDC, JWT, PKI, HMAC, TOTP, AWS.
type VaultSource struct {
	KV         string   `yaml:"kv"`          // PATH of a stored value
	Read       string   `yaml:"read"`        // PATH of an engine that answers a read
	OIDC       string   `yaml:"oidc"`        // ROLE of identity tokens
	JWT        string   `yaml:"jwt"`         // KEY of the transit engine that signs
	PKI        string   `yaml:"pki"`         // PATH that signs, such as pki/sign/ROLE
	TOTP       string   `yaml:"totp"`        // KEY of the totp engine
	HMAC       string   `yaml:"hmac"`        // KEY of the transit engine
	AWS        string   `yaml:"aws"`         // PATH of access keys
	Field      string   `yaml:"field"`       // with kv and read
	Mount      string   `yaml:"mount"`       // default: that of the engine
	Version    int      `yaml:"version"`     // KV version; 0 means 2
	Issuer     string   `yaml:"issuer"`      // with jwt; default "warder"
	Audience   string   `yaml:"audience"`    // with jwt
	Subject    string   `yaml:"subject"`     // with jwt; default: the run's id
	Algorithm  string   `yaml:"algorithm"`   // with jwt (ES256, RS256, EdDSA) and hmac (sha2-256, sha2-512, …)
	CommonName string   `yaml:"common_name"` // with pki; "{run}" is the run's id
	TTL        Duration `yaml:"ttl"`         // with jwt and pki
	Policies   []string `yaml:"policies"`
}

// LocalSource has exactly one member set.
type LocalSource struct {
	Env     string     `yaml:"env"`
	File    string     `yaml:"file"`
	Command []string   `yaml:"command"`
	JWT     *LocalJWT  `yaml:"jwt"`
	PKI     *LocalPKI  `yaml:"pki"`
	TOTP    *LocalTOTP `yaml:"totp"`
	HMAC    *LocalHMAC `yaml:"hmac"`
}

// LocalPKI is a client certificate signed by an authority of the caller's.
type LocalPKI struct {
	CACertFile string   `yaml:"ca_cert_file"`
	CAKeyFile  string   `yaml:"ca_key_file"`
	CommonName string   `yaml:"common_name"` // "{run}" is the run's id
	TTL        Duration `yaml:"ttl"`         // default 10m, at most 24h
}

// LocalTOTP is a time-based one-time password (RFC 6238).
type LocalTOTP struct {
	KeyFile   string   `yaml:"key_file"`  // holds the key in Base32, as apps show it
	Algorithm string   `yaml:"algorithm"` // SHA1 (default) | SHA256 | SHA512
	Digits    int      `yaml:"digits"`    // 6 (default) to 8
	Period    Duration `yaml:"period"`    // default 30s
}

// LocalHMAC is a key that signs requests (RFC 2104).
type LocalHMAC struct {
	KeyFile   string `yaml:"key_file"`  // its bytes, less one line break, are the key
	Algorithm string `yaml:"algorithm"` // sha2-256 (default) | sha2-384 | sha2-512
}

// LocalJWT is an ES256 JWT (RFC 7519) signed by a key in the state folder.
type LocalJWT struct {
	Audience string   `yaml:"audience"`
	Subject  string   `yaml:"subject"`
	TTL      Duration `yaml:"ttl"` // default 5m, at most 1h
}

// Inject says where the value goes. Exactly one of the slots is set.
type Inject struct {
	Header string `yaml:"header"`
	Format string `yaml:"format"` // with header; "{value}" is replaced; default "{value}"
	Basic  *Basic `yaml:"basic"`
	Query  string `yaml:"query"`
	Form   string `yaml:"form"`
	SigV4  *SigV4 `yaml:"sigv4"`
	MTLS   *MTLS  `yaml:"mtls"`
	HMAC   *HMAC  `yaml:"hmac"`
}

// Basic is HTTP Basic (RFC 7617); the value is the password.
type Basic struct {
	Username      string `yaml:"username"`
	UsernameField string `yaml:"username_field"` // with read: the field of the answer that holds the name
}

// SigV4 is a signature of AWS (Signature Version 4), made for one region and service.
type SigV4 struct {
	Region  string `yaml:"region"`
	Service string `yaml:"service"`
}

// MTLS is a client certificate of the connection; it has no settings.
type MTLS struct{}

// HMAC is a signature over named parts of the request; docs/vault.md has the
// canonical text.
type HMAC struct {
	Header          string   `yaml:"header"`
	Format          string   `yaml:"format"`           // "{value}" is replaced; default "{value}"
	Encoding        string   `yaml:"encoding"`         // hex (default) | base64
	Parts           []string `yaml:"parts"`            // what is signed, in this order
	Separator       *string  `yaml:"separator"`        // between parts; default a line feed
	TimestampHeader string   `yaml:"timestamp_header"` // is set to the Unix time that is signed
}

// Sandbox holds the limits. Zero values mean "the default".
type Sandbox struct {
	CPUs     float64   `yaml:"cpus"`
	Memory   Size      `yaml:"memory"`
	PIDs     int       `yaml:"pids"`
	Disk     Size      `yaml:"disk"`
	Timeout  Duration  `yaml:"timeout"`
	Limits   string    `yaml:"limits"`    // best-effort (default) | strict
	Network  string    `yaml:"network"`   // auto (default) | card | socket
	UIDRange [2]uint32 `yaml:"uid_range"` // first id, count
}

// Proxy is the proxy section; Upstream holds for run too.
type Proxy struct {
	Upstream Upstream    `yaml:"upstream"`
	Listen   string      `yaml:"listen"`
	CA       *ProxyCA    `yaml:"ca"`
	Clients  []Client    `yaml:"clients"`
	Admin    string      `yaml:"admin"` // loopback ADDRESS:PORT of metrics, health and readiness; "" none
	Limits   ProxyLimits `yaml:"limits"`
}

// ProxyLimits bound what one run may hold. Zero values mean "the default".
type ProxyLimits struct {
	Connections int  `yaml:"connections"` // open at once
	Requests    int  `yaml:"requests"`    // under way at once
	Bandwidth   Size `yaml:"bandwidth"`   // bytes a second, both ways together; default no limit
}

// Upstream holds narrow overrides of where and how requests leave.
type Upstream struct {
	CAFiles        []string          `yaml:"ca_files"`
	Hosts          map[string]string `yaml:"hosts"` // name → IP literal
	Resolver       string            `yaml:"resolver"`
	Via            string            `yaml:"via"`
	AllowAddresses []string          `yaml:"allow_addresses"` // "ip:port" (for names in Hosts) or "name=ip:port"
}

// ProxyCA is the signing certificate of `warder proxy`.
type ProxyCA struct {
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
}

// Client is a caller of `warder proxy`.
type Client struct {
	Name        string   `yaml:"name"`
	TokenFile   string   `yaml:"token_file"`
	CertFile    string   `yaml:"cert_file"`
	Credentials []string `yaml:"credentials"`
}

// Audit says where records go. Durable is all (default) or credentialed.
type Audit struct {
	Dir     string `yaml:"dir"`
	Durable string `yaml:"durable"`
}

// Duration is a time.Duration in Go's text form ("10m").
type Duration time.Duration

// Size is a number of bytes, written "512Mi", "1Gi", "64k" or plain.
type Size int64
