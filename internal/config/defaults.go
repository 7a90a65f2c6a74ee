package config

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"time"
)

// Version is the only version of warder.yaml that this program reads.
const Version = 1

// Values of policy.mode.
const (
	ModeEnforce = "enforce" // default: nothing passes without an allow
	ModeMonitor = "monitor" // no-rule and denied pass without a credential, and are recorded
)

// Values of sandbox.limits.
const (
	LimitsBestEffort = "best-effort" // default: what cannot be enforced is named in the record of the run
	LimitsStrict     = "strict"      // what cannot be enforced is refused
)

// Values of sandbox.network.
const (
	NetworkAuto   = "auto"   // default: a network card of the sandbox's own, or else a Unix socket, said loudly
	NetworkCard   = "card"   // the card, or no run
	NetworkSocket = "socket" // the Unix socket
)

// Values of audit.durable.
const (
	DurableAll          = "all" // default: every reservation is on disk before its first byte leaves
	DurableCredentialed = "credentialed"
)

// Defaults of the keys that have one.
const (
	DefaultCPUs         = 1.0
	DefaultMemory       = 512 * mib
	DefaultPIDs         = 256
	DefaultDisk         = 1 * gib
	DefaultTimeout      = Duration(10 * time.Minute)
	DefaultUIDFirst     = 200000
	DefaultUIDCount     = 65536
	DefaultListen       = "127.0.0.1:3128"
	DefaultVaultTimeout = Duration(5 * time.Second)
	DefaultKVVersion    = 2
	DefaultJWTTTL       = Duration(5 * time.Minute)
	DefaultFormat       = "{value}"
	DefaultAlgorithm    = "RS256" // of policy.bundle
	DefaultPoll         = Duration(time.Minute)
	DefaultMaxAge       = Duration(24 * time.Hour)
)

// Default is the configuration of a machine without warder.yaml: it has no
// policy and no credential, so every request is denied.
func Default() *Config {
	c := &Config{Version: Version}
	c.fillDefaults()
	return c
}

func (c *Config) fillDefaults() {
	def(&c.Policy.Mode, ModeEnforce)
	if b := c.Policy.Bundle; b != nil {
		def(&b.Algorithm, DefaultAlgorithm)
		if b.URL != "" {
			def(&b.Poll, DefaultPoll)
			def(&b.MaxAge, DefaultMaxAge)
		}
	}
	def(&c.Sandbox.CPUs, DefaultCPUs)
	def(&c.Sandbox.Memory, DefaultMemory)
	def(&c.Sandbox.PIDs, DefaultPIDs)
	def(&c.Sandbox.Disk, DefaultDisk)
	def(&c.Sandbox.Timeout, DefaultTimeout)
	def(&c.Sandbox.Limits, LimitsBestEffort)
	def(&c.Sandbox.UIDRange, [2]uint32{DefaultUIDFirst, DefaultUIDCount})
	def(&c.Proxy.Listen, DefaultListen)
	def(&c.Audit.Dir, filepath.Join(StateDir(), "audit"))
	def(&c.Audit.Durable, DurableAll)
	if c.Vault != nil {
		def(&c.Vault.Timeout, DefaultVaultTimeout)
	}
	for name, cred := range c.Credentials {
		if cred.Inject.Header != "" {
			def(&cred.Inject.Format, DefaultFormat)
		}
		if cred.Source.Vault != nil && cred.Source.Vault.KV != "" {
			def(&cred.Source.Vault.Version, DefaultKVVersion)
		}
		if cred.Source.Local != nil && cred.Source.Local.JWT != nil {
			def(&cred.Source.Local.JWT.TTL, DefaultJWTTTL)
		}
		c.Credentials[name] = cred
	}
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// rootStateDir is where root keeps state, whatever the environment says: a
// variable carried over by sudo must not put root's state into a user's folder.
const rootStateDir = "/var/lib/warder"

// StateDir is the folder of everything that outlives a run: $WARDER_STATE_DIR
// when it is an absolute path, else /var/lib/warder for root, else
// $XDG_STATE_HOME/warder, else ~/.local/state/warder. It is not created here.
func StateDir() string { return stateDir(os.Getenv, os.Geteuid(), homeDir()) }

func stateDir(getenv func(string) string, euid int, home string) string {
	if dir := getenv("WARDER_STATE_DIR"); filepath.IsAbs(dir) {
		return filepath.Clean(dir)
	}
	if euid == 0 {
		return rootStateDir
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "warder")
	}
	return filepath.Join(home, ".local", "state", "warder")
}

// homeDir is the caller's home: $HOME, else that of the account database, else
// a folder that does not exist (never the working directory).
func homeDir() string {
	if h, err := os.UserHomeDir(); err == nil && filepath.IsAbs(h) {
		return h
	}
	if u, err := user.Current(); err == nil && filepath.IsAbs(u.HomeDir) {
		return u.HomeDir
	}
	return "/nonexistent"
}

// EnvFile is the variable that names the configuration when no flag does.
const EnvFile = "WARDER_CONFIG"

// Find returns the path of the configuration: flag, else $WARDER_CONFIG, else
// warder/warder.yaml below userConfigDir. The working directory is never
// searched. A path that was asked for by flag or variable is returned with
// found set whether it exists or not, so that a missing one is an error of
// Load; found is false only when nothing was asked for and nothing is there.
func Find(flag string, getenv func(string) string, userConfigDir func() (string, error)) (path string, found bool, err error) {
	for _, asked := range []string{flag, getenv(EnvFile)} {
		if asked != "" {
			path, err = filepath.Abs(asked)
			return path, err == nil, err
		}
	}
	dir, err := userConfigDir()
	if err != nil {
		return "", false, nil // no home at all: there is no user configuration either
	}
	if !filepath.IsAbs(dir) {
		return "", false, nil // a relative folder would be below the working directory
	}
	path = filepath.Join(dir, "warder", "warder.yaml")
	switch _, err = os.Stat(path); {
	case err == nil:
		return path, true, nil
	case os.IsNotExist(err):
		return "", false, nil
	default:
		return "", false, fmt.Errorf("config: find: %w", err)
	}
}

// NoConfig is the one line said when there is no configuration.
const NoConfig = "no configuration: every request is denied; hint: write ~/.config/warder/warder.yaml, or name a file with --config"

// LoadFound finds and reads the configuration of this process. Without one it
// returns Default and a Config.File of "".
func LoadFound(flag string) (*Config, error) {
	path, found, err := Find(flag, os.Getenv, os.UserConfigDir)
	if err != nil {
		return nil, err
	}
	if !found {
		return Default(), nil
	}
	return Load(path)
}
