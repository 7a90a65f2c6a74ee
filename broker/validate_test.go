package broker

import (
	"strings"
	"testing"
	"time"

	"warder/internal/config"
)

func valid() config.Credential {
	return config.Credential{
		Source:  config.Source{Local: &config.LocalSource{Env: "TOKEN"}},
		Inject:  config.Inject{Header: "Authorization", Format: "Bearer {value}"},
		Hosts:   []string{"api.github.com"},
		Methods: &[]string{"GET"},
		Paths:   &[]string{"/repos/acme/**"},
		StandIn: map[string]string{"GITHUB_TOKEN": "ghp_{random:36}"},
	}
}

func fromKV() *config.VaultSource {
	return &config.VaultSource{KV: "secret/github", Field: "token", Policies: []string{"run-base", "run-github"}}
}

func TestValidateAcceptsWhatIsDocumented(t *testing.T) {
	for name, edit := range map[string]func(*config.Credential){
		"as it is": func(*config.Credential) {},
		"kv":       func(c *config.Credential) { c.Source = config.Source{Vault: fromKV()} },
		"kv v1":    func(c *config.Credential) { s := fromKV(); s.Version = 1; c.Source = config.Source{Vault: s} },
		"mount": func(c *config.Credential) {
			s := fromKV()
			s.Mount, s.KV = "a/b", "github"
			c.Source = config.Source{Vault: s}
		},
		"read": func(c *config.Credential) {
			s := fromKV()
			s.KV, s.Read = "", "database/creds/ro"
			c.Source = config.Source{Vault: s}
		},
		"file": func(c *config.Credential) { c.Source.Local = &config.LocalSource{File: "/x"} },
		"command": func(c *config.Credential) {
			c.Source.Local = &config.LocalSource{Command: []string{"gh", "auth", "token"}}
		},
		"jwt":       func(c *config.Credential) { c.Source.Local = &config.LocalSource{JWT: &config.LocalJWT{Audience: "a"}} },
		"basic":     func(c *config.Credential) { c.Inject = config.Inject{Basic: &config.Basic{Username: "x"}} },
		"no user":   func(c *config.Credential) { c.Inject = config.Inject{Basic: &config.Basic{}} },
		"query":     func(c *config.Credential) { c.Inject = config.Inject{Query: "key"} },
		"nil lists": func(c *config.Credential) { c.Methods, c.Paths, c.StandIn = nil, nil, nil },
		"none":      func(c *config.Credential) { c.Methods, c.Paths = &[]string{}, &[]string{} },
		"hosts": func(c *config.Credential) {
			c.Hosts = []string{"*.example.com:8443", "10.0.0.1", "[::1]:443", "localhost", "a_b.internal", "*.internal"}
		},
	} {
		c := valid()
		edit(&c)
		if err := Validate("github-read", c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateNamesTheOffendingKey_F013_F014(t *testing.T) {
	src := func(s config.Source) func(*config.Credential) { return func(c *config.Credential) { c.Source = s } }
	vlt := func(edit func(*config.VaultSource)) func(*config.Credential) {
		s := fromKV()
		edit(s)
		return src(config.Source{Vault: s})
	}
	loc := func(l config.LocalSource) func(*config.Credential) { return src(config.Source{Local: &l}) }
	inj := func(i config.Inject) func(*config.Credential) { return func(c *config.Credential) { c.Inject = i } }
	only := func(s config.VaultSource) func(*config.Credential) {
		s.Policies = []string{"run-base"}
		return src(config.Source{Vault: &s})
	}
	sig := func(h config.HMAC) func(*config.Credential) {
		return func(c *config.Credential) {
			c.Source = config.Source{Local: &config.LocalSource{HMAC: &config.LocalHMAC{KeyFile: "/k"}}}
			c.Inject = config.Inject{HMAC: &h}
		}
	}
	hosts := func(h ...string) func(*config.Credential) { return func(c *config.Credential) { c.Hosts = h } }
	methods := func(m ...string) func(*config.Credential) { return func(c *config.Credential) { c.Methods = &m } }
	paths := func(p ...string) func(*config.Credential) { return func(c *config.Credential) { c.Paths = &p } }
	stand := func(k, v string) func(*config.Credential) {
		return func(c *config.Credential) { c.StandIn = map[string]string{k: v} }
	}
	ttl := func(d time.Duration) func(*config.Credential) {
		return loc(config.LocalSource{JWT: &config.LocalJWT{Audience: "a", TTL: config.Duration(d)}})
	}
	for _, c := range []struct {
		edit func(*config.Credential)
		want string
	}{
		{src(config.Source{}), "credentials.x.source: one of"},
		{src(config.Source{Vault: fromKV(), Local: &config.LocalSource{}}), "credentials.x.source: only one of these can be set: local, vault"},
		{loc(config.LocalSource{}), "credentials.x.source.local: one of"},
		{loc(config.LocalSource{Env: "A", File: "/x"}), "credentials.x.source.local: only one of these can be set: env, file"},
		{loc(config.LocalSource{Env: "A-B"}), "credentials.x.source.local.env"},
		{loc(config.LocalSource{Command: []string{""}}), "credentials.x.source.local.command"},
		{loc(config.LocalSource{JWT: &config.LocalJWT{}}), "credentials.x.source.local.jwt.audience"},
		{loc(config.LocalSource{PKI: &config.LocalPKI{}}), "credentials.x.source.local.pki: ca_cert_file"},
		{loc(config.LocalSource{PKI: &config.LocalPKI{CACertFile: "/a", CAKeyFile: "/b", CommonName: "{x}"}}), "credentials.x.source.local.pki.common_name"},
		{loc(config.LocalSource{PKI: &config.LocalPKI{CACertFile: "/a", CAKeyFile: "/b", TTL: 1}}), "credentials.x.source.local.pki.ttl"},
		{loc(config.LocalSource{PKI: &config.LocalPKI{CACertFile: "/a", CAKeyFile: "/b"}}), "credentials.x.inject: a source of kind pki needs the slot mtls"},
		{loc(config.LocalSource{TOTP: &config.LocalTOTP{}}), "credentials.x.source.local.totp.key_file"},
		{loc(config.LocalSource{TOTP: &config.LocalTOTP{KeyFile: "/k", Algorithm: "MD5"}}), "credentials.x.source.local.totp.algorithm"},
		{loc(config.LocalSource{TOTP: &config.LocalTOTP{KeyFile: "/k", Digits: 5}}), "credentials.x.source.local.totp.digits"},
		{loc(config.LocalSource{TOTP: &config.LocalTOTP{KeyFile: "/k", Period: 1500000000}}), "credentials.x.source.local.totp.period"},
		{loc(config.LocalSource{HMAC: &config.LocalHMAC{}}), "credentials.x.source.local.hmac.key_file"},
		{loc(config.LocalSource{HMAC: &config.LocalHMAC{KeyFile: "/k", Algorithm: "md5"}}), "credentials.x.source.local.hmac.algorithm"},
		{loc(config.LocalSource{HMAC: &config.LocalHMAC{KeyFile: "/k"}}), "credentials.x.inject: a source of kind hmac needs the slot hmac"},
		{ttl(time.Second), "credentials.x.source.local.jwt.ttl"},
		{ttl(2 * time.Hour), "credentials.x.source.local.jwt.ttl"},
		{ttl(-time.Minute), "credentials.x.source.local.jwt.ttl"},
		{vlt(func(s *config.VaultSource) { s.KV = "" }), "credentials.x.source.vault: one of"},
		{vlt(func(s *config.VaultSource) { s.Read = "a/b" }), "credentials.x.source.vault: only one"},
		{vlt(func(s *config.VaultSource) { s.KV, s.OIDC = "", "r" }), "credentials.x.source.vault.field: does not belong to oidc"},
		{only(config.VaultSource{OIDC: "a/b"}), "credentials.x.source.vault.oidc"},
		{only(config.VaultSource{JWT: "k"}), "credentials.x.source.vault.audience"},
		{only(config.VaultSource{JWT: "k", Audience: "a", Algorithm: "none"}), "credentials.x.source.vault.algorithm"},
		{only(config.VaultSource{JWT: "k", Audience: "a", TTL: config.Duration(time.Second)}), "credentials.x.source.vault.ttl"},
		{only(config.VaultSource{PKI: "pki/issue/web"}), "credentials.x.source.vault.pki: a path like pki/sign/ROLE"},
		{only(config.VaultSource{PKI: "pki/sign/web", TTL: config.Duration(time.Second)}), "credentials.x.source.vault.ttl"},
		{only(config.VaultSource{HMAC: "k", Algorithm: "md5"}), "credentials.x.source.vault.algorithm"},
		{only(config.VaultSource{TOTP: "k", TTL: 1}), "credentials.x.source.vault.ttl: does not belong to totp"},
		{only(config.VaultSource{AWS: "r"}), "credentials.x.source.vault.aws"},
		{only(config.VaultSource{AWS: "secret/aws"}), "credentials.x.inject: a source of kind aws needs the slot sigv4"},
		{vlt(func(s *config.VaultSource) { s.KV = "secret" }), "credentials.x.source.vault.kv"},
		{vlt(func(s *config.VaultSource) { s.KV = "secret/../sys" }), "credentials.x.source.vault.kv"},
		{vlt(func(s *config.VaultSource) { s.KV = "secret//a" }), "credentials.x.source.vault.kv"},
		{vlt(func(s *config.VaultSource) { s.KV = "secret/a?b" }), "credentials.x.source.vault.kv"},
		{vlt(func(s *config.VaultSource) { s.Version = 3 }), "credentials.x.source.vault.version"},
		{vlt(func(s *config.VaultSource) { s.Field = "" }), "credentials.x.source.vault.field"},
		{vlt(func(s *config.VaultSource) { s.Policies = nil }), "credentials.x.source.vault.policies"},
		{vlt(func(s *config.VaultSource) { s.Policies = []string{"root"} }), "credentials.x.source.vault.policies"},
		{vlt(func(s *config.VaultSource) { s.Policies = []string{"a,b"} }), "credentials.x.source.vault.policies"},
		{inj(config.Inject{}), "credentials.x.inject: one of"},
		{inj(config.Inject{Header: "A", Query: "b"}), "credentials.x.inject: only one of these can be set: header, query"},
		{inj(config.Inject{Query: "b", Format: "{value}"}), "credentials.x.inject.format"},
		{inj(config.Inject{Header: "A b"}), "credentials.x.inject.header"},
		{inj(config.Inject{Header: "host"}), "credentials.x.inject.header"},
		{inj(config.Inject{Header: "transfer-encoding"}), "credentials.x.inject.header"},
		{inj(config.Inject{Header: "A", Format: "Bearer"}), "credentials.x.inject.format"},
		{inj(config.Inject{Header: "A", Format: "{value} {value}"}), "credentials.x.inject.format"},
		{inj(config.Inject{Header: "A", Format: "a\r\n{value}"}), "credentials.x.inject.format"},
		{inj(config.Inject{Basic: &config.Basic{Username: "a:b"}}), "credentials.x.inject.basic.username"},
		{inj(config.Inject{Form: "a\nb"}), "credentials.x.inject.form"},
		{inj(config.Inject{SigV4: &config.SigV4{}}), "credentials.x.inject.sigv4.region"},
		{inj(config.Inject{SigV4: &config.SigV4{Region: "eu-central-1", Service: "S3/x"}}), "credentials.x.inject.sigv4.service"},
		{inj(config.Inject{SigV4: &config.SigV4{Region: "eu-central-1", Service: "s3"}}), "credentials.x.inject.sigv4: needs a source of kind aws"},
		{inj(config.Inject{MTLS: &config.MTLS{}}), "credentials.x.inject.mtls: needs a source of kind pki"},
		{inj(config.Inject{HMAC: &config.HMAC{Header: "X-Sig", Parts: []string{"body"}}}), "credentials.x.inject.hmac: needs a source of kind hmac"},
		{inj(config.Inject{Basic: &config.Basic{UsernameField: "u"}}), "credentials.x.inject.basic.username_field"},
		{inj(config.Inject{Basic: &config.Basic{Username: "u", UsernameField: "u"}}), "credentials.x.inject.basic: username or"},
		{sig(config.HMAC{Parts: []string{"body"}}), "credentials.x.inject.hmac.header"},
		{sig(config.HMAC{Header: "Host", Parts: []string{"body"}}), "credentials.x.inject.hmac.header"},
		{sig(config.HMAC{Header: "X-Sig"}), "credentials.x.inject.hmac.parts: at least one"},
		{sig(config.HMAC{Header: "X-Sig", Parts: []string{"cookie"}}), "credentials.x.inject.hmac.parts"},
		{sig(config.HMAC{Header: "X-Sig", Parts: []string{"header:x-sig"}}), "credentials.x.inject.hmac.parts"},
		{sig(config.HMAC{Header: "X-Sig", Parts: []string{"body", "path"}}), "credentials.x.inject.hmac.parts: body is the last"},
		{sig(config.HMAC{Header: "X-Sig", Parts: []string{"timestamp", "body"}}), "credentials.x.inject.hmac.timestamp_header"},
		{sig(config.HMAC{Header: "X-Sig", Parts: []string{"body"}, TimestampHeader: "X-T"}), "credentials.x.inject.hmac.timestamp_header"},
		{sig(config.HMAC{Header: "X-Sig", Parts: []string{"timestamp"}, TimestampHeader: "x-sig"}), "credentials.x.inject.hmac.timestamp_header"},
		{sig(config.HMAC{Header: "X-Sig", Parts: []string{"body"}, Encoding: "rot13"}), "credentials.x.inject.hmac.encoding"},
		{sig(config.HMAC{Header: "X-Sig", Parts: []string{"body"}, Format: "x"}), "credentials.x.inject.hmac.format"},
		{hosts(), "credentials.x.hosts: at least one"},
		{hosts("ok.test", ""), "credentials.x.hosts"},
		{hosts("https://a.test"), "credentials.x.hosts"},
		{hosts("a.test/path"), "credentials.x.hosts"},
		{hosts("a.test:99999"), "credentials.x.hosts"},
		{hosts("a.test:0443"), "credentials.x.hosts"},
		{hosts("a.test."), "credentials.x.hosts"},
		{hosts("bücher.test"), "credentials.x.hosts"},
		{hosts("a*.test"), "credentials.x.hosts"},
		{hosts("*"), "credentials.x.hosts"},
		{hosts("*.com"), "credentials.x.hosts"},
		{hosts("*.co.uk"), "credentials.x.hosts"},
		{hosts("a.example.*"), "credentials.x.hosts"},
		{hosts("1.2.3"), "credentials.x.hosts"},
		{hosts("fd00::1"), "credentials.x.hosts"},
		{hosts("[1.2.3.4]"), "credentials.x.hosts"},
		{methods("get"), "write GET"},
		{methods("G ET"), "credentials.x.methods"},
		{methods("CONNECT"), "credentials.x.methods"},
		{paths("repos"), "credentials.x.paths"},
		{paths("/a*"), "credentials.x.paths"},
		{paths("/a/../b"), "credentials.x.paths"},
		{paths("/a?b"), "credentials.x.paths"},
		{paths("/%zz"), "credentials.x.paths"},
		{stand("A B", "x{random:20}"), "credentials.x.stand_in"},
		{stand("A", "static"), "credentials.x.stand_in.A"},
		{stand("A", "x{random:7}"), "credentials.x.stand_in.A"},
		{stand("A", "x{random:999}"), "credentials.x.stand_in.A"},
		{stand("A", "x{random:20"), "credentials.x.stand_in.A"},
		{stand("A", "x{other}{random:20}"), "credentials.x.stand_in.A"},
	} {
		cred := valid()
		c.edit(&cred)
		if err := Validate("x", cred); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want %q, got %v", c.want, err)
		}
	}
	for _, name := range []string{"", "A", "-a", "a/b", "a b", "..", strings.Repeat("a", 65)} {
		if err := Validate(name, valid()); err == nil {
			t.Errorf("name %q: no error", name)
		}
	}
}
