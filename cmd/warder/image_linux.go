package main

import (
	"fmt"
	"os"
	"path/filepath"

	"warder/internal/config"
	"warder/internal/sysroots"
	"warder/runner/image"
)

// images is the store of root file systems. Registries are verified like
// upstreams: by the host's authorities and those of the configuration.
func (a *app) images() (*image.Store, error) {
	roots := sysroots.Pool()
	for _, f := range a.cfg.Proxy.Upstream.CAFiles {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("proxy.upstream.ca_files: %w", err)
		}
		roots.AppendCertsFromPEM(raw)
	}
	dir := config.ImageDir()
	protected := []string{dir, config.StateDir()}
	if home, err := os.UserHomeDir(); err == nil {
		protected = append(protected, home)
	}
	return image.NewStore(image.Options{Dir: dir, Roots: roots, Protected: protected, Logins: dockerLogins()}), nil
}

// dockerLogins is the file in which `docker login` keeps the caller's logins.
func dockerLogins() string {
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		return filepath.Join(dir, "config.json")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker", "config.json")
}
