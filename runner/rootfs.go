package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// rootPlan says what the curated root file system holds. It is plain data: the
// caller plans, the helper carries it out inside its own mount namespace.
type rootPlan struct {
	Dirs  []planDir  `json:"dirs"`
	Files []planFile `json:"files"`
	Links []planLink `json:"links"`
	Binds []planBind `json:"binds"` // read-only

	Image    string `json:"image,omitempty"`    // folder (or file) of an image, "" for the curated root
	Erofs    bool   `json:"erofs,omitempty"`    // it is a file with an EROFS file system
	Detached bool   `json:"detached,omitempty"` // it comes as a mount, at fdImage
	Upper    []byte `json:"upper,omitempty"`    // tar archive laid over the image
}

type planDir struct {
	Path string      `json:"path"`
	Mode os.FileMode `json:"mode"`
}

type planFile struct {
	Path string `json:"path"`
	Data []byte `json:"data"`
}

type planLink struct {
	Path   string `json:"path"`
	Target string `json:"target"`
}

type planBind struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// Ids inside: of the user "task", where a second id can be mapped and no other is
// asked for, and of what belongs to nobody who is mapped.
const (
	taskUID   = 1000
	nobodyUID = 65534
)

// Generated files of /etc.
const (
	hostsFile    = "127.0.0.1 localhost sandbox\n"
	hostnameFile = "sandbox\n"
	resolvFile   = "nameserver " + resolverAddr + "\noptions timeout:2 attempts:2\n"
)

// owner is a user and a group inside.
type owner struct{ uid, gid uint32 }

// accounts returns /etc/passwd and /etc/group (passwd(5), group(5)): root, the
// task under its ids, and nobody.
func accounts(o owner) (passwd, group string) {
	passwd, group = "root:x:0:0:root:/root:/bin/sh\n", "root:x:0:\n"
	if o.uid == 0 {
		o.uid = taskUID
		if o.gid == 0 {
			o.gid = taskUID
		}
	}
	passwd += fmt.Sprintf("task:x:%d:%d:task:/workspace:/bin/sh\n", o.uid, o.gid)
	if o.gid != 0 {
		group += fmt.Sprintf("task:x:%d:\n", o.gid)
	}
	if o.uid != nobodyUID {
		passwd += "nobody:x:65534:65534:nobody:/:/bin/false\n"
	}
	if o.gid != nobodyUID {
		group += "nogroup:x:65534:\n"
	}
	return passwd, group
}

// hostConfig are folders below /etc that hold no secret and that programs in
// /usr need to start: each is bound read-only when the host has it.
var hostConfig = []string{"/etc/alternatives", "/etc/java-*", "/etc/python3*", "/etc/perl", "/etc/fonts", "/etc/ld.so.conf.d"}

// hostConfigFiles are single files copied in, when the host has them.
var hostConfigFiles = []string{"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/mime.types", "/etc/protocols", "/etc/services", "/etc/localtime", "/etc/ssl/openssl.cnf", "/etc/os-release"}

// curatedRoot plans the default root: the host's /usr and a generated /etc,
// nothing else of the host. Reading the host is all it does.
func curatedRoot(t trust, o owner) (rootPlan, error) {
	var p rootPlan
	for _, d := range []string{"/etc", "/etc/ssl", "/etc/ssl/certs", "/etc/ssl/warder", "/etc/ssl/private", "/etc/pki/tls/certs", "/dev", "/proc", "/sys", "/run", "/var", "/var/lib", "/var/cache", "/var/log", "/home", "/mnt", "/opt", "/srv", "/workspace", "/out", "/usr"} {
		p.Dirs = append(p.Dirs, planDir{d, 0o755})
	}
	p.Dirs = append(p.Dirs, planDir{"/tmp", 0o1777}, planDir{"/var/tmp", 0o1777}, planDir{"/root", 0o700})
	p.Binds = append(p.Binds, planBind{"/usr", "/usr"})
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if err := p.addTop(name); err != nil {
			return rootPlan{}, err
		}
	}
	for _, pattern := range hostConfig {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return rootPlan{}, fmt.Errorf("root: %s: %w", pattern, err)
		}
		for _, d := range dirs {
			if fi, err := os.Lstat(d); err == nil && fi.IsDir() {
				p.Dirs = append(p.Dirs, planDir{d, 0o755})
				p.Binds = append(p.Binds, planBind{d, d})
			}
		}
	}
	for _, f := range hostConfigFiles {
		if data, err := os.ReadFile(f); err == nil { // absent on some distributions
			p.Files = append(p.Files, planFile{f, data})
		}
	}
	p.addGenerated(t, o)
	return p, nil
}

// addTop makes /bin and its siblings what they are on the host: a link into
// /usr on merged systems, a read-only bind on others.
func (p *rootPlan) addTop(name string) error {
	host := "/" + name
	fi, err := os.Lstat(host)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	if fi.Mode()&os.ModeSymlink == 0 {
		p.Dirs = append(p.Dirs, planDir{host, 0o755})
		p.Binds = append(p.Binds, planBind{host, host})
		return nil
	}
	target, err := os.Readlink(host)
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	if !strings.HasPrefix(strings.TrimPrefix(target, "/"), "usr/") {
		return fmt.Errorf("root: %s points to %s: only links into /usr are supported", host, target)
	}
	p.Links = append(p.Links, planLink{host, target})
	return nil
}

func (p *rootPlan) addGenerated(t trust, o owner) {
	text := func(path, data string) { p.Files = append(p.Files, planFile{path, []byte(data)}) }
	passwd, group := accounts(o)
	text("/etc/passwd", passwd)
	text("/etc/group", group)
	text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n")
	text("/etc/hosts", hostsFile)
	text("/etc/hostname", hostnameFile)
	text("/etc/resolv.conf", resolvFile)
	p.Files = append(p.Files, planFile{caBundlePath, t.bundle}, planFile{caOnlyPath, t.ca})
	if jks, err := javaTrustStore(t.bundle, time.Now()); err == nil { // no certificate: nothing to trust
		p.Files = append(p.Files, planFile{caJavaPath, jks})
	}
	for path, target := range caBundleLinks {
		p.Links = append(p.Links, planLink{path, target})
	}
}
