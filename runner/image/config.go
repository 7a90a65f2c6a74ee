package image

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Config is what an image asks of whoever runs it.
type Config struct {
	User       string   // "", or a name or an id, and ":" with that of a group may follow
	Workdir    string   // absolute, or ""
	Entrypoint []string // goes before the command
	Cmd        []string // the command when the caller has none
	Env        []string // NAME=value
}

func bytesReader(b []byte) io.Reader { return bytes.NewReader(b) }

// readConfig reads an image configuration and the digests of its layers.
func readConfig(raw []byte) (Config, []v1.Hash, error) {
	f, err := v1.ParseConfigFile(bytesReader(raw))
	if err != nil {
		return Config{}, nil, fmt.Errorf("configuration: %w", err)
	}
	if f.OS != "" && f.OS != "linux" || f.Architecture != "" && f.Architecture != runtime.GOARCH {
		return Config{}, nil, fmt.Errorf("it is for %s/%s; hint: this machine runs linux/%s", f.OS, f.Architecture, runtime.GOARCH)
	}
	c := Config{User: f.Config.User, Entrypoint: f.Config.Entrypoint, Cmd: f.Config.Cmd}
	if f.Config.WorkingDir != "" && f.Config.WorkingDir != "/" {
		c.Workdir = path.Join("/", f.Config.WorkingDir)
	}
	for _, e := range f.Config.Env {
		if name, _, ok := strings.Cut(e, "="); ok && name != "" && !strings.ContainsRune(e, 0) {
			c.Env = append(c.Env, e)
		}
	}
	return c, f.RootFS.DiffIDs, nil
}
