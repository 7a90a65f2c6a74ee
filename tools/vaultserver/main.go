// Vaultserver is a Vault for tests and for nothing else: storage in memory, or in a
// folder to be restarted from, one unseal key, a root token on standard output,
// plain HTTP on a loopback address.
//
// It prints one line when it serves, then runs until it is killed or, with
// -parent, until its standard input ends:
//
//	addr=http://127.0.0.1:PORT root=TOKEN unseal=KEY
//
// A start on a folder that has been used needs -unseal KEY and prints no root token.
// With -cert and -key it serves https, and asks clients for a certificate.
package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	authjwt "github.com/hashicorp/vault-plugin-auth-jwt"
	authkubernetes "github.com/hashicorp/vault-plugin-auth-kubernetes"
	"github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/audit"
	auditfile "github.com/hashicorp/vault/builtin/audit/file"
	"github.com/hashicorp/vault/builtin/credential/approle"
	"github.com/hashicorp/vault/builtin/credential/cert"
	"github.com/hashicorp/vault/builtin/credential/userpass"
	"github.com/hashicorp/vault/builtin/logical/aws"
	"github.com/hashicorp/vault/builtin/logical/database"
	"github.com/hashicorp/vault/builtin/logical/pki"
	"github.com/hashicorp/vault/builtin/logical/rabbitmq"
	"github.com/hashicorp/vault/builtin/logical/ssh"
	"github.com/hashicorp/vault/builtin/logical/totp"
	"github.com/hashicorp/vault/builtin/logical/transit"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/plugins/database/postgresql"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical"
	"github.com/hashicorp/vault/sdk/physical/file"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "loopback `address` to serve on")
	parent := flag.Bool("parent", false, "exit when standard input ends")
	data := flag.String("data", "", "`folder` to keep everything in (default: memory)")
	unseal := flag.String("unseal", "", "unseal `key` of a folder that has been used")
	cert := flag.String("cert", "", "`file` with the server's certificate (default: no TLS)")
	key := flag.String("key", "", "`file` with its key")
	flag.Parse()
	if err := serve(*listen, *data, *unseal, *cert, *key, *parent); err != nil {
		fmt.Fprintln(os.Stderr, "vaultserver:", err)
		os.Exit(1)
	}
}

func serve(listen, data, unseal, certFile, keyFile string, parent bool) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return errors.Join(fmt.Errorf("%s is not a loopback address", l.Addr()), l.Close())
	}
	core, seal, root, err := open(data, unseal)
	if err != nil {
		return err
	}
	srv := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: vaulthttp.Handler.Handler(&vault.HandlerProperties{
			Core: core, ListenerConfig: &configutil.Listener{},
		}),
	}
	if parent {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0) // whoever started this server is gone
		}()
	}
	if certFile == "" {
		fmt.Printf("addr=http://%s root=%s unseal=%s\n", l.Addr(), root, seal)
		return srv.Serve(l)
	}
	srv.TLSConfig = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	fmt.Printf("addr=https://%s root=%s unseal=%s\n", l.Addr(), root, seal)
	return srv.ServeTLS(l, certFile, keyFile)
}

// open returns an initialised and unsealed core, its unseal key (Base64) and, when
// it is new, its root token.
func open(data, unseal string) (core *vault.Core, key, root string, err error) {
	log := hclog.New(&hclog.LoggerOptions{Level: hclog.Error, Output: os.Stderr})
	var store physical.Backend
	if data == "" {
		store, err = inmem.NewInmem(nil, log)
	} else {
		store, err = file.NewFileBackend(map[string]string{"path": data}, log)
	}
	if err != nil {
		return nil, "", "", err
	}
	core, err = vault.NewCore(&vault.CoreConfig{
		Physical:        store,
		DisableMlock:    true,
		Logger:          log,
		BuiltinRegistry: builtin(),
		LogicalBackends: map[string]logical.Factory{"kv": kv.Factory, "database": database.Factory},
		AuditBackends:   map[string]audit.Factory{"file": auditfile.Factory},
	})
	if err != nil {
		return nil, "", "", err
	}
	if unseal != "" {
		raw, err := base64.StdEncoding.DecodeString(unseal)
		if err == nil {
			_, err = core.Unseal(raw)
		}
		return core, unseal, "", err
	}
	one := &vault.SealConfig{SecretShares: 1, SecretThreshold: 1}
	res, err := core.Initialize(context.Background(), &vault.InitParams{BarrierConfig: one, RecoveryConfig: one})
	if err != nil {
		return nil, "", "", err
	}
	if len(res.SecretShares) != 1 {
		return nil, "", "", fmt.Errorf("%d unseal keys, not 1", len(res.SecretShares))
	}
	if _, err := core.Unseal(res.SecretShares[0]); err != nil {
		return nil, "", "", err
	}
	return core, base64.StdEncoding.EncodeToString(res.SecretShares[0]), res.RootToken, nil
}

// plugins is the set of engines that this server knows, by type and name.
type plugins map[consts.PluginType]map[string]func() (any, error)

func builtin() plugins {
	factory := func(f logical.Factory) func() (any, error) {
		return func() (any, error) { return f, nil }
	}
	return plugins{
		consts.PluginTypeCredential: {
			"approle":    factory(approle.Factory),
			"cert":       factory(cert.Factory),
			"jwt":        factory(authjwt.Factory),
			"kubernetes": factory(authkubernetes.Factory),
			"userpass":   factory(userpass.Factory),
		},
		consts.PluginTypeSecrets: {
			"aws":      factory(aws.Factory),
			"kv":       factory(kv.Factory),
			"pki":      factory(pki.Factory),
			"rabbitmq": factory(rabbitmq.Factory),
			"ssh":      factory(ssh.Factory),
			"totp":     factory(totp.Factory),
			"transit":  factory(transit.Factory),
		},
		consts.PluginTypeDatabase: {
			"postgresql-database-plugin": postgresql.New,
		},
	}
}

func (p plugins) Get(name string, t consts.PluginType) (func() (any, error), bool) {
	f, ok := p[t][name]
	return f, ok
}

func (p plugins) Contains(name string, t consts.PluginType) bool {
	_, ok := p[t][name]
	return ok
}

func (p plugins) Keys(t consts.PluginType) []string {
	var names []string
	for name := range p[t] {
		names = append(names, name)
	}
	return names
}

func (p plugins) DeprecationStatus(name string, t consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, p.Contains(name, t)
}

func (plugins) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }
