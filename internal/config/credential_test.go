package config

import "testing"

// credential is a good one; each case replaces one of its lines.
func credential(source, inject, rest string) string {
	return "version: 1\nvault: {address: \"https://v:8200\", token_role: r, auth: {method: token_file, token_file: t}}\ncredentials:\n  a:\n" +
		"    source: " + source + "\n    inject: " + inject + "\n" + rest
}

const (
	goodSource = "{local: {env: TOKEN}}"
	goodInject = "{header: Authorization}"
	goodRest   = "    hosts: [a.example]\n"
)

func TestCredentialFaults(t *testing.T) {
	mustParse(t, credential(goodSource, goodInject, goodRest)) // positive control
	for _, tc := range []struct{ name, source, inject, rest, want string }{
		{"no source", "{}", goodInject, goodRest, "5:13: credentials.a.source needs one of vault, local"},
		{"both sources", "{local: {env: A}, vault: {kv: a/b, field: f, policies: [p]}}", goodInject, goodRest, "5:31: credentials.a.source takes one of"},
		{"no kind in vault", "{vault: {field: f, policies: [p]}}", goodInject, goodRest, "5:21: credentials.a.source.vault needs one of kv, read"},
		{"two kinds in vault", "{vault: {kv: a/b, read: c, field: f, policies: [p]}}", goodInject, goodRest, "5:31: credentials.a.source.vault takes one of"},
		{"no kind in local", "{local: {}}", goodInject, goodRest, "5:21: credentials.a.source.local needs one of env, file"},
		{"kv without a path", "{vault: {kv: secret, field: f, policies: [p]}}", goodInject, goodRest, "5:26: credentials.a.source.vault.kv: "},
		{"kv with dot segments", "{vault: {kv: a/../sys, field: f, policies: [p]}}", goodInject, goodRest, "5:26: credentials.a.source.vault.kv: "},
		{"kv without a field", "{vault: {kv: a/b, policies: [p]}}", goodInject, goodRest, "5:14: credentials.a.source.vault.field is required"},
		{"kv version 3", "{vault: {kv: a/b, field: f, policies: [p], version: 3}}", goodInject, goodRest, "5:56: credentials.a.source.vault.version"},
		{"no policies", "{vault: {kv: a/b, field: f}}", goodInject, goodRest, "5:14: credentials.a.source.vault.policies is required"},
		{"the root policy", "{vault: {kv: a/b, field: f, policies: [root]}}", goodInject, goodRest, `5:52: credentials.a.source.vault.policies: "root"`},
		{"a value where the variable's name belongs", "{local: {env: \"not a name\"}}", goodInject, goodRest, "5:27: credentials.a.source.local.env is not the name"},
		{"an empty command", "{local: {command: []}}", goodInject, goodRest, "5:31: credentials.a.source.local.command is empty"},
		{"a jwt without an audience", "{local: {jwt: {subject: s}}}", goodInject, goodRest, "5:22: credentials.a.source.local.jwt.audience is required"},
		{"a jwt that lives a day", "{local: {jwt: {audience: a, ttl: 24h}}}", goodInject, goodRest, "5:46: credentials.a.source.local.jwt.ttl is at most 1h"},
		{"no slot", goodSource, "{}", goodRest, "6:13: credentials.a.inject needs one of header"},
		{"two slots", goodSource, "{header: A, query: b}", goodRest, "6:25: credentials.a.inject takes one of"},
		{"a header that is not one", goodSource, "{header: \"A B\"}", goodRest, "6:22: credentials.a.inject.header: "},
		{"the host header", goodSource, "{header: Host}", goodRest, "6:22: credentials.a.inject.header: Host cannot carry"},
		{"a format without the value", goodSource, "{header: A, format: Bearer}", goodRest, "6:33: credentials.a.inject.format must hold {value} once"},
		{"a format with a line break", goodSource, "{header: A, format: \"{value}\\n\"}", goodRest, "6:33: credentials.a.inject.format must hold {value} once"},
		{"a format without a header", goodSource, "{query: q, format: \"{value}\"}", goodRest, "6:24: credentials.a.inject.format belongs to header"},
		{"basic with a colon", goodSource, "{basic: {username: \"a:b\"}}", goodRest, "6:32: credentials.a.inject.basic.username"},
		{"no hosts", goodSource, goodInject, "", "4:3: credentials.a.hosts is required"},
		{"empty hosts", goodSource, goodInject, "    hosts: []\n", "7:12: credentials.a.hosts is required"},
		{"a URL as host", goodSource, goodInject, "    hosts: [\"https://a.example\"]\n", "7:13: credentials.a.hosts: "},
		{"upper case host", goodSource, goodInject, "    hosts: [A.example]\n", "7:13: credentials.a.hosts: "},
		{"any host", goodSource, goodInject, "    hosts: [\"*\"]\n", "7:13: credentials.a.hosts: "},
		{"part of a label", goodSource, goodInject, "    hosts: [\"a*.example\"]\n", "7:13: credentials.a.hosts: "},
		{"port out of range", goodSource, goodInject, "    hosts: [\"a.example:65536\"]\n", "7:13: credentials.a.hosts: "},
		{"trailing dot", goodSource, goodInject, "    hosts: [a.example.]\n", "7:13: credentials.a.hosts: "},
		{"lower case method", goodSource, goodInject, goodRest + "    methods: [get]\n", "8:15: credentials.a.methods: "},
		{"CONNECT", goodSource, goodInject, goodRest + "    methods: [CONNECT]\n", "8:15: credentials.a.methods: "},
		{"relative path", goodSource, goodInject, goodRest + "    paths: [\"repos/**\"]\n", "8:13: credentials.a.paths: "},
		{"path with a query", goodSource, goodInject, goodRest + "    paths: [\"/a?b\"]\n", "8:13: credentials.a.paths: "},
		{"stand-in without randomness", goodSource, goodInject, goodRest + "    stand_in: {T: fixed}\n", "8:19: credentials.a.stand_in.T has no {random:N}"},
		{"stand-in that is guessable", goodSource, goodInject, goodRest + "    stand_in: {T: \"t_{random:4}\"}\n", "8:19: credentials.a.stand_in.T: N of"},
		{"stand-in variable", goodSource, goodInject, goodRest + "    stand_in: {\"A B\": \"t_{random:8}\"}\n", "8:16: stand_in: "},
	} {
		t.Run(tc.name, func(t *testing.T) { wantFault(t, credential(tc.source, tc.inject, tc.rest), tc.want) })
	}
}

func TestCredentialNames(t *testing.T) {
	wantFault(t, "version: 1\ncredentials:\n  \"a b\": {}\n", `3:10: credentials: "a b" is not a name`)
}

func TestVaultSourceNeedsAVault(t *testing.T) {
	wantFault(t, "version: 1\ncredentials:\n  a:\n    source: {vault: {kv: a/b, field: f, policies: [p]}}\n    inject: {query: k}\n    hosts: [a.example]\n",
		"4:21: credentials.a.source.vault needs a vault to talk to")
}

func TestVaultAddress(t *testing.T) {
	for addr, ok := range map[string]bool{
		"https://vault.example:8200":      true,
		"https://vault.example":           true,
		"https://[2001:db8::1]:8200":      true,
		"http://127.0.0.1:8200":           true,
		"http://[::1]:8200":               true,
		"http://localhost:8200":           true,
		"unix:///run/vault.sock":          true,
		"":                                false,
		"http://vault.example:8200":       false,
		"http://127.0.0.1.example:8200":   false,
		"http://localhost.example":        false,
		"http://10.0.0.1:8200":            false,
		"https://vault.example:8200/v1":   false,
		"https://user:pw@vault.example":   false,
		"https://vault.example?x=1":       false,
		"https://vault.example:99999":     false,
		"unix://run/vault.sock":           false,
		"unix:run":                        false,
		"vault.example:8200":              false,
		"ftp://vault.example":             false,
		"https://":                        false,
		"https://vault.example:8200#frag": false,
	} {
		msg, _ := badVaultAddress(addr)
		if (msg == "") != ok {
			t.Errorf("badVaultAddress(%q) = %q, want ok = %v", addr, msg, ok)
		}
	}
}

func TestVaultAuth(t *testing.T) {
	const head = "version: 1\nvault:\n  address: https://v\n  token_role: r\n  auth: "
	for _, good := range []string{
		"{method: approle, role_id_file: a, secret_id_file: b, wrapped: true, mount: m}",
		"{method: token_file, token_file: a}",
		"{method: jwt, role: r, jwt_file: a}",
		"{method: kubernetes, role: r}",
		"{method: cert, cert_file: a, key_file: b}",
	} {
		mustParse(t, head+good+"\n")
	}
	for _, tc := range []struct{ auth, want string }{
		{"{method: approle, role_id_file: a}", "5:3: vault.auth.secret_id_file is required by method approle"},
		{"{method: token_file, token_file: a, role: r}", "5:45: vault.auth.role does not belong to method token_file"},
		{"{method: token_file, token_file: a, wrapped: true}", "5:45: vault.auth.wrapped does not belong"},
		{"{method: password}", "5:18: vault.auth.method must be approle"},
		{"{token_file: a}", "5:3: vault.auth.method must be approle"},
	} {
		t.Run(tc.auth, func(t *testing.T) { wantFault(t, head+tc.auth+"\n", tc.want) })
	}
	wantFault(t, "version: 1\nvault: {address: \"https://v\", auth: {method: token_file, token_file: t}}\n", "2:1: vault.token_role is required")
}
