package config

import "testing"

func TestVaultSourceNeedsAVault(t *testing.T) {
	wantFault(t, "version: 1\ncredentials:\n  a:\n    source: {vault: {kv: a/b, field: f, policies: [p]}}\n    inject: {query: k}\n    hosts: [a.example]\n",
		"4:14: credentials.a.source.vault needs a vault to talk to")
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
