package image

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"warder/internal/config"
)

// maxLogins bounds the file of logins, in bytes.
const maxLogins = 1 << 20

// logins are the caller's own registry logins, as `docker login` keeps them:
//
//	{"auths": {"HOST[:PORT]": {"auth": "base64 of NAME:PASSWORD"}}, "credHelpers": {…}, "credsStore": "…"}
//
// An entry may have username and password, or identitytoken, in place of auth.
// Credential helpers are programs that the file names; none is started. The values
// go to the registry, over TLS or loopback, and nowhere else.
type logins struct {
	file string // "" for none
}

type loginFile struct {
	Auths       map[string]loginEntry `json:"auths"`
	CredHelpers map[string]string     `json:"credHelpers"`
	CredsStore  string                `json:"credsStore"`
}

type loginEntry struct {
	Auth          string `json:"auth"`
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
}

// login is an authn.Authenticator that does not print what it holds.
type login struct{ cfg authn.AuthConfig }

func (l login) Authorization() (*authn.AuthConfig, error) { return &l.cfg, nil }

func (login) String() string   { return "[login]" }
func (login) GoString() string { return "[login]" }

// read returns the file's content; nothing when there is no file. It has to be the
// caller's alone, as every file with a secret.
func (l logins) read() (loginFile, error) {
	var f loginFile
	if l.file == "" {
		return f, nil
	}
	raw, err := config.ReadOwned(l.file, maxLogins)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("registry logins: %w", err)
	}
	if json.Unmarshal(raw, &f) != nil { // its error may quote the file
		return f, fmt.Errorf("registry logins: %s is not JSON; hint: log in again", l.file)
	}
	return f, nil
}

// of returns the login for a registry, and the helper that keeps one instead.
func (l logins) of(reg name.Registry) (a authn.Authenticator, helper string, err error) {
	f, err := l.read()
	if err != nil {
		return nil, "", err
	}
	host := reg.RegistryStr()
	for key, e := range f.Auths {
		if loginHost(key) != host {
			continue
		}
		cfg, err := e.config()
		if err != nil {
			return nil, "", fmt.Errorf("registry logins: %s: %s: %w", l.file, host, err)
		}
		if cfg != (authn.AuthConfig{}) {
			return login{cfg}, "", nil
		}
	}
	if helper = f.CredHelpers[host]; helper == "" {
		helper = f.CredsStore
	}
	return authn.Anonymous, helper, nil
}

// loginHost is the registry that a key of auths means; Docker Hub's is an address.
func loginHost(key string) string {
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key = rest
	}
	host, _, _ := strings.Cut(key, "/")
	if host == "docker.io" || host == "registry-1.docker.io" {
		return name.DefaultRegistry
	}
	return host
}

func (e loginEntry) config() (authn.AuthConfig, error) {
	c := authn.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken}
	if e.Auth == "" {
		return c, nil
	}
	raw, err := base64.StdEncoding.DecodeString(e.Auth)
	user, password, ok := strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")
	if err != nil || !ok {
		return c, errors.New("auth is not base64 of NAME:PASSWORD; hint: log in again")
	}
	if c.IdentityToken == "" {
		c.Username, c.Password = user, password
	}
	return c, nil
}

// explainDenial says what to do about a registry that wants another login.
func explainDenial(err error, reg name.Registry, helper string) error {
	var te *transport.Error
	if !errors.As(err, &te) || te.StatusCode != http.StatusUnauthorized && te.StatusCode != http.StatusForbidden {
		return err
	}
	host := reg.RegistryStr()
	if helper != "" {
		return fmt.Errorf("%w; hint: the login of %s may be with the credential helper %q, and helpers are not started: log in without one, or use an archive", err, host, helper)
	}
	return fmt.Errorf("%w; hint: docker login %s", err, host)
}
