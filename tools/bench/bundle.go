package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// writeBundle makes an OCI bundle (github.com/opencontainers/runtime-spec) for runc
// and runsc: the curated root with the host's /usr, no capability, and, when netns
// is not empty, that network namespace.
func writeBundle(dir, root, netns string, binds map[string]string, args ...string) error {
	type m = map[string]any
	mounts := []m{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
		{"destination": "/usr", "type": "bind", "source": "/usr", "options": []string{"rbind", "ro"}},
	}
	for dst, src := range binds {
		mounts = append(mounts, m{"destination": dst, "type": "bind", "source": src, "options": []string{"rbind", "ro"}})
	}
	network := m{"type": "network"}
	if netns != "" {
		network["path"] = netns
	}
	spec := m{
		"ociVersion": "1.0.0", "hostname": "sandbox", "mounts": mounts,
		"root":    m{"path": root, "readonly": true},
		"process": m{"args": args, "cwd": "/", "env": []string{"PATH=/usr/bin"}, "user": m{"uid": 0, "gid": 0}, "noNewPrivileges": true},
		"linux":   m{"namespaces": []m{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, network}},
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644)
}
