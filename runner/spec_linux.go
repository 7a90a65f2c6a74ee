package runner

import (
	"fmt"
	"path"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/specutils"
)

// upperName is the archive that is laid over an image, below the helper's folder.
const upperName = "upper.tar"

// imageName is where an image is mounted, below the helper's folder.
const imageName = "image"

// defaultPath is what a task finds programs by.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// helperConfig is all that a helper is told. It holds no credential.
type helperConfig struct {
	ID        string   `json:"id"`
	Args      []string `json:"args"`
	Env       []string `json:"env"` // NAME=value, stand-ins included
	Cwd       string   `json:"cwd"`
	UID       uint32   `json:"uid"`
	GID       uint32   `json:"gid"`
	Groups    []uint32 `json:"groups"` // besides GID; known to the sentry alone, which maps no host id to them
	Root      rootPlan `json:"root"`
	NProc     uint64   `json:"nproc"`
	NoFile    uint64   `json:"nofile"`
	Disk      int64    `json:"disk"`    // bytes of the tmpfs behind /workspace and /out
	Tmp       int64    `json:"tmp"`     // bytes of /tmp
	Overlay   int64    `json:"overlay"` // bytes writable elsewhere in the root
	HasInputs bool     `json:"has_inputs"`
	Network   string   `json:"network"` // see NetworkAuto
	Socket    bool     `json:"socket"`  // no network card; see the fallback
	Terminal  bool     `json:"terminal"`
}

// buildSpec is pure: the same configuration gives the same OCI runtime
// specification (github.com/opencontainers/runtime-spec). base is the folder,
// private to the helper, that holds root/, ws/workspace and ws/out.
func buildSpec(h helperConfig, base string) *specs.Spec {
	rlimit := func(name string, v uint64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: name, Hard: v, Soft: v}
	}
	s := &specs.Spec{
		Version:  "1.2.0",
		Root:     &specs.Root{Path: path.Join(base, "root")},
		Hostname: "sandbox",
		Process: &specs.Process{
			Args: h.Args, Env: h.Env, Cwd: h.Cwd,
			Terminal:        h.Terminal,
			NoNewPrivileges: true,
			User:            specs.User{UID: h.UID, GID: h.GID, AdditionalGids: h.Groups},
			Capabilities:    &specs.LinuxCapabilities{}, // none, in every set
			Rlimits: []specs.POSIXRlimit{
				rlimit("RLIMIT_NOFILE", h.NoFile), rlimit("RLIMIT_NPROC", h.NProc), rlimit("RLIMIT_CORE", 0),
			},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=0755", "size=64k"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%d", h.Tmp)}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%d", h.Tmp)}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
		}},
	}
	if h.Root.Image != "" {
		s.Annotations = map[string]string{specutils.AnnotationRootfsUpperTar: path.Join(base, upperName)}
	}
	if h.Root.Erofs { // gVisor's rootfs annotations (runsc/boot/mount_hints.go)
		for name, value := range map[string]string{
			"source": path.Join(base, imageName), "type": "erofs", "overlay": "memory", "options": fmt.Sprintf("size=%d", h.Overlay),
		} {
			s.Annotations[boot.RootfsPrefix+name] = value
		}
	}
	if h.Socket {
		s.Process.Args = append([]string{path.Join(innerDir, innerWait)}, h.Args...)
		s.Process.Env = innerEnv(h.Env)
		s.Process.Rlimits[1] = rlimit("RLIMIT_NPROC", h.NProc+innerThreads)
		s.Mounts = append(s.Mounts, specs.Mount{Destination: innerDir, Type: "bind", Source: path.Join(base, fallbackName), Options: []string{"ro", "rbind", "nosuid", "nodev"}})
	}
	for _, d := range []string{"workspace", "out"} {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/" + d, Type: "bind", Source: path.Join(base, "ws", d), Options: []string{"rw", "rbind", "nosuid", "nodev"}})
	}
	return s
}
