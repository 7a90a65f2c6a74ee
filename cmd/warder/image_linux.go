package main

import (
	"fmt"
	"os"

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
	return image.NewStore(image.Options{Dir: dir, Roots: roots, Protected: protected}), nil
}
