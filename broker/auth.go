package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/hashicorp/vault/api"

	"warder/internal/config"
	"warder/internal/secret"
)

const serviceAccountToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"

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
	if a.Mount != "" && (strings.Contains(a.Mount, "..") || !policyName().MatchString(strings.ToLower(a.Mount))) {
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

func (v *vault) mount() string {
	if v.auth.Mount != "" {
		return strings.Trim(v.auth.Mount, "/")
	}
	return v.auth.Method
}

// authenticate gets a token by the configured method, once at a time. before is the login
// that is dead, if there is one.
func (v *vault) authenticate(ctx context.Context, before *login) (*login, error) {
	body := map[string]any{}
	var err error
	switch v.auth.Method {
	case "token_file":
		return v.fromFile(before)
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

func (v *vault) fromFile(before *login) (*login, error) {
	t, err := readText(v.auth.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("vault login: %w", err)
	}
	if before != nil && before.token.Reveal() == t {
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
