package broker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"warder/internal/identity"
)

// Setup is what an operator applies to Vault for a configuration.
type Setup struct {
	Policies []SetupPolicy `json:"policies"`
	Engines  []string      `json:"engines"` // commands that enable engines, where they are not there yet
	Commands []string      `json:"commands"`
}

// SetupPolicy is one ACL policy.
type SetupPolicy struct {
	Name string `json:"name"`
	HCL  string `json:"hcl"`
}

// brokerPolicy is the name of the broker's own policy in what Setup prints.
const brokerPolicy = "broker"

func rule(path, capability string) string {
	return fmt.Sprintf("path %q { capabilities = [%q] }\n", path, capability)
}

// Setup derives policies, engines, token role and login from the configuration. It
// asks nobody. Of the policies of a credential the first lets the token look at and
// give up itself, the last opens the credential's path.
func (b *Broker) Setup() (Setup, error) {
	if b.vault == nil {
		return Setup{}, fmt.Errorf("broker: setup: there is no vault section in the configuration")
	}
	v := b.vault
	own := rule("auth/token/create/"+v.role, "update") + rule("auth/token/lookup-accessor", "update") + rule("auth/token/renew-accessor", "update") + rule("auth/token/revoke-accessor", "update") +
		rule("auth/token/lookup-self", "read") + rule("auth/token/renew-self", "update") + rule("auth/token/revoke-self", "update")
	runs := map[string]map[string]bool{} // policy → rules
	engines := map[string]bool{}
	for _, src := range b.vaultSources() {
		first, last := src.cfg.Policies[0], src.cfg.Policies[len(src.cfg.Policies)-1]
		for _, p := range src.cfg.Policies {
			if runs[p] == nil {
				runs[p] = map[string]bool{}
			}
		}
		runs[first][rule("auth/token/lookup-self", "read")+rule("auth/token/revoke-self", "update")] = true
		runs[last][rule(src.calledPath(), src.capability())] = true
		if src.mayLease() {
			if line := rule("sys/leases/revoke/"+src.path+"/*", "update"); !strings.Contains(own, line) {
				own += line
			}
		}
		if e := src.engine(); e != "" {
			engines[e] = true
		}
	}
	out := Setup{Policies: []SetupPolicy{{brokerPolicy, own}}, Engines: slices.Sorted(maps.Keys(engines))}
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		out.Policies = append(out.Policies, SetupPolicy{name, strings.Join(slices.Sorted(maps.Keys(runs[name])), "")})
	}
	out.Commands = []string{v.roleCommand(slices.Sorted(maps.Keys(runs)))}
	out.Commands = append(out.Commands, v.loginCommands()...)
	return out, nil
}

func (b *Broker) vaultSources() []*vaultSource {
	var out []*vaultSource
	for _, name := range slices.Sorted(maps.Keys(b.creds)) {
		if src, ok := b.creds[name].source.(*vaultSource); ok {
			out = append(out, src)
		}
	}
	return out
}

// calledPath is the path of the call that gives the value.
func (c *vaultSource) calledPath() string {
	if c.kind == KindJWT {
		return c.path + jwtAlgorithms[jwtAlgorithm(c.cfg.Algorithm)].hash
	}
	return c.path
}

func (c *vaultSource) mayLease() bool {
	return c.kind == KindRead || c.kind == KindPKI || c.kind == KindAWS && isAWSEngine(c.cfg)
}

// engine is the command that enables the engine of a kind; "" where the path does
// not say what it is, or the engine is always there.
func (c *vaultSource) engine() string {
	mount := func(before string) string {
		m, _, _ := strings.Cut(c.path, before)
		return m
	}
	switch c.kind {
	case KindKV, KindAWS:
		switch {
		case c.mayLease():
			return "vault secrets enable -path=" + shellWord(strings.Join(strings.Split(c.path, "/")[:strings.Count(c.path, "/")-1], "/")) + " aws"
		case c.cfg.Version == 1 && c.cfg.Mount != "":
			return "vault secrets enable -path=" + shellWord(strings.Trim(c.cfg.Mount, "/")) + " -version=1 kv"
		case c.cfg.Version == 1:
			return "vault secrets enable -path=" + shellWord(mount("/")) + " -version=1 kv"
		}
		return "vault secrets enable -path=" + shellWord(mount("/data/")) + " -version=2 kv"
	case KindJWT:
		return "vault secrets enable -path=" + shellWord(mount("/sign/")) + " transit"
	case KindHMAC:
		return "vault secrets enable -path=" + shellWord(mount("/hmac/")) + " transit"
	case KindTOTP:
		return "vault secrets enable -path=" + shellWord(mount("/code/")) + " totp"
	case KindPKI:
		return "vault secrets enable -path=" + shellWord(mount("/sign/")) + " pki"
	}
	return ""
}

// shellWord quotes what a shell would not take as one word.
func shellWord(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (v *vault) roleCommand(policies []string) string {
	allowed := "allowed_policies=" + strings.Join(policies, ",")
	if !slices.ContainsFunc(policies, func(p string) bool { return !strings.HasPrefix(p, "run-") }) {
		allowed = "allowed_policies_glob=run-*"
	}
	return "vault write " + shellWord("auth/token/roles/"+v.role) + " " + shellWord(allowed) +
		" disallowed_policies=root," + brokerPolicy + " orphan=false renewable=true token_type=service token_explicit_max_ttl=1h token_no_default_policy=true"
}

func (v *vault) loginCommands() []string {
	const token = " token_policies=" + brokerPolicy + " token_period=10m token_no_default_policy=true"
	role := shellWord(cmp.Or(v.auth.Role, brokerPolicy))
	mount := shellWord(v.mount())
	enable := "vault auth enable -path=" + mount + " "
	switch v.auth.Method {
	case "approle":
		return []string{enable + "approle", "vault write auth/" + mount + "/role/" + role + token}
	case "jwt":
		return []string{enable + "jwt", "vault write auth/" + mount + "/role/" + role + " role_type=jwt user_claim=sub bound_audiences=AUDIENCE bound_subject=SUBJECT" + token}
	case "kubernetes":
		return []string{enable + "kubernetes", "vault write auth/" + mount + "/role/" + role + " bound_service_account_names=NAME bound_service_account_namespaces=NAMESPACE" + token}
	case "cert":
		return []string{enable + "cert", "vault write auth/" + mount + "/certs/" + role + " certificate=@" + shellWord(v.auth.CertFile) + token}
	}
	return []string{"(umask 077; vault token create -orphan -policy=" + brokerPolicy + " -period=10m -no-default-policy -field=token > " + shellWord(v.auth.TokenFile) + ")"}
}

// SetupCheck is one thing that was tried against the real Vault.
type SetupCheck struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

// CheckSetup does what a run would do: it logs in, makes a token for each set of
// policies, fetches each credential of Vault's once, and takes everything back. It
// also tries that the broker's own token reads none of the stored values.
func (b *Broker) CheckSetup(ctx context.Context, j Journal) []SetupCheck {
	v := b.vault
	if v == nil {
		return []SetupCheck{{Name: "vault", Detail: "there is no vault section in the configuration", Fix: "add one to warder.yaml"}}
	}
	l, err := v.session(ctx)
	if err != nil {
		return []SetupCheck{{Name: "login", Detail: err.Error(), Fix: "vault.auth, and the login that `warder vault setup --print` shows"}}
	}
	checks := []SetupCheck{{Name: "login", OK: true, Detail: v.auth.Method + " at " + v.conn.address}}
	if l.made {
		checks = append(checks, v.tryOwn(ctx, l, "auth/token/renew-self"))
	}
	checks = append(checks, b.checkRole(ctx, j)...)
	for _, src := range b.vaultSources() {
		if src.kind == KindKV || src.kind == KindAWS && !src.mayLease() {
			checks = append(checks, src.checkBlind(ctx, l))
		}
		checks = append(checks, b.checkCredential(ctx, src, j))
	}
	return checks
}

func (v *vault) tryOwn(ctx context.Context, l *login, path string) SetupCheck {
	c := SetupCheck{Name: "broker: " + path, OK: true, Detail: "allowed"}
	_, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: path, token: l.token, body: map[string]any{}, urgent: true})
	if err != nil {
		c.OK, c.Detail, c.Fix = false, err.Error(), strings.TrimSpace(rule(path, "update"))+" in the broker's policy"
	}
	return c
}

// checkRole makes a token for each set of policies, looks it up and gives it back.
func (b *Broker) checkRole(ctx context.Context, j Journal) []SetupCheck {
	var checks []SetupCheck
	s := newSession(b, identity.Run{ID: identity.NewRunID()}, nil, nil, j)
	defer s.endWithin(ctx)
	seen := map[*tokenSet]bool{}
	for _, src := range b.vaultSources() {
		set := s.vault.set(src.cfg.Policies)
		if seen[set] {
			continue
		}
		seen[set] = true
		c := SetupCheck{Name: "token role " + b.vault.role + ": " + strings.Join(set.policies, ", ")}
		t, err := s.vault.get(ctx, set, s.run.ID)
		if err != nil {
			c.Detail, c.Fix = err.Error(), strings.TrimSpace(rule("auth/token/create/"+b.vault.role, "update"))+" in the broker's policy, and the token role that `warder vault setup --print` shows"
			checks = append(checks, c)
			continue
		}
		c.OK, c.Detail = true, fmt.Sprintf("a token for %s", t.notAfter.Sub(b.opts.Clock()).Round(time.Second))
		checks = append(checks, c, b.vault.checkAccessor(ctx, t, "lookup-accessor"), b.vault.checkAccessor(ctx, t, "renew-accessor"))
	}
	return checks
}

func (v *vault) checkAccessor(ctx context.Context, t *runToken, call string) SetupCheck {
	path := "auth/token/" + call
	c := SetupCheck{Name: "broker: " + path, OK: true, Detail: "allowed"}
	_, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: path, token: t.login.token, body: map[string]any{"accessor": t.accessor}, urgent: true})
	if err != nil {
		c.OK, c.Detail, c.Fix = false, err.Error(), strings.TrimSpace(rule(path, "update"))+" in the broker's policy"
	}
	return c
}

// checkBlind tries a stored value with the broker's own token.
func (c *vaultSource) checkBlind(ctx context.Context, l *login) SetupCheck {
	out := SetupCheck{Name: "broker: " + c.path, OK: true, Detail: "not readable, as it should be"}
	_, err := c.v.conn.do(ctx, vaultCall{method: http.MethodGet, path: c.path, token: l.token, urgent: true})
	switch {
	case err == nil:
		out.OK, out.Detail, out.Fix = false, "the broker's own token can read it", "take the path out of the broker's policies: only the tokens of runs read"
	case !isClass(err, classDenied):
		out.Detail = "not read: " + err.Error()
	}
	return out
}

// checkCredential fetches and takes back as a run does. What signs is asked to.
func (b *Broker) checkCredential(ctx context.Context, src *vaultSource, j Journal) SetupCheck {
	c := SetupCheck{Name: "credential " + src.name}
	fix := fmt.Sprintf("%s in one of the policies %s", strings.TrimSpace(rule(src.calledPath(), src.capability())), strings.Join(src.cfg.Policies, ", "))
	s, err := b.Begin(identity.Run{ID: identity.NewRunID()}, []string{src.name}, j)
	if err != nil {
		c.Detail = err.Error()
		return c
	}
	m, _, err := s.material(ctx, s.entries[src.name], "check")
	if err == nil && m.sign != nil {
		_, _, err = m.sign(ctx, []byte("warder vault setup --check"), "check")
	}
	out := s.endWithin(ctx)
	if err != nil {
		c.Detail, c.Fix = causeOf(err).Error(), fix
		return c
	}
	for _, o := range out {
		c.OK, c.Detail = true, "fetched; "+strings.TrimSpace(o.Status+" "+o.Detail)
		if o.Status == StatusUnconfirmed {
			c.OK = false
			c.Fix = strings.TrimSpace(rule("auth/token/revoke-accessor", "update")) + " in the broker's policy"
			if o.LeaseID != "" {
				c.Fix = strings.TrimSpace(rule("sys/leases/revoke/"+src.path+"/*", "update")) + " in the broker's policy"
			}
		}
	}
	return c
}
