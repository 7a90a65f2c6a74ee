package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const minimal = "version: 1\n"

// full names every documented key once.
const full = `version: 1
policy: {path: ./policies, mode: monitor}
vault:
  address: https://vault.example:8200
  ca_file: ca.pem
  namespace: team
  timeout: 2s
  auth: {method: approle, mount: approle, role_id_file: ~/role, secret_id_file: /run/secret-id, wrapped: true}
  token_role: agent-run
credentials:
  github-read:
    source: {vault: {kv: secret/github, field: token, policies: [run-base, run-github]}}
    inject: {header: Authorization, format: "Bearer {value}"}
    hosts: [api.github.com, "*.internal.example:8443", 10.0.0.1]
    methods: [GET]
    paths: ["/repos/acme/**"]
    stand_in: {GITHUB_TOKEN: "ghp_{random:36}"}
    ranges: true
  inventory:
    source: {local: {env: INVENTORY_TOKEN}}
    inject: {header: X-Api-Key}
    hosts: ["inventory.internal.example:8443"]
    methods: []
  service:
    source:
      local:
        jwt: {audience: api, subject: warder, ttl: 10m}
    inject: {basic: {username: x}}
    hosts: [127.0.0.1]
  tool:
    source: {local: {command: [./bin/token, --print]}}
    inject: {query: key}
    hosts: [a.example]
sandbox: {cpus: 1.5, memory: 1Gi, pids: 64, disk: 2048Mi, timeout: 1h30m, limits: strict, network: card, uid_range: [300000, 1000]}
proxy:
  upstream: {ca_files: [up.pem], hosts: {api.internal.example: 10.1.2.3, b.example: "127.0.0.1:8443"}, resolver: "127.0.0.1:53", via: "http://proxy.example:3128", allow_addresses: ["10.1.2.3:443", "b.example=127.0.0.1:8443"]}
  listen: 127.0.0.1:3129
  ca: {cert_file: ca.crt, key_file: ca.key}
  clients: [{name: ci, token_file: ci.token, credentials: [github-read]}]
audit: {dir: ~/audit, durable: credentialed}
`

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := parse("/etc/w/warder.yaml", []byte(text), "/home/u")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEveryDocumentedKeyIsRead(t *testing.T) {
	c := mustParse(t, full)
	gh, svc := c.Credentials["github-read"], c.Credentials["service"]
	for _, tc := range []struct {
		key       string
		got, want any
	}{
		{"policy.mode", c.Policy.Mode, ModeMonitor},
		{"vault.timeout", c.Vault.Timeout, Duration(2 * time.Second)},
		{"vault.auth.wrapped", c.Vault.Auth.Wrapped, true},
		{"kv", gh.Source.Vault.KV, "secret/github"},
		{"kv version", gh.Source.Vault.Version, 2},
		{"policies", strings.Join(gh.Source.Vault.Policies, ","), "run-base,run-github"},
		{"methods", strings.Join(*gh.Methods, ","), "GET"},
		{"paths", (*gh.Paths)[0], "/repos/acme/**"},
		{"stand_in", gh.StandIn["GITHUB_TOKEN"], "ghp_{random:36}"},
		{"ranges", gh.Ranges, true},
		{"no methods", len(*c.Credentials["inventory"].Methods), 0},
		{"any path", c.Credentials["inventory"].Paths == nil, true},
		{"default format", c.Credentials["inventory"].Inject.Format, "{value}"},
		{"jwt ttl", svc.Source.Local.JWT.TTL, Duration(10 * time.Minute)},
		{"basic", svc.Inject.Basic.Username, "x"},
		{"cpus", c.Sandbox.CPUs, 1.5},
		{"memory", c.Sandbox.Memory, 1 * gib},
		{"disk", c.Sandbox.Disk, 2 * gib},
		{"timeout", c.Sandbox.Timeout, Duration(90 * time.Minute)},
		{"uid_range", c.Sandbox.UIDRange, [2]uint32{300000, 1000}},
		{"upstream host", c.Proxy.Upstream.Hosts["api.internal.example"], "10.1.2.3"},
		{"allow_addresses", len(c.Proxy.Upstream.AllowAddresses), 2},
		{"clients", c.Proxy.Clients[0].Credentials[0], "github-read"},
		{"durable", c.Audit.Durable, DurableCredentialed},
	} {
		if tc.got != tc.want {
			t.Errorf("%s = %v, want %v", tc.key, tc.got, tc.want)
		}
	}
}

func TestPathsAreRelativeToTheFileAndTildeIsTheHome(t *testing.T) {
	c := mustParse(t, full)
	for _, tc := range []struct{ got, want string }{
		{c.File, "/etc/w/warder.yaml"},
		{c.Policy.Path, "/etc/w/policies"},
		{c.Vault.CAFile, "/etc/w/ca.pem"},
		{c.Vault.Auth.RoleIDFile, "/home/u/role"},
		{c.Vault.Auth.SecretIDFile, "/run/secret-id"},
		{c.Credentials["tool"].Source.Local.Command[0], "/etc/w/bin/token"},
		{c.Credentials["tool"].Source.Local.Command[1], "--print"},
		{c.Proxy.Upstream.CAFiles[0], "/etc/w/up.pem"},
		{c.Proxy.CA.KeyFile, "/etc/w/ca.key"},
		{c.Proxy.Clients[0].TokenFile, "/etc/w/ci.token"},
		{c.Audit.Dir, "/home/u/audit"},
	} {
		if tc.got != tc.want {
			t.Errorf("path = %q, want %q", tc.got, tc.want)
		}
	}
}

func TestDefaultsFillWhatTheFileLeavesOut(t *testing.T) {
	c := mustParse(t, minimal)
	if c.Sandbox.Memory != DefaultMemory || c.Sandbox.PIDs != DefaultPIDs || c.Sandbox.Disk != DefaultDisk ||
		c.Sandbox.CPUs != DefaultCPUs || c.Sandbox.Timeout != DefaultTimeout || c.Sandbox.Limits != LimitsBestEffort ||
		c.Sandbox.UIDRange != [2]uint32{200000, 65536} {
		t.Errorf("sandbox = %+v", c.Sandbox)
	}
	if c.Policy.Mode != ModeEnforce || c.Policy.Path != "" || c.Audit.Durable != DurableAll || c.Proxy.Listen != DefaultListen {
		t.Errorf("config = %+v", c)
	}
}

// The default must deny: no policy to allow anything, no credential to offer.
func TestDefaultOffersNothing(t *testing.T) {
	c := Default()
	if c.Policy.Path != "" || len(c.Credentials) != 0 || c.Vault != nil || c.File != "" || len(c.Proxy.Upstream.AllowAddresses) != 0 {
		t.Errorf("Default() = %+v", c)
	}
	if err := c.validate(); err != nil {
		t.Errorf("Default() does not pass its own validation: %v", err)
	}
}

func TestEdgesOfTheRangesAreAccepted(t *testing.T) {
	for _, text := range []string{
		"sandbox: {uid_range: [65536, 2]}", "sandbox: {uid_range: [4294967293, 2]}", "sandbox: {memory: 16Mi, pids: 1, cpus: 0.01, disk: 1, timeout: 1ns}",
		"sandbox: {cpus: 1024, pids: 4194304}", "proxy: {listen: \":0\"}", "proxy: {admin: \"127.0.0.1:9090\", limits: {connections: 1, requests: 1, bandwidth: 1Mi}}", "proxy: {listen: \"[::1]:65535\"}",
		"proxy: {upstream: {resolver: \"::1\", via: \"https://proxy.example:65535/\"}}",
		"proxy: {upstream: {hosts: {\"127.0.0.1\": 127.0.0.1}, allow_addresses: [\"[::1]:443\"]}}",
		"policy:\nvault:\ncredentials:\nproxy:\nsandbox:\naudit:", // sections may be left empty
	} {
		if _, err := parse("/w.yaml", []byte("version: 1\n"+text+"\n"), "/"); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Each case is a file and the exact text of its fault after the file's name.
var faultCases = []struct{ name, text, want string }{
	{"empty file", "", "1:1: the file is empty"},
	{"only comments", "# nothing\n", "1:1: the file is empty"},
	{"only a document marker", "---\n", "1:1: the file is empty"},
	{"a list", "- a\n", "1:1: the file is not a mapping"},
	{"a scalar", "hello\n", "1:1: the file is not a mapping"},
	{"second document", "version: 1\n---\nversion: 1\n", "2:1: a second document"},
	{"empty second document", "version: 1\n---\n", "2:1: a second document"},
	{"unknown key at the top", "version: 1\npolcy: {}\n", `2:1: unknown key "polcy" at the top of the file; hint: did you mean policy?`},
	{"unknown key in a section", "version: 1\npolicy:\n  path: x\n  modus: enforce\n", `4:3: unknown key "modus" in "policy"`},
	{"unknown key in a flow mapping", "version: 1\npolicy: {path: x, modus: y}\n", `2:19: unknown key "modus" in "policy"`},
	{"unknown key in a list", "version: 1\nproxy:\n  clients:\n    - name: a\n      tokenfile: x\n", `5:7: unknown key "tokenfile" in "proxy.clients[0]"; hint: did you mean token_file?`},
	{"unknown key below a name", "version: 1\ncredentials:\n  a:\n    hots: [x]\n", `4:5: unknown key "hots" in "credentials.a"; hint: did you mean hosts?`},
	{"duplicate key at the top", "version: 1\npolicy: {}\npolicy: {}\n", "3:1: "},
	{"duplicate key in a section", "version: 1\npolicy:\n  path: a\n  path: b\n", "4:3: "},
	{"duplicate key in a flow mapping", "version: 1\npolicy: {path: a, path: b}\n", "2:19: "},
	{"duplicate credential", "version: 1\ncredentials:\n  a: {}\n  b: {}\n  a: {}\n", "5:3: "},
	{"duplicate key in a free mapping", "version: 1\nproxy: {upstream: {hosts: {a.example: 1.1.1.1, a.example: 2.2.2.2}}}\n", "2:48: "},
	{"quoted duplicate key", "version: 1\n\"version\": 1\n", "2:1: "},
	{"syntax", "version: 1\npolicy: {path: \n", "2:"},
	{"tab", "version: 1\npolicy:\n\tpath: x\n", "3:1: "},
	{"control character", "version: 1\n# \x01\n", "2:3: not UTF-8 text"},
	{"delete character", "version: 1 # \x7f\n", "1:14: not UTF-8 text"},
	{"null in a list", "version: 1\nproxy: {upstream: {ca_files: [a, ~]}}\n", `2:34: "proxy.upstream.ca_files[1]" has no value`},
	{"empty name in a list", "version: 1\nproxy: {upstream: {ca_files: [\"\"]}}\n", "2:31: proxy.upstream.ca_files[0] is required"},
	{"not UTF-8", "version: 1\naudit: {dir: \xff}\n", "2:14: not UTF-8 text"},
	{"anchor", "version: 1\npolicy: &p {path: x}\n", "2:9: anchors"},
	{"alias", "version: 1\npolicy: *p\n", "2:9: "},
	{"tag", "version: 1\npolicy: {path: !!str x}\n", "2:16: anchors, aliases, tags"},
	{"merge key", "version: 1\npolicy: {<<: {path: x}}\n", "2:10: "},
	{"no version", "policy: {path: x}\n", "1:1: version must be 1"},
	{"version without a value", "version:\n", `1:1: "version" has no value`},
	{"wrong version", "version: 2\n", "1:10: version must be 1"},
	{"version as text", "version: \"1\"\n", `1:10: "version" must be a whole number`},
	{"empty value", "version: 1\npolicy:\n  path:\n  mode: enforce\n", `3:3: "policy.path" has no value`},
	{"null methods are not any method", "version: 1\ncredentials:\n  a:\n    methods: ~\n", `4:5: "credentials.a.methods" has no value`},
	{"number for text", "version: 1\npolicy: {path: 12}\n", `2:16: "policy.path" must be text; hint: quote the value`},
	{"bool for text", "version: 1\nvault: {namespace: true}\n", `2:20: "vault.namespace" must be text`},
	{"text for bool", "version: 1\nvault: {auth: {wrapped: yes}}\n", `2:25: "vault.auth.wrapped" must be true or false`},
	{"text for list", "version: 1\ncredentials: {a: {hosts: x}}\n", `2:26: "credentials.a.hosts" must be a list`},
	{"mapping for list", "version: 1\ncredentials: {a: {hosts: {x: y}}}\n", `2:26: "credentials.a.hosts" must be a list, not a mapping`},
	{"list for mapping", "version: 1\npolicy: [x]\n", `2:9: "policy" must be a mapping, not a list`},
	{"key that is not text", "version: 1\ncredentials: {1: {}}\n", "2:15: a key must be plain text"},
	{"policy.mode", "version: 1\npolicy: {mode: log}\n", `2:16: policy.mode must be enforce or monitor, not "log"`},
	{"bundle and path", "version: 1\npolicy: {path: p, bundle: {file: b, key_file: k}}\n", "2:10: policy.path and policy.bundle"},
	{"bundle of two", "version: 1\npolicy: {bundle: {file: b, url: \"https://a.example/\", key_file: k}}\n", "2:18: policy.bundle needs exactly one"},
	{"bundle of nothing", "version: 1\npolicy: {bundle: {key_file: k}}\n", "2:18: policy.bundle needs exactly one"},
	{"bundle without a key", "version: 1\npolicy: {bundle: {file: b}}\n", "2:10: policy.bundle.key_file is required"},
	{"bundle file that is polled", "version: 1\npolicy: {bundle: {file: b, key_file: k, poll: 1m}}\n", "2:18: policy.bundle: poll"},
	{"bundle in clear text", "version: 1\npolicy: {bundle: {url: \"http://a.example/\", key_file: k}}\n", "2:24: policy.bundle.url must be an https URL"},
	{"bundle polled too often", "version: 1\npolicy: {bundle: {url: \"https://a.example/\", key_file: k, poll: 1ms}}\n", "2:65: policy.bundle.poll must be at least"},
	{"bundle that is always too old", "version: 1\npolicy: {bundle: {url: \"https://a.example/\", key_file: k, max_age: 1s}}\n", "2:68: policy.bundle.max_age must not be shorter"},
	{"audit.durable", "version: 1\naudit: {durable: none}\n", `2:18: audit.durable must be all or credentialed, not "none"`},
	{"sandbox.network", "version: 1\nsandbox: {network: host}\n", `2:20: sandbox.network must be auto or card or socket, not "host"`},
	{"sandbox.limits", "version: 1\nsandbox: {limits: hard}\n", `2:19: sandbox.limits must be best-effort or strict`},
	{"memory without a size", "version: 1\nsandbox: {memory: 12Q}\n", `2:19: "sandbox.memory": "12Q": not a size`},
	{"memory too small", "version: 1\nsandbox: {memory: 1k}\n", "2:19: sandbox.memory must be at least 16Mi"},
	{"disk of nothing", "version: 1\nsandbox: {disk: 0}\n", `2:17: "sandbox.disk": "0" is out of range`},
	{"timeout without a unit", "version: 1\nsandbox: {timeout: 10}\n", `2:20: "sandbox.timeout": "10" is not a duration`},
	{"timeout of nothing", "version: 1\nsandbox: {timeout: 0s}\n", `2:20: "sandbox.timeout": "0s" is not a positive duration`},
	{"negative cpus", "version: 1\nsandbox: {cpus: -1}\n", "2:17: sandbox.cpus must be above 0"},
	{"cpus that is not a number", "version: 1\nsandbox: {cpus: .nan}\n", `2:17: "sandbox.cpus" must be a number`},
	{"no pids", "version: 1\nsandbox: {pids: 0}\n", "2:17: sandbox.pids must be between 1"},
	{"uid_range of three", "version: 1\nsandbox: {uid_range: [1, 2, 3]}\n", `2:22: "sandbox.uid_range" must be a list of 2, not of 3`},
	{"uid_range of root", "version: 1\nsandbox: {uid_range: [0, 65536]}\n", "2:23: sandbox.uid_range must start at 65536"},
	{"uid_range of one id", "version: 1\nsandbox: {uid_range: [200000, 1]}\n", "2:31: sandbox.uid_range must hold at least 2"},
	{"uid_range past the last id", "version: 1\nsandbox: {uid_range: [4294967000, 65536]}\n", "2:35: sandbox.uid_range ends above"},
	{"listen without a port", "version: 1\nproxy: {listen: localhost}\n", "2:17: proxy.listen: "},
	{"upstream host that is a name", "version: 1\nproxy: {upstream: {hosts: {a.example: b.example}}}\n", "2:39: proxy.upstream.hosts.a.example: "},
	{"upstream host with a port", "version: 1\nproxy: {upstream: {hosts: {\"a.example:1\": 1.1.1.1}}}\n", "2:43: proxy.upstream.hosts.a.example:1: "},
	{"allowed address without a port", "version: 1\nproxy: {upstream: {allow_addresses: [10.1.2.3]}}\n", "2:38: proxy.upstream.allow_addresses[0]: "},
	{"allowed network", "version: 1\nproxy: {upstream: {allow_addresses: [\"10.0.0.0/8\"]}}\n", "2:38: proxy.upstream.allow_addresses[0]: "},
	{"via another protocol", "version: 1\nproxy: {upstream: {via: \"socks5://proxy:1\"}}\n", "2:25: proxy.upstream.via must be http"},
	{"via without a host", "version: 1\nproxy: {upstream: {via: \"http://\"}}\n", "2:25: proxy.upstream.via must be http"},
	{"via with a path", "version: 1\nproxy: {upstream: {via: \"http://proxy/x\"}}\n", "2:25: proxy.upstream.via must be http"},
	{"resolver that is a name", "version: 1\nproxy: {upstream: {resolver: dns.example}}\n", "2:30: proxy.upstream.resolver: "},
	{"admin on another address", "version: 1\nproxy: {admin: \"0.0.0.0:9090\"}\n", "2:16: proxy.admin: "},
	{"admin by name", "version: 1\nproxy: {admin: \"localhost:9090\"}\n", "2:16: proxy.admin: "},
	{"a limit of nothing", "version: 1\nproxy: {limits: {requests: 0}}\n", "2:28: proxy.limits.requests must"},
	{"listen on a port out of range", "version: 1\nproxy: {listen: \"127.0.0.1:65536\"}\n", "2:17: proxy.listen: "},
	{"password in via", "version: 1\nproxy: {upstream: {via: \"http://u:p@proxy:1\"}}\n", "2:25: proxy.upstream.via must not hold a user"},
	{"ca without its key", "version: 1\nproxy: {ca: {cert_file: a}}\n", "2:9: proxy.ca.key_file is required"},
	{"client with two proofs", "version: 1\nproxy: {clients: [{name: a, token_file: t, cert_file: c}]}\n", "2:44: proxy.clients[0] takes one of"},
	{"client without a proof", "version: 1\nproxy: {clients: [{name: a}]}\n", "2:19: proxy.clients[0] needs one of token_file, cert_file"},
	{"client used twice", "version: 1\nproxy:\n  clients:\n    - {name: a, token_file: t}\n    - {name: a, token_file: t}\n", `5:14: proxy.clients[1].name: "a" is used twice`},
	{"client with an unknown credential", "version: 1\nproxy: {clients: [{name: a, token_file: t, credentials: [x]}]}\n", `2:58: proxy.clients[0]: no credential is called "x"`},
}

func TestFaultsNameTheirPlace(t *testing.T) {
	for _, tc := range faultCases {
		t.Run(tc.name, func(t *testing.T) { wantFault(t, tc.text, tc.want) })
	}
}

func wantFault(t *testing.T, text, want string) {
	t.Helper()
	c, err := parse("/etc/w/warder.yaml", []byte(text), "/home/u")
	if err == nil {
		t.Fatalf("accepted: %+v", c)
	}
	if c != nil {
		t.Error("a Config was returned with the error")
	}
	if first, _, _ := strings.Cut(err.Error(), "\n"); !strings.HasPrefix(first, "/etc/w/warder.yaml:"+want) {
		t.Errorf("got  %s\nwant /etc/w/warder.yaml:%s…", first, want)
	}
}

func TestAllFaultsOfMeaningAreReportedInOrder(t *testing.T) {
	_, err := parse("/w.yaml", []byte("version: 3\npolicy: {mode: x}\naudit: {durable: y}\n"), "/")
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "/w.yaml:1:") || !strings.HasPrefix(lines[2], "/w.yaml:3:") {
		t.Errorf("got %q", lines)
	}
	var at *Error
	if !errors.As(err, &at) || at.Line != 1 || at.Col != 10 {
		t.Errorf("errors.As = %+v", at)
	}
}

func TestLoadReadsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "warder.yaml")
	if err := os.WriteFile(path, []byte(full), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.At("policy.mode"), path+":2:34"; got != want {
		t.Errorf("At = %q, want %q", got, want)
	}
	if got, want := c.At("policy.nothing"), path+":2:9"; got != want {
		t.Errorf("At of an absent key = %q, want its parent's %q", got, want)
	}
	if _, err := Load(path + ".missing"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "hint: ") {
		t.Errorf("missing file: %v", err)
	}
}

func TestLocatePutsAFaultAtItsKey(t *testing.T) {
	c := mustParse(t, "version: 1\ncredentials:\n  a: {hosts: [x]}\n")
	for _, tc := range []struct{ err, want string }{
		{"credentials.a.hosts: not a host; hint: write one", "/etc/w/warder.yaml:3:14: credentials.a.hosts: not a host; hint: write one"},
		{"credentials.a.inject: missing", "/etc/w/warder.yaml:3:6: credentials.a.inject: missing"},
		{"something else: happened", "something else: happened"},
		{"no key at all", "no key at all"},
	} {
		if got := c.Locate(errors.New(tc.err)).Error(); got != tc.want {
			t.Errorf("Locate(%q) = %q, want %q", tc.err, got, tc.want)
		}
	}
	if c.Locate(nil) != nil {
		t.Error("Locate(nil) is an error")
	}
	plain := errors.New("credentials.a: x")
	if Default().Locate(plain) != plain {
		t.Error("an error was located without a file")
	}
}

func TestAFileThatIsTooLargeIsRefused(t *testing.T) {
	text := minimal + "#" + strings.Repeat("x", maxFile)
	wantFault(t, text, "1:1: the file is larger than")
	mustParse(t, text[:maxFile])
}

func TestDeepNestingIsRefused(t *testing.T) {
	text := "version: 1\ncredentials: {a: {paths: " + strings.Repeat("[", 20) + "x" + strings.Repeat("]", 20) + "}}\n"
	wantFault(t, text, "2:27: \"credentials.a.paths[0]\" must be text, not a list")
}

// Text that is cut in the middle of a letter, and addresses that only look like
// one: an error that says where, never a crash.
func TestOddCharacters_F106(t *testing.T) {
	long := strings.Repeat("ü漢🦊", 100)
	for name, c := range map[string]struct{ text, want string }{
		"a listen address with a colon too many": {"version: 1\nproxy: {listen: \"127.0.0.1:9090:\"}\n", "2:"},
		"a listen address of letters":            {"version: 1\nproxy: {listen: \"" + long + "\"}\n", "2:"},
		"a key of 300 letters":                   {"version: 1\n" + long + ": 1\n", "2:"},
		"half a letter":                          {"version: 1\npolicy: {path: \"" + long[:len(long)-2] + "\"}\n", ""},
		"a byte that is not text":                {"version: 1\npolicy: {path: \"a\xffb\"}\n", ""},
		"a control character":                    {"version: 1\npolicy: {path: \"a\x01b\"}\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want != "" {
				wantFault(t, c.text, c.want)
				return
			}
			if _, err := parse("/etc/w/warder.yaml", []byte(c.text), "/home/u"); err != nil && !strings.HasPrefix(err.Error(), "/etc/w/warder.yaml") {
				t.Error(err)
			}
		})
	}
	// A path of many-byte letters is a path.
	c, err := parse("/etc/w/warder.yaml", []byte("version: 1\npolicy: {path: ./"+long+"}\n"), "/home/u")
	if err != nil || c.Policy.Path != "/etc/w/"+long {
		t.Errorf("%+v %v", c, err)
	}
}
