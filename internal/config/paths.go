package config

import (
	"path/filepath"
	"strings"
)

// resolve makes every path of the file absolute: "~/" is home, anything else
// that is relative is below base, the folder of the file.
func (c *Config) resolve(base, home string) {
	abs := func(p *string) { *p = resolvePath(*p, base, home) }
	abs(&c.Policy.Path)
	for i := range c.Policy.Roots {
		abs(&c.Policy.Roots[i])
	}
	abs(&c.Policy.Floor)
	if b := c.Policy.Bundle; b != nil {
		abs(&b.File)
		abs(&b.KeyFile)
		abs(&b.CAFile)
	}
	abs(&c.Audit.Dir)
	if v := c.Vault; v != nil {
		for _, p := range []*string{
			&v.CAFile, &v.Auth.RoleIDFile, &v.Auth.SecretIDFile, &v.Auth.TokenFile,
			&v.Auth.JWTFile, &v.Auth.CertFile, &v.Auth.KeyFile,
		} {
			abs(p)
		}
	}
	for _, cred := range c.Credentials {
		if l := cred.Source.Local; l != nil {
			abs(&l.File)
			// A program without a slash is looked up in $PATH by whoever runs it.
			if len(l.Command) > 0 && strings.Contains(l.Command[0], "/") {
				abs(&l.Command[0])
			}
			if l.PKI != nil {
				abs(&l.PKI.CACertFile)
				abs(&l.PKI.CAKeyFile)
			}
			if l.TOTP != nil {
				abs(&l.TOTP.KeyFile)
			}
			if l.HMAC != nil {
				abs(&l.HMAC.KeyFile)
			}
		}
	}
	for i := range c.Proxy.Upstream.CAFiles {
		abs(&c.Proxy.Upstream.CAFiles[i])
	}
	if ca := c.Proxy.CA; ca != nil {
		abs(&ca.CertFile)
		abs(&ca.KeyFile)
	}
	for i := range c.Proxy.Clients {
		abs(&c.Proxy.Clients[i].TokenFile)
		abs(&c.Proxy.Clients[i].CertFile)
	}
}

func resolvePath(p, base, home string) string {
	switch {
	case p == "":
		return ""
	case p == "~":
		return home
	case strings.HasPrefix(p, "~/"):
		return filepath.Join(home, p[2:])
	case filepath.IsAbs(p):
		return filepath.Clean(p)
	}
	return filepath.Join(base, p)
}
