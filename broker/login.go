package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/vault/api"

	"warder/internal/config"
	"warder/internal/secret"
)

const serviceAccountToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// vault is the connection, its login and what all runs share of it.
type vault struct {
	conn    *conn
	auth    config.Auth
	role    string
	journal Journal
	onLease func(event, runID string, o Outcome)
	log     *slog.Logger

	mu        sync.Mutex // one login at a time
	current   *login
	former    []*login
	unwrapped bool // the wrapped SecretID has been used
	closed    bool
}

// login is a token of the broker's own.
type login struct {
	token    secret.String
	accessor string // "" for a token from a file
	made     bool   // by us: so renewed and revoked by us
	stop     context.CancelFunc
	done     chan struct{} // closed when the keeper has ended

	mu      sync.Mutex
	dead    bool
	expires deadline // zero: not known
}

func newVault(o Options) (*vault, error) {
	c, err := newConn(*o.Vault, o.Clock)
	if err != nil {
		return nil, err
	}
	a := o.Vault.Auth
	if err := validateAuth(a, o.OneShot); err != nil {
		return nil, err
	}
	if o.Vault.TokenRole == "" || strings.ContainsAny(o.Vault.TokenRole, "/?#") || !validFieldText(o.Vault.TokenRole) {
		return nil, errors.New("vault.token_role: the name of the role that makes the runs' tokens is needed")
	}
	if o.Journal == nil {
		return nil, errors.New("broker: a journal is needed with Vault")
	}
	return &vault{conn: c, auth: a, role: o.Vault.TokenRole, journal: o.Journal, onLease: o.OnLease, log: o.Log}, nil
}

func validateAuth(a config.Auth, oneShot bool) error {
	need := map[string]map[string]string{
		"token_file": {"token_file": a.TokenFile},
		"approle":    {"role_id_file": a.RoleIDFile, "secret_id_file": a.SecretIDFile},
		"jwt":        {"role": a.Role, "jwt_file": a.JWTFile},
		"kubernetes": {"role": a.Role},
		"cert":       {"cert_file": a.CertFile, "key_file": a.KeyFile},
	}
	keys, ok := need[a.Method]
	if !ok {
		return fmt.Errorf("vault.auth.method: %q is none of approle, token_file, jwt, kubernetes, cert", a.Method)
	}
	for _, k := range []string{"token_file", "role_id_file", "secret_id_file", "role", "jwt_file", "cert_file", "key_file"} {
		if v, needed := keys[k]; needed && v == "" {
			return fmt.Errorf("vault.auth.%s: needed with method %s", k, a.Method)
		}
	}
	if a.Mount != "" && (strings.Contains(a.Mount, "..") || !policyName.MatchString(strings.ToLower(a.Mount))) {
		return fmt.Errorf("vault.auth.mount: %q is not the path of a mount", a.Mount)
	}
	if a.Wrapped && a.Method != "approle" {
		return errors.New("vault.auth.wrapped: only with method approle")
	}
	if a.Wrapped && oneShot {
		return errors.New("vault.auth.wrapped: a wrapped SecretID works once, so it is for a process that stays; hint: for single runs use method token_file, jwt or cert, or a SecretID that is not wrapped")
	}
	return nil
}

// session returns a login that is not known to be dead, logging in when there is none.
func (v *vault) session(ctx context.Context) (*login, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, errors.New("vault: the broker is closed")
	}
	if v.current != nil && !v.current.isDead(v.conn.clock()) {
		return v.current, nil
	}
	l, err := v.authenticate(ctx)
	if err != nil {
		return nil, err
	}
	if v.current != nil {
		v.former = append(v.former, v.current)
	}
	v.current = l
	return l, nil
}

// withLogin runs fn with the broker's token. When the token turns out to be dead
// it logs in once more and repeats fn once.
func (v *vault) withLogin(ctx context.Context, fn func(l *login) error) error {
	for attempt := 0; ; attempt++ {
		l, err := v.session(ctx)
		if err != nil {
			return err
		}
		err = fn(l)
		if !isClass(err, classDenied) || attempt > 0 || v.alive(ctx, l.token) {
			return err
		}
		l.kill()
		v.log.Warn("the token for Vault is no longer valid, logging in again", "method", v.auth.Method)
	}
}

// alive reports false only when Vault itself says that it does not know the token.
func (v *vault) alive(ctx context.Context, token secret.String) bool {
	_, err := v.conn.do(ctx, vaultCall{method: http.MethodGet, path: "auth/token/lookup-self", token: token, urgent: true})
	return !isClass(err, classDenied)
}

func (v *vault) mount() string {
	if v.auth.Mount != "" {
		return strings.Trim(v.auth.Mount, "/")
	}
	return v.auth.Method
}

// authenticate gets a token by the configured method. v.mu is held.
func (v *vault) authenticate(ctx context.Context) (*login, error) {
	body := map[string]any{}
	var err error
	switch v.auth.Method {
	case "token_file":
		return v.fromFile()
	case "approle":
		body, err = v.appRole(ctx)
	case "jwt":
		body["role"] = v.auth.Role
		body["jwt"], err = readText(v.auth.JWTFile)
	case "kubernetes":
		body["role"] = v.auth.Role
		if v.auth.JWTFile != "" {
			body["jwt"], err = readText(v.auth.JWTFile)
		} else { // the kubelet's file: not the caller's, and not writable in the pod
			var raw []byte
			raw, err = os.ReadFile(serviceAccountToken)
			body["jwt"] = strings.TrimSpace(string(raw))
		}
	case "cert":
		if v.auth.Role != "" {
			body["name"] = v.auth.Role
		}
	default:
		err = fmt.Errorf("no login method %q", v.auth.Method)
	}
	if err != nil {
		return nil, fmt.Errorf("vault login: %w", err)
	}
	sec, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "auth/" + v.mount() + "/login", body: body})
	if err != nil {
		return nil, fmt.Errorf("vault login: %w", err)
	}
	return v.accept(ctx, sec)
}

func (v *vault) fromFile() (*login, error) {
	t, err := readText(v.auth.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("vault login: %w", err)
	}
	if v.current != nil && v.current.token.Reveal() == t {
		return nil, fmt.Errorf("vault login: the token in %s is not valid any more", v.auth.TokenFile)
	}
	return &login{token: secret.New(t)}, nil
}

func readText(path string) (string, error) {
	raw, err := readSecretFile(path)
	if err != nil {
		return "", err
	}
	defer clear(raw)
	t := strings.TrimSpace(string(raw))
	if err := checkValue(t); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func (v *vault) appRole(ctx context.Context) (map[string]any, error) {
	role, err := readText(v.auth.RoleIDFile)
	if err != nil {
		return nil, err
	}
	id, err := readText(v.auth.SecretIDFile)
	if err != nil {
		return nil, err
	}
	if v.auth.Wrapped {
		if id, err = v.unwrap(ctx, id); err != nil {
			return nil, err
		}
	}
	return map[string]any{"role_id": role, "secret_id": id}, nil
}

// unwrap exchanges a wrapping token for the SecretID. Where it was made is
// checked first; that it is used up already means that somebody else has it.
func (v *vault) unwrap(ctx context.Context, token string) (string, error) {
	if v.unwrapped {
		return "", errors.New("the wrapped SecretID has been used; hint: deliver a new one and restart")
	}
	sec, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "sys/wrapping/lookup", body: map[string]any{"token": token}})
	if err == nil {
		made, _ := dataOf(sec)["creation_path"].(string)
		prefix := "auth/" + v.mount() + "/role/"
		if !strings.HasPrefix(made, prefix) || !strings.HasSuffix(made, "/secret-id") || (v.auth.Role != "" && made != prefix+v.auth.Role+"/secret-id") {
			return "", fmt.Errorf("the wrapping token was made by %q and not by %s…/secret-id", shortText(made), prefix)
		}
		sec, err = v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "sys/wrapping/unwrap", token: secret.New(token)})
	}
	if isClass(err, classInvalid) || isClass(err, classDenied) {
		v.unwrapped = true
		v.log.Error("the wrapped SecretID was already used: somebody else may hold it; revoke it", "auth", v.mount())
	}
	if err != nil {
		return "", err
	}
	v.unwrapped = true
	id, _ := dataOf(sec)["secret_id"].(string)
	if id == "" {
		return "", errors.New("the wrapped answer holds no SecretID")
	}
	return id, nil
}

func dataOf(sec *api.Secret) map[string]any {
	if sec == nil {
		return nil
	}
	return sec.Data
}

// accept journals a fresh login before its first use and starts its keeper.
func (v *vault) accept(ctx context.Context, sec *api.Secret) (*login, error) {
	if sec == nil || sec.Auth == nil || sec.Auth.ClientToken == "" || sec.Auth.Accessor == "" {
		return nil, errors.New("vault login: no service token in the answer")
	}
	l := &login{token: secret.New(sec.Auth.ClientToken), accessor: sec.Auth.Accessor, made: true}
	if slices.Contains(sec.Auth.Policies, "root") {
		v.revokeSelf(ctx, l)
		return nil, errors.New("vault login: the role gives a root token")
	}
	ttl := time.Duration(sec.Auth.LeaseDuration) * time.Second
	if ttl <= 0 {
		v.revokeSelf(ctx, l)
		return nil, errors.New("vault login: the role gives a token that never ends")
	}
	if err := v.extend(ctx, l, ttl); err != nil {
		v.revokeSelf(ctx, l)
		return nil, err
	}
	if sec.Auth.Renewable {
		kctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		l.stop, l.done = stop, make(chan struct{})
		go func() {
			defer close(l.done)
			v.keep(kctx, l, ttl)
		}()
	}
	return l, nil
}

// extend notes the new end of a login, in the journal first.
func (v *vault) extend(ctx context.Context, l *login, ttl time.Duration) error {
	end := v.conn.clock().Add(ttl)
	err := v.journal.Put(ctx, JournalEntry{
		Address: v.conn.address, Namespace: v.conn.namespace, TokenRole: v.role,
		Accessor: l.accessor, NotAfter: end.UTC().Round(0), Login: true,
	})
	if err != nil {
		return fmt.Errorf("vault login: journal: %w", err)
	}
	l.mu.Lock()
	l.expires = deadlineAt(end)
	l.mu.Unlock()
	return nil
}

// keep renews a login until ctx ends or Vault does not know it any more.
func (v *vault) keep(ctx context.Context, l *login, ttl time.Duration) {
	wait := ttl / 3
	for {
		timer := time.NewTimer(max(wait-rand.N(wait/10+1), 100*time.Millisecond))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		sec, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "auth/token/renew-self", token: l.token, body: map[string]any{}, urgent: true})
		switch {
		case err == nil && sec != nil && sec.Auth != nil && sec.Auth.LeaseDuration > 0:
			ttl = time.Duration(sec.Auth.LeaseDuration) * time.Second
			wait = ttl / 3
			if err := v.extend(ctx, l, ttl); err != nil {
				v.log.Error("the renewed login could not be journaled", "cause", err.Error())
			}
		case isClass(err, classDenied) && !v.alive(ctx, l.token):
			l.kill()
			v.log.Warn("the token for Vault is no longer valid")
			return
		case l.isDead(v.conn.clock()):
			return
		default:
			wait = max(ttl/20, 500*time.Millisecond)
		}
	}
}

func (l *login) kill() {
	l.mu.Lock()
	l.dead = true
	l.mu.Unlock()
}

func (l *login) isDead(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead || (!l.expires.mono.IsZero() && l.expires.passed(now))
}

// revokeSelf gives up a token that is not accepted; its own end is the backstop.
func (v *vault) revokeSelf(ctx context.Context, l *login) {
	ctx = context.WithoutCancel(ctx)
	if _, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "auth/token/revoke-self", token: l.token, urgent: true}); err != nil {
		v.log.Warn("a refused login could not be revoked", "cause", err.Error())
	}
	l.token.Wipe()
}

// close ends the keepers and revokes what we made, with growing pauses until ctx ends.
func (v *vault) close(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	all := v.former
	if v.current != nil {
		all = append(all, v.current)
	}
	var errs []error
	for _, l := range all {
		if l.stop != nil {
			l.stop()
			<-l.done
		}
		if l.made {
			if err := v.closeLogin(ctx, l); err != nil {
				errs = append(errs, fmt.Errorf("vault: the login token is not confirmed revoked: %w", err))
				continue
			}
		}
		l.token.Wipe()
	}
	v.current, v.former = nil, nil
	v.conn.client.CloseIdleConnections()
	return errors.Join(errs...)
}

func (v *vault) closeLogin(ctx context.Context, l *login) error {
	err := retry(ctx, func() error {
		if l.isDead(v.conn.clock()) {
			return nil
		}
		_, err := v.conn.do(ctx, vaultCall{method: http.MethodPost, path: "auth/token/revoke-self", token: l.token, urgent: true})
		if isClass(err, classDenied) && !v.alive(ctx, l.token) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	return v.journal.Delete(ctx, l.accessor)
}
